"""What a runtime is trusted with: the ops, and the types of what they read and make, of which it means what ONNX does.

ONNX Runtime on the cores is the reference and has no table. Every other runtime has one, a row per kind of op. What no
row takes is *unsupported* there, for a whole network as for a single op. Rows are held by comparing every op, in every
type, at the hard values of that type (``tests/agent/runtimes/test_trust.py``). They speak of ordinary values: what a
feed must hold for that, and an answer, is the guard's to say (``agent_sdk/model/bounds.py``).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from agent_sdk.model.bounds import FREE, INDICES, WIDE
from hope_schema import ModelGraph, Op
from hope_schema.graph import SPRING

SHORT: Final[Mapping[str, str]] = {
    "f16": "float16", "f32": "float32", "f64": "float64", "bool": "bool",
    **{f"{short}{bits}": f"{long}{bits}" for short, long in (("i", "int"), ("u", "uint")) for bits in (8, 16, 32, 64)},
}  # fmt: skip
"""How tables write the types."""
WHY: Final[Mapping[str, str]] = {
    FREE: "its indices or sizes depend on data, and nothing bounds them",
    SPRING: "it may hide what is no number and was made inside",
    WIDE: "it reads whole numbers of which nothing says that they are small",
}
"""What the marks of an op mean."""

Unless = Callable[[Op, ModelGraph], str]
"""Why an op of a row is not taken all the same; empty where it is."""


@dataclass(frozen=True)
class Row:
    """Ops that are taken.

    Attributes:
        ops: their types, with spaces between.
        reads: types of the activations that they read, indices aside.
        makes: types that they make; those that they read, where it is empty.
        unless: what of them is not taken.
        but: the same in words.
    """

    ops: str
    reads: str
    makes: str = ""
    unless: Unless | None = None
    but: str = ""


def kinds_read(op: Op, graph: ModelGraph) -> list[str]:
    """The types of the activations that an op reads; of one that reads constants alone, the first one's."""
    return [graph.tensor[name].dtype for name in op.inputs] or [one.dtype for one in op.parameters[:1]]


def asked(op: Op, graph: ModelGraph) -> str:
    """For what holds as long as all but the first input are constants."""
    return "what it is told in the run is not compared" if len(op.inputs) > 1 else ""


def on_axes(op: Op, graph: ModelGraph) -> str:
    """For a Pad of all axes; of some, counted from the end, runtimes make something else."""
    chosen = len(op.inputs) > 1 or any(len(one.shape) == 1 for one in op.parameters[1:])
    return "axes that are chosen are counted otherwise there" if chosen else ""


class Trust:
    """The table of one runtime.

    Args:
        bears: marks of ops that make no difference there.
    """

    def __init__(self, *rows: Row, bears: Iterable[str] = ()) -> None:
        self.rows, self._bears = rows, frozenset(bears)
        self._row = {kind: row for row in rows for kind in row.ops.split()}
        self._reads = {row: _types(row.reads) for row in rows}
        self._makes = {row: _types(row.makes or row.reads) for row in rows}

    def refusal(self, op: Op, graph: ModelGraph) -> str:
        """Why an op is not taken; empty where it is."""
        if marked := self.marked(op):
            return marked
        row = self._row.get(op.type)
        if row is None:
            return "it is none of the ops that are known to mean the same there"
        made = {graph.tensor[name].dtype for name in op.outputs}
        read = set() if op.type in INDICES else {*kinds_read(op, graph)}
        if strange := (read - self._reads[row]) | (made - self._makes[row]):
            return f"{', '.join(sorted(strange))} is not known to mean the same there"
        if any(graph.tensor[name].elements == 0 for name in (*op.inputs, *op.outputs)):
            return "a tensor without elements is not known to mean the same there"
        return row.unless(op, graph) if row.unless else ""

    def marked(self, op: Op) -> str:
        """Why an op is taken by none but the reference, whatever row it has; empty where nothing says so."""
        return "; ".join(WHY[mark] for mark in sorted(op.marks - self._bears))

    def refusals(self, ops: Iterable[Op], graph: ModelGraph) -> dict[str, str]:
        return {op.id: why for op in ops if (why := self.refusal(op, graph))}


class AnyOp(Trust):
    """Of what computes with nobody knows what: every op, but the marked ones, for values that are ordinary."""

    @override
    def refusal(self, op: Op, graph: ModelGraph) -> str:
        """Why an op is not taken; empty where it is."""
        return self.marked(op)


def _types(text: str) -> frozenset[str]:
    return frozenset(SHORT[short] for short in text.split())

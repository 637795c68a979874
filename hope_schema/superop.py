"""Super-ops: the ops merged before planning, and the signature a latency belongs to.

A super-op is what every runtime we know compiles into one fused kernel: an anchor (convolution, matrix
product, pooling, ...) and the element-wise ops that follow it on its own. Its boundary tensors therefore
exist in a plain layout in every runtime (HOPE section 3.2: "for frameworks that support kernel fusion,
HOPE's scheduler will schedule the fused kernels as a whole").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from hope_schema.graph import ModelGraph, Op, TensorType
from hope_schema.hashing import digest

FUSED_FOLLOWERS = frozenset(
    {"BatchNormalization", "Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "PRelu"}
    | {"Add", "Sub", "Mul", "Div"}
)
"""Element-wise types that runtimes fold into the op before them when they alone read its output.

The binary ones only with a constant beside that output (a bias, a scale): a second activation keeps them apart.
"""

FREE_FOLLOWERS = frozenset({"Dropout", "Identity", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Cast"})
"""Types that only rename or relabel their input; never worth a launch of their own."""

LED = frozenset({"Conv", "MaxPool", "AveragePool"})
"""Types that take in the Pad before them, where they alone read its output."""

QUANTISE, DEQUANTISE = "QuantizeLinear", "DequantizeLinear"
"""What stands around an op of a quantised network; runtimes make one kernel of integers of the three."""

ANCHORS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sum", "BatchNormalization", "Concat"})
"""Types whose output a fused follower may be folded into."""


@dataclass(frozen=True)
class SuperOp:
    """Ops that are planned, measured and launched as one.

    ``inputs`` and ``outputs`` are the tensors that cross its border, each in first-use order; an op's
    output that nobody outside reads, and that is no graph output, is not among them.
    """

    graph: ModelGraph
    ops: tuple[Op, ...]

    @property
    def id(self) -> str:
        """The id of its last op: the tensor it is known by."""
        return self.ops[-1].id

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors it reads from outside."""
        own = {name for op in self.ops for name in op.outputs}
        return tuple(dict.fromkeys(name for op in self.ops for name in op.inputs if name not in own))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the tensors that others read, graph outputs included."""
        own, last = {op.id for op in self.ops}, self.graph.kept
        return tuple(
            name
            for op in self.ops
            for name in op.outputs
            if name in last or any(reader not in own for reader in self.graph.consumers.get(name, ()))
        )

    @cached_property
    def signature(self) -> str:
        """What a latency belongs to: types, attributes, shapes and dtypes, free of names.

        Readable types first, then 16 hexadecimal digits of a SHA-256, e.g. ``Conv+Relu:0f3a...``. Two
        super-ops of two models with the same signature cost the same on the same processor.
        """
        place: dict[str, int] = {name: index for index, name in enumerate(self.inputs)}
        rows = []
        for op in self.ops:
            reads = [place[name] for name in op.inputs]
            for name in op.outputs:
                place[name] = len(place)
            rows.append(
                [op.type, op.attributes, reads, [str(p) for p in op.parameters], [place[o] for o in op.outputs]]
            )
        types = [str(self.graph.tensor[name]) for name in place]
        text = "+".join(op.type.rsplit(":", 1)[-1] for op in self.ops)
        return f"{text[:96]}:{digest([rows, types])[:16]}"

    def types(self, names: tuple[str, ...]) -> tuple[TensorType, ...]:
        """Shapes and dtypes of the named tensors of its graph."""
        return tuple(self.graph.tensor[name].type for name in names)


_OF_RECIPE = re.compile(r"(.+)/(0|[1-9][0-9]{0,2})")


def by_recipe(signature: str, recipe: int | None) -> str:
    """The signature of a super-op by one of its recipes, e.g. ``Conv+Relu:0f3a.../2``; its own for None."""
    return signature if recipe is None else f"{signature}/{recipe}"


def recipe_of(signature: str) -> tuple[str, int | None]:
    """A super-op's own signature, and the recipe that a signature is of: one that a ``Step`` may have."""
    match = _OF_RECIPE.fullmatch(signature)
    return (match[1], int(match[2])) if match else (signature, None)


def merge(graph: ModelGraph) -> tuple[SuperOp, ...]:
    """Merge a graph into super-ops, in topological order.

    An op takes in what stands before it where it alone reads that, no graph output is among what is read, and

    * it is a follower, a free one or a fused one of an anchor, and reads nothing else;
    * it takes in the Pad before it, and reads nothing else;
    * what stands before it only dequantises for it; of several such it takes in all;
    * it quantises what stands before it.

    The quotient graph stays acyclic: of what is taken in nobody else reads anything, so no path leaves it but by way
    of the op, and what it reads itself is read before. A graph is merged once, and keeps the result as it keeps its
    other views: whoever plans, measures or explains a network asks again.
    """
    found: tuple[SuperOp, ...] = vars(graph).get("super_ops", ())
    if not found or found[0].graph is not graph:  # a changed copy takes along what was kept
        found = vars(graph)["super_ops"] = _merged(graph)
    return found


def _merged(graph: ModelGraph) -> tuple[SuperOp, ...]:
    groups: dict[str, _Group] = {}
    home: dict[str, str] = {}
    """The first op of the group that an op was put into; where that group was taken in, its first op leads on."""

    def alone(name: str, op: Op) -> _Group | None:
        """The group that ends in a tensor which this op alone reads."""
        group = groups.get(_root(home, graph.producer.get(name, "")))
        if group is None or name in graph.kept or graph.consumers[name] != (op.id,):
            return None
        return group if group.ops[-1].outputs == (name,) else None

    for op in graph.topological_ops:
        before = {name: ready for name in dict.fromkeys(op.inputs) if (ready := alone(name, op))}
        only = {DEQUANTISE} if op.type not in (QUANTISE, DEQUANTISE) else set()
        taken = [ready for ready in before.values() if ready.types == only]
        if len(set(op.inputs)) == 1 and before and not taken:
            taken = [ready for ready in before.values() if _follows(op, ready)]
        first = taken[0].ops[0].id if taken else op.id
        group = groups.setdefault(first, _Group())
        for other in taken[1:]:
            home[other.ops[0].id] = first
            group.take(groups.pop(other.ops[0].id))
        group.add(op)
        home[op.id] = first
    return tuple(SuperOp(graph=graph, ops=tuple(ops)) for ops in _in_order(graph, groups))


class _Group:
    """Ops merged so far, and their types: a merge looks at these, however many ops there are."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.types: set[str] = set()

    def add(self, op: Op) -> None:
        self.ops.append(op)
        self.types.add(op.type)

    def take(self, other: _Group) -> None:
        self.ops += other.ops
        self.types |= other.types


def _root(home: dict[str, str], op: str) -> str:
    """The first op of the group that an op is in, halving the way there."""
    while (first := home.get(op, op)) != op:
        home[op] = op = home.get(first, first)
    return op


def _follows(op: Op, group: _Group) -> bool:
    """Whether an op that reads nothing but what a group leaves behind is merged into it."""
    if op.type in FREE_FOLLOWERS:
        return True
    if op.type in FUSED_FOLLOWERS:
        return not group.types.isdisjoint(ANCHORS)
    if op.type == QUANTISE:
        return len(group.ops) > 1 or group.types != {DEQUANTISE}
    return op.type in LED and group.types == {"Pad"}


def _in_order(graph: ModelGraph, groups: dict[str, _Group]) -> list[list[Op]]:
    """The groups, each where its last op stands: what it reads is computed by then, as it reads no group behind it."""
    last = {group.ops[-1].id: group.ops for group in groups.values()}
    return [last[op.id] for op in graph.topological_ops if op.id in last]

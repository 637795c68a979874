"""What a tensor is for: data, or a size, a count, an axis, an index, a divisor ... found by where it goes in the graph.

A network computes with its data whatever they are. Of the rest a random value makes nonsense, which runtimes refuse, or
crash at: a TopK of 0, sizes that do not add up, a division by zero.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

import onnx
from onnx import helper

from agent_sdk.model.nodes import nested, subgraphs, type_of

Purpose: TypeAlias = Literal[
    "parts",  # sizes that together make up ``dims[0]``
    "shape",  # of as many elements as there are in ``dims``
    "sizes",  # of something new, or to which ``dims`` are broadcast
    "count",  # of what there are ``dims[0]``
    "axes",  # of a tensor of shape ``dims``
    "rows",  # positions, each told by as many numbers as its last dimension has, in a tensor of shape ``dims``
    "indices",  # positions below ``dims[0]``
    "starts",
    "ends",
    "depth",
    "rate",  # at least 0, below 1
    "divisor",
    "scale",  # above 0
    "step",
    "limit",
    "nothing",  # 0 is always legal, and other values rarely
]
"""What a tensor is for, the most demanding purpose first."""

PURPOSES: Final[tuple[str, ...]] = get_args(Purpose)
Dims: TypeAlias = tuple[int, ...]
Shapes: TypeAlias = Mapping[str, Dims]

PASSING: Final = frozenset(
    {"Cast", "CastLike", "Identity", "Reshape", "Unsqueeze", "Squeeze", "Flatten", "Transpose"}
) | {"Expand", "Gather", "Slice", "Split", "Concat", "Tile", "ReduceMax", "ReduceMin", "Dropout"}
"""Ops that hand on what their first input holds, or all of theirs: ``Concat``."""
PARTIAL: Final = frozenset({"Concat", "Gather", "Slice", "Split", "Squeeze", "ReduceMax", "ReduceMin"})
"""Those of them that hand on a piece, or make it one."""
ARITHMETIC: Final = frozenset({"Add", "Sub", "Mul", "Neg", "Abs", "Min", "Max", "Floor", "Ceil", "Round", "Where"})
"""Ops that hand on whole numbers, about: what makes a size is a size, but what makes data is often no divisor."""


class Use(NamedTuple):
    """What some op takes a tensor for.

    Attributes:
        dims: of what; empty where that is not known.
        whole: whether the op reads all of the tensor and nothing else, in its order.
        axis: along which ``indices`` may not repeat, because what they say is written there; None where they may.
        offset: what the graph adds to the tensor before.
    """

    purpose: Purpose
    dims: Dims = ()
    whole: bool = True
    axis: int | None = None
    offset: int = 0


@dataclass(frozen=True)
class _Read:
    """A node's input, and what is known around it."""

    node: onnx.NodeProto
    shapes: Shapes

    @property
    def dims(self) -> Dims:
        """The shape of the node's first input; empty where that is not known."""
        return self.shapes.get(self.node.input[0], ()) if self.node.input else ()

    def attribute(self, name: str, default: int) -> int:
        found = next((one for one in self.node.attribute if one.name == name), None)
        return int(helper.get_attribute_value(found)) if found is not None else default

    def along(self, default: int = 0) -> Dims:
        """The size of the first input along the node's axis."""
        dims, axis = self.dims, self.attribute("axis", default)
        return (dims[axis],) if -len(dims) <= axis < len(dims) else ()


Maker: TypeAlias = Callable[[_Read], Use]


def _on(purpose: Purpose) -> Maker:
    return lambda read: Use(purpose, read.dims)


def _along(purpose: Purpose, axis: int = 0) -> Maker:
    return lambda read: Use(purpose, read.along(axis))


def _just(purpose: Purpose) -> Maker:
    return lambda _: Use(purpose)


def _first(purpose: Purpose) -> Maker:
    return lambda read: Use(purpose, read.dims[:1])


def _written(read: _Read) -> Use:
    return Use("indices", read.along(), axis=read.attribute("axis", 0))


def _inner(read: _Read) -> Use:
    return Use("rows", read.dims[read.attribute("batch_dims", 0) :])


def _bits(read: _Read) -> Use:
    return Use("indices", (8,))


_REDUCED: Final = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_USES: Final[dict[str, Mapping[int, Maker]]] = {
    "TopK": {1: _along("count", -1)},
    "Split": {1: _along("parts")},
    "SplitToSequence": {1: _along("parts")},
    "Range": {0: _just("nothing"), 1: _just("limit"), 2: _just("step")},
    "Expand": {1: _on("sizes")},
    "Reshape": {1: _on("shape")},
    "Tile": {1: _just("step")},
    "Pad": {1: _just("nothing"), 3: _on("axes")},
    "OneHot": {0: _just("indices"), 1: _just("depth")},
    "Slice": {1: _just("starts"), 2: _just("ends"), 3: _on("axes"), 4: _just("step")},
    "Resize": {1: _just("nothing"), 2: _just("scale"), 3: _on("shape")},
    "Upsample": {1: _just("step")},
    "Gather": {1: _along("indices")},
    "GatherElements": {1: _along("indices")},
    "GatherND": {1: _inner},
    "ScatterElements": {1: _written},
    "Scatter": {1: _written},
    "ScatterND": {1: _on("rows")},
    "Div": {1: _just("divisor")},
    "Mod": {1: _just("divisor")},
    "BitShift": {1: _bits},
    "Pow": {1: _just("depth")},
    "ConstantOfShape": {0: _just("sizes")},
    "Squeeze": {1: _on("axes")},
    "Unsqueeze": {1: lambda read: Use("axes", (1,) * 16)},
    "CumSum": {1: _on("axes")},
    "QuantizeLinear": {1: _just("scale")},
    "DequantizeLinear": {1: _just("scale")},
    "QLinearConv": {1: _just("scale"), 4: _just("scale"), 6: _just("scale")},
    "QLinearMatMul": {1: _just("scale"), 4: _just("scale"), 6: _just("scale")},
    "Trilu": {1: _just("nothing")},
    "ReverseSequence": {1: lambda read: Use("count", read.dims[read.attribute("time_axis", 0) :][:1])},
    "LSTM": {4: _first("count")},
    "GRU": {4: _first("count")},
    "RNN": {4: _first("count")},
    "Dropout": {1: _just("rate")},
    "NonMaxSuppression": {2: _just("step"), 3: _just("rate"), 4: _just("rate")},
    "Loop": {0: _just("step")},
    "SequenceAt": {1: _just("nothing")},
    "SequenceInsert": {2: _just("nothing")},
    "SequenceErase": {1: _just("nothing")},
    "RoiAlign": {2: _first("indices")},
    "MaxUnpool": {1: lambda read: Use("indices", (math.prod(read.dims),), axis=-1), 2: _on("shape")},
    "CenterCropPad": {1: _on("shape")},
    "DFT": {1: _just("step"), 2: _on("axes")},
    "STFT": {1: _just("step"), 3: _just("step")},
    "HannWindow": {0: _just("limit")},
    "HammingWindow": {0: _just("limit")},
    "BlackmanWindow": {0: _just("limit")},
    "BatchNormalization": {4: _just("scale")},
    "Bernoulli": {0: _just("rate")},
    **{f"Reduce{kind}": {1: _on("axes")} for kind in _REDUCED},
}
"""By operator and input, what that takes it for."""


class Roles:
    """What tensors of a graph are for.

    Args:
        nodes: the graph's, in any order.
        shapes: of its tensors, as far as they are known.
        constants: one whole number each.
    """

    def __init__(self, nodes: Iterable[onnx.NodeProto], shapes: Shapes, constants: Mapping[str, int]) -> None:
        self._shapes, self._constants = shapes, constants
        self._readers: dict[str, list[tuple[onnx.NodeProto, int]]] = defaultdict(list)
        self._inside: dict[str, list[str]] = defaultdict(list)
        for node in nested(nodes):
            for index, name in enumerate(node.input):
                if name:
                    self._readers[name].append((node, index))
            for graph in subgraphs(node):
                for outer, inner in zip(reversed(node.input), reversed(graph.input), strict=False):
                    self._inside[outer].append(inner.name)

    def of(self, name: str, *, integer: bool) -> list[Use]:
        """What a tensor is for, the most demanding first; nothing where it is data."""
        found = dict.fromkeys(self._uses(name, integer))
        return sorted(found, key=lambda use: (PURPOSES.index(use.purpose), not use.dims, not use.whole, use.dims))

    def _uses(self, name: str, integer: bool) -> Iterator[Use]:
        seen = {(name, True, integer, 0)}
        left = list(seen)
        for tensor, whole, whole_numbers, offset in left:
            following = [(inner, whole, whole_numbers, offset) for inner in self._inside.get(tensor, ())]
            for node, index in self._readers.get(tensor, ()):
                kind = type_of(node)
                makers = _USES.get(kind, {})
                if index in makers:
                    yield makers[index](_Read(node, self._shapes))._replace(whole=whole, offset=offset)
                if kind in PASSING and (index == 0 or kind == "Concat"):
                    cast = kind in ("Cast", "CastLike")
                    handed = (whole and kind not in PARTIAL, whole_numbers or cast, offset)
                    following += [(made, *handed) for made in node.output]
                elif kind in ARITHMETIC and whole_numbers:
                    added = self._added(node, index)
                    handed = (whole and added is not None, True, offset + (added or 0))
                    following += [(made, *handed) for made in node.output]
            for reached in following:
                if reached[0] and reached not in seen:
                    seen.add(reached)
                    left.append(reached)

    def _added(self, node: onnx.NodeProto, index: int) -> int | None:
        """The constant that a node adds to one of its inputs; None where it does something else."""
        other = self._constants.get(node.input[1 - index]) if node.op_type in ("Add", "Sub") else None
        if other is None or (node.op_type == "Sub" and index == 1):
            return None
        return other if node.op_type == "Add" else -other

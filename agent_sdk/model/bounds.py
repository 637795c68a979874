"""What a graph says of the values that its ops read: which whole numbers and indices nothing in it bounds.

Runtimes mean the same by ordinary numbers and differ beyond: some compute whole numbers of 64 bits in fewer, some read
what lies behind a table. So an op is marked, in the attribute ``OPEN``, where it reads indices or whole numbers that
neither the graph nor a look at the feed bounds; and the guard is what a feed is looked at for.
"""

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final, NamedTuple

import numpy as np
import onnx
from onnx import numpy_helper

from agent_sdk import native
from agent_sdk.model.nodes import op_id, type_of
from agent_sdk.model.springs import Springs
from agent_sdk.tensors import TorchTensor, array_of, within
from hope_schema import TensorType
from hope_schema.graph import SPRING

FREE: Final = "indices"
"""An index may lie outside of what it picks from, or a size depends on data."""
WIDE: Final = "wide"
"""Whole numbers may be larger than ``NARROW``."""
NARROW: Final = 2**24
"""Up to here float32 holds every whole number."""
ORDINARY: Final = 2.0**63
"""Up to here squares of float32 stay finite."""
FLOATS: Final = frozenset({"float16", "bfloat16", "float32"})
LONG: Final = frozenset({"int64", "uint64"})
WORDS: Final = frozenset({"int32", "uint32"})
SHORT: Final = frozenset({"int8", "uint8", "int16", "uint16"})
WHOLE: Final = LONG | WORDS | SHORT | {"bool"}

MOVES: Final = frozenset(
    {"Identity", "Dropout", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Expand"}
    | {"Tile", "Concat", "Gather", "GatherElements", "GatherND", "DepthToSpace", "SpaceToDepth"}
)
"""Ops that make nothing but elements of what they read."""
KEEPS: Final = MOVES | {"Cast", "Where", "Pad", "ScatterElements", "ScatterND"}
"""Ops that hold whole numbers as they are."""
TESTS: Final = frozenset(["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "OneHot"])
"""Ops that compare whole numbers."""
INDICES: Final[Mapping[str, int]] = dict.fromkeys(
    ("Gather", "GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"), 1
)
"""Which input holds indices."""
SIZES: Final[Mapping[str, tuple[int, ...]]] = {
    "ConstantOfShape": (0,), "CumSum": (1,), "Expand": (1,), "OneHot": (1,), "Pad": (1, 3), "Range": (0, 1, 2),
    "ReduceL1": (1,), "ReduceL2": (1,), "ReduceLogSum": (1,), "ReduceLogSumExp": (1,), "ReduceMax": (1,),
    "ReduceMean": (1,), "ReduceMin": (1,), "ReduceProd": (1,), "ReduceSum": (1,), "ReduceSumSquare": (1,),
    "Reshape": (1,), "Resize": (1, 2, 3), "Slice": (1, 2, 3, 4), "Split": (1,), "Squeeze": (1,), "Tile": (1,),
    "TopK": (1,), "Trilu": (1,), "Unsqueeze": (1,), "Upsample": (1,),
}  # fmt: skip
"""Which inputs say how large something is, or which axes are meant."""


class Held(NamedTuple):
    """What the elements of a tensor of whole numbers can be: those of graph inputs, or within bounds, ends included."""

    inputs: frozenset[str]
    low: int
    high: int


@dataclass(frozen=True)
class Guard:
    """What must hold of a feed, and of an answer, for a runtime other than ONNX Runtime to be believed.

    Attributes:
        whole: bounds of inputs of whole numbers, ends included.
        floats: inputs of floats, which have to be ordinary: finite, and at most ``ORDINARY``.
    """

    whole: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    floats: tuple[str, ...] = ()

    def admits(self, feed: Mapping[str, object]) -> bool:
        """Whether a feed is ordinary. What is missing in it is not looked at: it is refused."""
        return self.bounds(feed) and self.finite(feed)

    def finite(self, feed: Mapping[str, object]) -> bool:
        """Whether its floats are ordinary, and are given as numbers: None in a list means NaN, as text may."""
        given = [feed[name] for name in self.floats if name in feed]
        numbers = [one if isinstance(one, TorchTensor) else array_of(one) for one in given]
        known = [one for one in numbers if one is not None]
        return len(known) == len(numbers) and ordinary(*known)

    def bounds(self, feed: Mapping[str, object]) -> bool:
        """Whether its whole numbers lie within their bounds, and are given as numbers."""
        for name, (low, high) in self.whole.items():
            if name not in feed:
                continue
            array = array_of(feed[name])
            if array is None or (array.size and not (low <= array.min() and array.max() <= high)):
                return False
        return True


SEEN: Final = frozenset(map(np.dtype, ("float16", "float32", "float64")))
"""Floats that the native library knows."""


def ordinary(*given: np.ndarray | TorchTensor) -> bool:
    """Whether all floats in arrays, and in tensors, are finite, and none exceeds ``ORDINARY``; other types are."""
    floats = [one for one in given if one.dtype.kind == "f"]
    tensors = [one for one in floats if isinstance(one, TorchTensor)]
    return all(_ordinary(one) for one in floats if isinstance(one, np.ndarray)) and within(tensors, ORDINARY)


def _ordinary(array: np.ndarray) -> bool:
    if not array.size:
        return True
    library = _library()
    if library is not None and array.dtype in SEEN and array.flags.c_contiguous:
        return bool(library.hope_ordinary(array.ctypes.data, array.size, array.itemsize))
    return float(array.min()) >= -ORDINARY and float(array.max()) <= ORDINARY


@cache
def _library() -> ctypes.CDLL | None:
    return native.library()


def bounded(
    nodes: Iterable[onnx.NodeProto],
    constants: Mapping[str, onnx.TensorProto],
    types: Mapping[str, TensorType],
    inputs: Iterable[str],
) -> tuple[dict[str, str], Guard]:
    """The marks of ops by id, of nodes in topological order, and what their feed is to be looked at for."""
    constants = {name: tensor for name, tensor in constants.items() if name in types}  # text has no bounds
    found = _Bounds(constants, types, {name: types[name] for name in inputs})
    springs = Springs(constants, types)
    marks: dict[str, str] = {}
    for node in nodes:
        open_ = found.marks(node) | ({SPRING} if springs.hides(node) else set())
        if open_:
            marks[op_id(node)] = ",".join(sorted(open_))
    floats = tuple(name for name, kind in found.inputs.items() if kind.dtype in FLOATS)
    return marks, Guard({name: (low, high) for name, (low, high) in found.guard.items()}, floats)


@dataclass
class _Bounds:
    """One pass over the nodes of a graph."""

    constants: Mapping[str, onnx.TensorProto]
    types: Mapping[str, TensorType]
    inputs: Mapping[str, TensorType]
    guard: dict[str, tuple[int, int]] = field(default_factory=dict)
    held: dict[str, Held | None] = field(default_factory=dict)

    def marks(self, node: onnx.NodeProto) -> set[str]:
        """What nothing bounds of what a node reads."""
        kind, marks = type_of(node), set[str]()
        sizes, index = SIZES.get(kind, ()), INDICES.get(kind)
        for place, name in enumerate(node.input):
            if not name:
                continue
            if place == index:
                marks |= set() if self._picks(node, name) else {FREE}
            elif place in sizes:
                marks |= set() if name in self.constants else {FREE}
            elif self._reads_wide(kind, name):
                marks.add(WIDE)
        self._keep(node, kind, sizes, index)
        return marks

    def _picks(self, node: onnx.NodeProto, name: str) -> bool:
        """Whether indices stay inside what they pick from, at the latest after a look at the feed."""
        table = self.types.get(node.input[0])
        if table is None or not table.shape:
            return False
        axis = next((one.i for one in node.attribute if one.name == "axis"), 0)
        if node.op_type.endswith("ND"):
            batch = next((one.i for one in node.attribute if one.name == "batch_dims"), 0)
            picked = self.types.get(name)
            depth = picked.shape[-1] if picked is not None and picked.shape else 0
            lengths = table.shape[batch : batch + depth]
        else:
            lengths = (table.shape[axis],) if -len(table.shape) <= axis < len(table.shape) else ()
        return bool(lengths) and self._within(name, -min(lengths), min(lengths) - 1)

    def _reads_wide(self, kind: str, name: str) -> bool:
        """Whether an op that means the same of small whole numbers in any type reads some that may be large."""
        dtype = self._dtype(name)
        limited = LONG if kind in KEEPS else LONG | WORDS if kind in TESTS else frozenset()
        return dtype in limited and not self._within(name, -NARROW, NARROW)

    def _within(self, name: str, low: int, high: int) -> bool:
        """Whether a tensor's elements lie within bounds, which those of graph inputs are looked at for."""
        held = self._held(name)
        if held is None or (held.low <= held.high and not (low <= held.low and held.high <= high)):
            return False
        for source in held.inputs:
            before = self.guard.get(source, (low, high))
            self.guard[source] = (max(low, before[0]), min(high, before[1]))
        return True

    def _held(self, name: str) -> Held | None:
        """What is known of the elements of a tensor of whole numbers; None where that is nothing."""
        if name not in self.held:
            self.held[name] = self._begun(name)
        return self.held[name]

    def _begun(self, name: str) -> Held | None:
        dtype = self._dtype(name)
        if name in self.constants:
            values = numpy_helper.to_array(self.constants[name])
            if values.dtype.kind not in "biu":
                return None
            return Held(frozenset(), int(values.min()), int(values.max())) if values.size else NOTHING
        if dtype == "bool":
            return Held(frozenset(), 0, 1)
        if dtype in SHORT:
            ends = np.iinfo(dtype)
            return Held(frozenset(), int(ends.min), int(ends.max))
        return Held(frozenset({name}), 0, -1) if name in self.inputs else None

    def _keep(self, node: onnx.NodeProto, kind: str, sizes: tuple[int, ...], index: int | None) -> None:
        """Take note of what a node's outputs hold, where that is known."""
        made: Held | None = None
        if kind in ("ArgMax", "ArgMin"):
            source = self.types.get(node.input[0])
            made = Held(frozenset(), 0, max(source.shape, default=1) - 1) if source is not None else None
        elif kind in MOVES or kind in ("Cast", "Where"):
            first = 1 if kind == "Where" else 0
            aside = {*sizes, index}
            moved = [name for place, name in enumerate(node.input) if name and place >= first and place not in aside]
            if kind == "Dropout":
                moved = moved[:1]
            if all(self._dtype(name) in WHOLE for name in moved):
                made = _joined([self._held(name) for name in moved])
        if made is not None:
            for name in node.output:
                if self._dtype(name) in ("int32", "int64"):
                    self.held[name] = made

    def _dtype(self, name: str) -> str:
        kind = self.types.get(name)
        return kind.dtype if kind is not None else ""


NOTHING: Final = Held(frozenset(), 0, -1)
"""No elements."""


def _joined(parts: list[Held | None]) -> Held | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not known:
        return None
    bounds = [part for part in known if part.low <= part.high]
    low = min((part.low for part in bounds), default=0)
    high = max((part.high for part in bounds), default=-1)
    return Held(frozenset().union(*(part.inputs for part in known)), low, high)

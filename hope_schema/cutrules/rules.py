"""From the rules of single ops to parts of super-ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hope_schema.base import MAX_NAME
from hope_schema.cutrules import places, windows
from hope_schema.cutrules.view import MisalignedError, Rule, View
from hope_schema.cutting import CutError, Region, Span
from hope_schema.graph import SPRING, AttributeValue, ModelGraph, Op
from hope_schema.superop import SuperOp


@dataclass(frozen=True)
class PartOp:
    """One op of a part.

    Attributes:
        reads: per entry of ``Op.inputs`` what is read of it; None is all.
        parameters: the same per entry of ``Op.parameters``.
        attributes: all of the part's attributes; those equal to their default are left out.
    """

    reads: tuple[Region | None, ...]
    parameters: tuple[Region | None, ...]
    attributes: dict[str, AttributeValue]


def part_of(graph: ModelGraph, op: Op, region: Region) -> PartOp:
    """The op that makes a region of ``op``'s only output. Raises CutError."""
    if len(op.outputs) > 1:
        raise CutError(f"{op.type} has {len(op.outputs)} outputs")
    shape = graph.tensor[op.id].shape
    rule = RULES.get(op.type)
    if rule is None:
        raise CutError(f"no rule says how {op.type} is cut")
    if op.type in LARGEST and SPRING in op.marks:
        raise CutError(f"{op.type} may hide what is no number, of which parts make something else")
    view = View(graph, op)
    found: list[dict[int, Span]] = [{} for _ in range(view.operands)]
    for span in region.spans:
        if not 0 <= span.axis < len(shape):
            raise CutError(f"'{op.id}' has no axis {span.axis}")
        if not 0 <= span.start < span.stop <= shape[span.axis]:
            raise CutError(f"a part of '{op.id}' would be empty, or reach beyond it")
        try:
            part = rule(view, span)
            view.cut(span, part)
        except CutError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # Graphs come from strangers.
            raise CutError(f"{op.type} '{op.id[:80]}' has attributes or shapes that make no such op") from error
        for place, read in part.items():
            if read is not None and read.axis in found[place]:
                raise CutError(f"{op.type} cannot be cut along {region.axes}: both divide one axis of what it reads")
            if read is not None:
                found[place][read.axis] = read
    regions = [Region(tuple(spans[axis] for axis in sorted(spans))) if spans else None for spans in found]
    return PartOp(tuple(regions[: len(op.inputs)]), tuple(regions[len(op.inputs) :]), view.changed)


def reads(super_op: SuperOp, region: Region) -> dict[str, Region | None]:
    """What a part that makes a region of a super-op's output reads of each of its inputs; None is all.

    Raises CutError.
    """
    return {name: found for name, found in demands(super_op, region).items() if name in super_op.inputs}


def demands(super_op: SuperOp, region: Region) -> dict[str, Region | None]:
    """What a part of a super-op needs of every tensor that it reads or makes on the way; None is all.

    Raises CutError.
    """
    if super_op.outputs != super_op.ops[-1].outputs:
        raise CutError(f"'{super_op.id}' leaves more than one tensor behind")
    for name in (region.of(op.id) for op in super_op.ops):
        if len(name) > MAX_NAME or name in super_op.graph.tensor:
            raise CutError(f"'{super_op.id[:80]}' stays whole: '{name[:80]}' is too long a name, or another tensor's")
    wanted: dict[str, Region | None] = {super_op.id: region}
    for op in reversed(super_op.ops):
        here = wanted[op.id]
        found = (None,) * len(op.inputs) if here is None else part_of(super_op.graph, op, here).reads
        for name, read in zip(op.inputs, found, strict=True):
            if wanted.setdefault(name, read) != read:
                raise CutError(f"'{super_op.id}' reads different parts of '{name}'")
    return wanted


def granularity(super_op: SuperOp, axis: int) -> int:
    """Borders along an axis are multiples of this: groups stay whole, as does what a reshape keeps together.

    Raises CutError where the axis cannot be cut at all.
    """
    shape = super_op.graph.tensor[super_op.id].shape
    size = shape[axis] if axis < len(shape) else 0
    if size < 2:
        raise CutError(f"'{super_op.id}' has {size} along axis {axis}: a part would be empty")
    for step in range(1, size // 2 + 1):
        if size % step:
            continue
        try:
            demands(super_op, Region.along(axis, step, size))
        except MisalignedError:
            continue
        return step
    raise CutError(f"'{super_op.id}' is one group along axis {axis}")


LARGEST: Final = frozenset({"MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin"})
"""The larger or smaller of NaN and a number is either in ONNX Runtime's kernels, by where they stand and how many."""
RULES: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(places.ELEMENTWISE, places.elementwise),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), windows.pooled),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), places.reduced),
    **dict.fromkeys(
        ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
        places.reduced,
    ),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), places.before_axis(1)),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), places.before_axis(-1)),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), places.reshaped),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), places.scaled),
    **dict.fromkeys(("Resize", "Upsample"), windows.resized),
    "Conv": windows.convolved,
    "ConvTranspose": windows.deconvolved,
    "MatMul": places.matmul,
    "Gemm": places.gemm,
    "BatchNormalization": places.per_channel,
    "InstanceNormalization": places.instance,
    "LRN": places.beside_channels,
    "LpNormalization": places.beside_axis(-1),
    "Concat": places.beside_axis(1),
    "Pad": places.padded,
    "Transpose": places.transposed,
}
"""By type, what a part of it reads. Attributes that change, the rule puts into the view."""

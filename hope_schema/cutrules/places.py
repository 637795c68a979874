"""Rules for ops without windows: element by element, along an axis, matrix products, shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from hope_schema.cutrules.view import MisalignedError, Part, Rule, View
from hope_schema.cutting import CutError, Span

ELEMENTWISE: Final = frozenset({
    "Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "PRelu", "Elu", "Selu", "Celu",
    "Softplus", "Softsign", "Gelu", "Mish", "Swish", "ThresholdedRelu", "Exp", "Log", "Sqrt", "Abs", "Neg",
    "Reciprocal", "Floor", "Ceil", "Round", "Sign", "Sin", "Cos", "Erf", "Identity", "Cast", "Dropout", "Not",
    "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "Mod", "Where", "Equal", "Greater",
    "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor"
})  # fmt: skip
"""Types that compute every element of their output from those of the inputs that stand there."""


def elementwise(op: View, span: Span) -> Part:
    """Every operand is broadcast."""
    return _broadcast(op, span, range(op.operands))


def _broadcast(op: View, span: Span, places: Iterable[int]) -> Part:
    """Operands broadcast from the right: what has one index along the axis, or none, is read whole."""
    part: Part = {}
    for place in places:
        shape = op.shapes[place]
        axis = span.axis - len(op.output) + len(shape)
        if axis >= 0 and shape[axis] != 1:
            part[place] = span._replace(axis=axis)
    return part


def per_channel(op: View, span: Span) -> Part:
    """Input, then parameters with one entry per channel, or of an old operator set per element of a sample."""
    places = [place for place in range(1, op.operands) if 1 <= span.axis <= len(op.shapes[place])]
    return {0: span, **dict.fromkeys(places, span._replace(axis=span.axis - 1))}


def instance(op: View, span: Span) -> Part:
    """What normalises each channel by itself."""
    if span.axis > 1:
        raise CutError(f"{op.type} normalises over axis {span.axis}")
    return per_channel(op, span)


def before_axis(default: int) -> Rule:
    """What works on its axis and all behind it (a layer norm, a softmax of any operator set)."""

    def rule(op: View, span: Span) -> Part:
        if span.axis >= op.axis(default):
            raise CutError(f"{op.type} normalises over axis {span.axis}")
        return elementwise(op, span)

    return rule


def beside_axis(default: int) -> Rule:
    """What works on one axis alone; every operand has all of them."""

    def rule(op: View, span: Span) -> Part:
        if span.axis == op.axis(default):
            raise CutError(f"{op.type} works along axis {span.axis}")
        return dict.fromkeys(range(op.operands), span)

    return rule


def beside_channels(op: View, span: Span) -> Part:
    """What looks at neighbouring channels."""
    if span.axis == 1:
        raise CutError(f"{op.type} looks at neighbouring channels")
    return {0: span}


def scaled(op: View, span: Span) -> Part:
    """Quantisation: scale and zero point are scalars, or have one entry per index of an axis."""
    blocks = int(op.get("block_size", 0))
    if blocks:
        raise CutError(f"{op.type} scales blocks of {blocks}")
    along = span.axis == op.axis(1)
    entries = {
        place: Span(0, *span[1:])
        for place in range(1, op.operands)
        if along and len(op.shapes[place]) == 1 and op.shapes[place][0] == op.output[span.axis]
    }
    return {0: span, **entries}


def reduced(op: View, span: Span) -> Part:
    """An axis that is left with more than one index was not reduced; which axes were is seen by the shapes."""
    given = op.shapes[0]
    if len(given) == len(op.output):
        return {0: span}
    axes = op.get("axes", None)
    if axes is None:
        raise CutError(f"which axes {op.type} takes away stands in a constant")
    gone = {axis % len(given) for axis in axes}
    kept = [axis for axis in range(len(given)) if axis not in gone]
    return {0: span._replace(axis=kept[span.axis])}


def transposed(op: View, span: Span) -> Part:
    """The axis that ends up here."""
    perm = op.get("perm", tuple(reversed(range(len(op.output)))))
    return {0: span._replace(axis=int(perm[span.axis]))}


def reshaped(op: View, span: Span) -> Part:
    """The input's axis with the same number of elements before it; borders must fall on its indices."""
    if op.inputs > 1:
        raise CutError(f"{op.type} is told in the run what to make")
    given, made = op.shapes[0], op.output
    outer, inner = math.prod(made[: span.axis]), math.prod(made[span.axis + 1 :])
    for axis, size in enumerate(given):
        behind = math.prod(given[axis + 1 :])
        if size == 1 or math.prod(given[:axis]) != outer:
            continue
        if size * behind != made[span.axis] * inner:
            break  # one axis of the input becomes several, or the other way round, and this is not the outermost
        start, stop = span.start * inner, span.stop * inner
        if start % behind or stop % behind:
            raise MisalignedError(f"a border of '{op.op.id}' falls between two indices of what it reshapes")
        return {0: Span(axis, start // behind, stop // behind)}
    raise CutError(f"{op.type} mixes axis {span.axis} with others")


def padded(op: View, span: Span) -> Part:
    """Cut along axes that are not padded: how far the others are may stand in a constant, which planners lack."""
    pads = op.get("pads", ())[span.axis :: len(op.output)]
    same = len(op.shapes[0]) == len(op.output) and op.shapes[0][span.axis] == op.output[span.axis]
    if op.inputs > 1 or any(pads) or not same:
        raise CutError(f"{op.type} pads axis {span.axis}, or is told in the run how far")
    return {0: span}


def matmul(op: View, span: Span) -> Part:
    """A product of matrices, or of batches of them: rows of the left one, columns of the right one."""
    first, second = _factors(op, lambda a, b: _product(a, b) == op.output)
    rank = len(op.output)
    if span.axis == rank - 1:
        return {second: span._replace(axis=len(op.shapes[second]) - 1)}
    if span.axis == rank - 2:
        return {first: span._replace(axis=len(op.shapes[first]) - 2)}
    return _broadcast(op, span, (first, second))


def _product(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...] | None:
    """The shape of a matrix product; None where there is none, or vectors are involved."""
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return None
    rank = max(len(a), len(b)) - 2
    ones = [(1,) * (rank - len(batch)) + tuple(batch) for batch in (a[:-2], b[:-2])]
    return (*(max(pair) for pair in zip(*ones, strict=True)), a[-2], b[-1])


def gemm(op: View, span: Span) -> Part:
    """A product of two matrices, either of them transposed, and what is added to it."""
    turned = bool(op.get("transA", 0)), bool(op.get("transB", 0))

    def fits(a: Sequence[int], b: Sequence[int]) -> bool:
        if len(a) != 2 or len(b) != 2:
            return False
        left, right = (tuple(reversed(s)) if turn else tuple(s) for s, turn in zip((a, b), turned, strict=True))
        return _product(left, right) == op.output

    first, second = _factors(op, fits)
    part = _broadcast(op, span, set(range(op.operands)) - {first, second})  # what is added
    if span.axis == 0:
        return part | {first: span._replace(axis=1 if turned[0] else 0)}
    return part | {second: span._replace(axis=0 if turned[1] else 1)}


def _factors(op: View, fits: Callable[[Sequence[int], Sequence[int]], bool]) -> tuple[int, int]:
    """Which operands are multiplied, left and right; a constant's place among the inputs is seen by the shapes."""
    inputs, constants = range(op.inputs), range(op.inputs, op.operands)
    pairs = [(a, b) for a in inputs for b in inputs if a < b and (op.type != "Gemm" or (a, b) == (0, 1))]
    pairs += [pair for constant in constants[:1] for pair in ((0, constant), (constant, 0))]
    found = [(a, b) for a, b in pairs if fits(op.shapes[a], op.shapes[b])]
    if len(found) != 1:
        raise CutError(f"{op.type}: which of its factors comes first cannot be told")
    return found[0]

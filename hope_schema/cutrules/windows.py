"""Rules for ops that slide windows over an image: convolution, transposed too, pooling, resizing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hope_schema.cutrules.view import MisalignedError, Part, View
from hope_schema.cutting import CutError, Span


@dataclass(frozen=True)
class _Window:
    """A window's way along one axis: its extent with dilation, its stride, the padding before and behind the image."""

    extent: int
    stride: int
    before: int
    behind: int


def _windows(op: View, kernel: Sequence[int], given: Sequence[int], made: Sequence[int]) -> list[_Window]:
    """The windows along each spatial axis, automatic padding resolved."""
    count = len(kernel)
    strides = op.get("strides", (1,) * count)
    dilations = op.get("dilations", (1,) * count)
    pads = list(op.get("pads", (0,) * 2 * count))
    auto = op.get("auto_pad", "NOTSET")
    if op.get("storage_order", 0):
        raise CutError(f"{op.type} counts columns first")
    found = []
    for place in range(count):
        extent = (int(kernel[place]) - 1) * int(dilations[place]) + 1
        before, behind = int(pads[place]), int(pads[place + count])
        if auto == "VALID":
            before = behind = 0
        elif auto in ("SAME_UPPER", "SAME_LOWER"):
            total = max(0, (made[place] - 1) * int(strides[place]) + extent - given[place])
            before = total // 2 if auto == "SAME_UPPER" else total - total // 2
            behind = total - before
        found.append(_Window(extent, int(strides[place]), before, behind))
    return found


def _rows(op: View, window: _Window, span: Span, size: int) -> tuple[Span, int, int]:
    """The indices that a span's windows cover within an image of ``size``, and the padding left on either side.

    D3's reverse tile calculation (Zhang et al. 2021, section III-F): padding stays only where the image ends.
    """
    first = span.start * window.stride - window.before
    last = (span.stop - 1) * window.stride - window.before + window.extent
    before, behind = max(0, -first), max(0, last - size)
    inside = Span(span.axis, max(0, first), min(size, last))
    if inside.start >= inside.stop or before >= window.extent or behind >= window.extent:
        raise CutError(f"{op.type}: a window would see nothing but padding")
    if window.extent > inside.stop - inside.start:
        raise CutError(f"{op.type}: its window of {window.extent} is larger than the part")
    return inside, before, behind


def _put_pads(op: View, before: Sequence[int], behind: Sequence[int]) -> None:
    op.changed.pop("auto_pad", None)
    op.put("pads", (*before, *behind), (0,) * 2 * len(before))


def pooled(op: View, span: Span) -> Part:
    """Pooling: channels are independent; windows that only a rounded-up size lets in are padded for."""
    given, made = op.shapes[0][2:], op.output[2:]
    if span.axis < 2:
        return {0: span}
    kernel = op.get("kernel_shape", given)
    windows = _windows(op, kernel, given, made)
    if op.get("auto_pad", "").startswith("SAME") and any(one > 1 for one in op.get("dilations", ())):
        raise CutError(f"{op.type} pads by itself for windows with gaps, which runtimes leave out of count")
    counts = op.type == "AveragePool" and bool(op.get("count_include_pad", 0))
    before = [window.before for window in windows]
    behind = [
        max(window.behind, (out - 1) * window.stride - window.before + window.extent - size)
        for window, size, out in zip(windows, given, made, strict=True)
    ]
    if counts and behind != [window.behind for window in windows]:
        raise CutError(f"{op.type} counts padding but not what rounding up the size adds to it")
    place = span.axis - 2
    inside, before[place], behind[place] = _rows(op, windows[place], span, given[place])
    if any(pad >= size for pad, size in zip((*before, *behind), (*kernel, *kernel), strict=True)):
        raise CutError(f"{op.type} would be padded by a whole window, which runtimes refuse")
    op.changed.pop("ceil_mode", None)
    _put_pads(op, before, behind)
    return {0: inside}


def _weights(op: View) -> tuple[int, int | None]:
    """The operands that are a convolution's weights and its bias, computed or constant."""
    if op.inputs > 1 and len(op.shapes[1]) > 1:
        return 1, 2 if op.operands > 2 else None
    if op.operands == op.inputs:
        raise CutError(f"{op.type} has no weights")
    bias = 1 if op.inputs > 1 else op.inputs + 1
    return op.inputs, bias if op.operands > 2 else None


def _grouped(op: View, span: Span, groups: int) -> tuple[Span, int]:
    """The input channels behind whole groups of output channels, and how many groups these are."""
    size = op.output[1] // groups
    if span.start % size or span.stop % size:
        raise MisalignedError(f"{op.type} has groups of {size} channels: a border would fall inside one")
    first, last = span.start // size, span.stop // size
    each = op.shapes[0][1] // groups
    return Span(1, first * each, last * each), last - first


def convolved(op: View, span: Span) -> Part:
    """A convolution: channels with their weights, in whole groups; rows with what their windows cover."""
    weights, bias = _weights(op)
    groups = int(op.get("group", 1))
    if span.axis == 0:
        return {0: span}
    if span.axis == 1:
        channels = Span(0, *span[1:])
        part: Part = {weights: channels}
        if bias is not None:
            part[bias] = channels
        if groups > 1:
            part[0], count = _grouped(op, span, groups)
            op.put("group", count, 1)
        return part
    given, made = op.shapes[0][2:], op.output[2:]
    windows = _windows(op, op.shapes[weights][2:], given, made)
    before, behind = [window.before for window in windows], [window.behind for window in windows]
    place = span.axis - 2
    inside, before[place], behind[place] = _rows(op, windows[place], span, given[place])
    _put_pads(op, before, behind)
    return {0: inside}


def deconvolved(op: View, span: Span) -> Part:
    """A transposed convolution: out = in S - P + k D, so a span of the output is reached from few indices.

    Pads cut off what the part's first and last windows make beyond the span; where no window reaches its end,
    output padding makes up for it.
    """
    weights, bias = _weights(op)
    groups = int(op.get("group", 1))
    if span.axis == 0:
        return {0: span}
    if span.axis == 1:
        part: Part = {bias: Span(0, *span[1:])} if bias is not None else {}
        if groups == 1:
            return part | {weights: span}
        channels, count = _grouped(op, span, groups)
        op.put("group", count, 1)
        return part | {0: channels, weights: channels._replace(axis=0)}
    given, made = op.shapes[0][2:], op.output[2:]
    count = len(given)
    strides, extra = op.get("strides", (1,) * count), list(op.get("output_padding", (0,) * count))
    before, behind, extents = [], [], []
    pads, auto = op.get("pads", (0,) * 2 * count), op.get("auto_pad", "NOTSET")
    for at, kernel in enumerate(op.shapes[weights][2:]):
        extents.append((kernel - 1) * int(op.get("dilations", (1,) * count)[at]) + 1)
        total = int(strides[at]) * (given[at] - 1) + int(extra[at]) + extents[at] - made[at]
        half = total // 2 if auto == "SAME_UPPER" else total - total // 2
        before.append(half if auto.startswith("SAME") or "output_shape" in op.changed else int(pads[at]))
        behind.append(total - before[at])
    if min(before + behind) < 0:
        raise CutError(f"{op.type} makes more than its windows reach")
    at = span.axis - 2
    stride, extent, shift = int(strides[at]), extents[at], before[at]
    first = min(-(-(span.start + shift - extent + 1) // stride), (span.start + shift) // stride)
    first, last = max(0, first), min(given[at], (span.stop - 1 + shift) // stride + 1)
    before[at] = span.start - (first * stride - shift)
    beyond = (last - 1) * stride - shift + extent - span.stop
    behind[at], extra[at] = max(0, beyond), max(0, -beyond)
    if last <= first or extra[at] >= stride:
        raise CutError(f"{op.type}: no window reaches the part")
    op.changed.pop("output_shape", None)
    _put_pads(op, before, behind)
    op.put("output_padding", tuple(extra), (0,) * count)
    return {0: Span(span.axis, first, last)}


REPEATS: Final = frozenset(
    {("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil"), ("asymmetric", "floor")}
)
"""How coordinates and rounding make nearest neighbours a plain repetition, for whole factors."""


def resized(op: View, span: Span) -> Part:
    """What is not resized along the axis is cut anywhere; a repetition between two indices of the input.

    What is cropped is resized, whatever its size. Where it interpolates, neighbours count along axes that keep theirs,
    too: nothing times NaN is NaN. ONNX Runtime has only the first two of four or more axes apart.
    """
    if op.inputs > 1 or len(op.shapes[0]) != len(op.output):
        raise CutError(f"{op.type} is told in the run how far")
    size, made = op.shapes[0][span.axis], op.output[span.axis]
    if op.changed.keys() & {"axes", "keep_aspect_ratio_policy"}:
        raise CutError(f"{op.type} is told of some axes alone, or keeps an aspect")
    scales = op.get("scales", None)
    if scales is not None and scales[span.axis] * size != made:
        raise CutError(f"{op.type} enlarges axis {span.axis} by no whole factor")
    copies = op.get("mode", "nearest") == "nearest"
    rounding = op.get("coordinate_transformation_mode", "half_pixel"), op.get("nearest_mode", "round_prefer_floor")
    if size == made and "tf_crop_and_resize" not in rounding and (copies or (span.axis < 2 and len(op.output) > 3)):
        return {0: span}
    repeats = copies and (op.type == "Upsample" or rounding in REPEATS)
    if not repeats or made % size:
        raise CutError(f"{op.type} interpolates across the border")
    factor = made // size
    if span.start % factor or span.stop % factor:
        raise MisalignedError(f"{op.type} repeats every index {factor} times: a border would fall between them")
    return {0: Span(span.axis, span.start // factor, span.stop // factor)}

"""Ops that only move, repeat, pick or relabel elements. The graph's shapes are static: most are known beforehand."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from agent_sdk.runtimes.torch.node import Node
from agent_sdk.runtimes.torch.table.registry import Call, Constant, op


@op("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def _relabel(node: Node) -> Call:
    shape = node.result().shape
    return lambda x, *_: x.reshape(shape)


@op("Expand")
def _expand(node: Node) -> Call:
    shape = node.result().shape
    return lambda x, *_: x.expand(shape)


@op("Transpose")
def _transpose(node: Node) -> Call:
    order = node.get("perm") or list(reversed(range(len(node.shape()))))
    return lambda x: x.permute(order)


@op("Tile")
def _tile(node: Node) -> Call:
    times = node.argument(1, "repeats")
    return lambda x, *_: x.repeat(times)


@op("Concat")
def _concat(node: Node) -> Call:
    (axis,) = node.axes(node.get("axis", 1))
    return lambda *xs: torch.cat(xs, axis)


@op("Split")
def _split(node: Node) -> Call:
    (axis,) = node.axes(node.get("axis", 0))
    sizes = [node.result(index).shape[axis] for index in range(len(node.outputs))]
    return lambda x, *_: tuple(torch.split(x, sizes, axis))


@op("Slice")
def _slice(node: Node) -> Call:
    shape = node.shape()
    starts, ends = node.argument(1, "starts"), node.argument(2, "ends")
    axes = node.axes(node.argument(3, "axes", list(range(len(starts)))))
    steps = node.argument(4, "steps", [1] * len(starts))
    cuts: dict[int, slice] = {}
    back: dict[int, Constant] = {}
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        length = shape[axis]
        if step > 0:
            cuts[axis] = slice(*slice(start, end, step).indices(length))
        else:  # torch slices forwards only
            first = min(max(start + length if start < 0 else start, 0), length - 1)
            last = max(end + length if end < 0 else end, -1)
            back[axis] = Constant(torch.tensor(list(range(first, last, step)), dtype=torch.int64))
    index = tuple(cuts.get(axis, slice(None)) for axis in range(len(shape)))

    def call(x: Tensor, *_: Tensor) -> Tensor:
        x = x[index]
        for axis, picks in back.items():
            x = x.index_select(axis, picks.at(x.device))
        return x

    return call


@op("Gather")
def _gather(node: Node) -> Call:
    (axis,) = node.axes(node.get("axis", 0))
    length = node.shape()[axis]
    picks = node.constants.get(node.inputs[1])
    if picks is not None and picks.ndim == 0:
        at = int(picks) % length
        return lambda x, _: x.select(axis, at)

    def call(x: Tensor, indices: Tensor) -> Tensor:
        flat = indices.reshape(-1).to(torch.int64)
        flat = torch.where(flat < 0, flat + length, flat)
        picked = torch.index_select(x, axis, flat)
        return picked.reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])

    return call


@op("GatherElements")
def _gather_elements(node: Node) -> Call:
    (axis,) = node.axes(node.get("axis", 0))
    length = node.shape()[axis]
    return lambda x, at: torch.gather(x, axis, torch.where(at < 0, at + length, at).to(torch.int64))


@op("GatherND")
def _gather_nd(node: Node) -> Call:
    if node.get("batch_dims", 0):
        raise node.refuse("batch dimensions")
    return lambda x, at: x[tuple(at.to(torch.int64).unbind(-1))]


@op("ScatterElements")
def _scatter_elements(node: Node) -> Call:
    if node.get("reduction", "none") != "none":
        raise node.refuse("scattering with a reduction")
    (axis,) = node.axes(node.get("axis", 0))
    length = node.shape()[axis]
    return lambda x, at, new: x.scatter(axis, torch.where(at < 0, at + length, at).to(torch.int64), new)


@op("ScatterND")
def _scatter_nd(node: Node) -> Call:
    if node.get("reduction", "none") != "none":
        raise node.refuse("scattering with a reduction")
    return lambda x, at, new: x.index_put(tuple(at.to(torch.int64).unbind(-1)), new)


@op("Pad")
def _pad(node: Node) -> Call:
    mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}[
        node.get("mode", "constant")
    ]
    rank = len(node.shape())
    amounts = node.argument(1, "pads", node.get("paddings"))
    axes = node.axes(node.argument(3, "axes", list(range(rank)))) if node.has(3) else tuple(range(rank))
    pads = [(0, 0)] * rank
    for place, axis in enumerate(axes):
        pads[axis] = (int(amounts[place]), int(amounts[place + len(axes)]))
    while len(pads) > 1 and pads[0] == (0, 0):
        pads = pads[1:]
    flat = [amount for pair in reversed(pads) for amount in pair]
    given = node.constant(2)
    fill = float(node.get("value", 0.0) if given is None else given.item())
    if mode == "constant":
        return lambda x, *_: F.pad(x, flat, value=fill)
    if len(pads) > 3:
        raise node.refuse(f"padding {len(pads)} axes in mode {mode}")
    # In these modes torch wants a batch and channels before the axes it pads, and nothing else.
    batch, shape = (1, -1, *node.shape()[rank - len(pads) :]), node.result().shape
    return lambda x, *_: F.pad(x.reshape(batch), flat, mode=mode).reshape(shape)


@op("DepthToSpace")
def _depth_to_space(node: Node) -> Call:
    size, mode = node.get("blocksize"), node.get("mode", "DCR")
    if mode == "CRD":
        return lambda x: F.pixel_shuffle(x, size)
    batch, channels, height, width = node.shape()

    def call(x: Tensor) -> Tensor:
        blocks = x.reshape(batch, size, size, channels // size**2, height, width).permute(0, 3, 4, 1, 5, 2)
        return blocks.reshape(batch, channels // size**2, height * size, width * size)

    return call


@op("SpaceToDepth")
def _space_to_depth(node: Node) -> Call:
    size, order = node.get("blocksize"), (0, 3, 5, 1, 2, 4) if node.get("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    batch, channels, height, width = node.shape()

    def call(x: Tensor) -> Tensor:
        blocks = x.reshape(batch, channels, height // size, size, width // size, size).permute(order)
        return blocks.reshape(batch, channels * size**2, height // size, width // size)

    return call


@op("Trilu")
def _trilu(node: Node) -> Call:
    offset = node.constant(1) if node.has(1) else None
    diagonal = 0 if offset is None else int(offset)
    call = torch.triu if node.get("upper", 1) else torch.tril
    return lambda x, *_: call(x, diagonal)


@op("OneHot")
def _one_hot(node: Node) -> Call:
    shape = node.result().shape
    (axis,) = node.axes(node.get("axis", -1), len(shape))
    depth = shape[axis]

    def call(indices: Tensor, _: Tensor, values: Tensor) -> Tensor:
        picks = indices.to(torch.int64)
        picks = torch.where(picks < 0, picks + depth, picks).unsqueeze(axis)
        ladder = torch.arange(depth, device=indices.device).reshape([-1 if i == axis else 1 for i in range(len(shape))])
        return torch.where(ladder == picks, values[1], values[0])

    return call


@op("Resize", "Upsample")
def _resize(node: Node) -> Call:
    before, after = node.shape(), node.result().shape
    how = node.get("coordinate_transformation_mode", "half_pixel" if node.version > 10 else "asymmetric")
    spatial = len(before) - 2
    whole = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric", "align_corners")
    if before[:2] != after[:2] or not 1 <= spatial <= 3 or how not in whole or node.get("exclude_outside", 0):
        raise node.refuse(f"resizing other than plain resizing of the spatial axes ({how})")
    scales = _scales(node, before, after)
    mode = node.get("mode", "nearest")
    if mode == "nearest":
        return _nearest(node, how, scales, before, after)
    size = list(after[2:])
    exact = all(math.isclose(b, a * scale) for a, b, scale in zip(before[2:], size, scales, strict=True))
    names = {("linear", 1): "linear", ("linear", 2): "bilinear", ("linear", 3): "trilinear", ("cubic", 2): "bicubic"}
    kind, aligned = names.get((mode, spatial)), how == "align_corners"
    if kind is None or how == "asymmetric" or node.get("antialias", 0) or not exact:
        raise node.refuse(f"resizing in mode {mode} with {how} over {spatial} axes")
    if (how == "pytorch_half_pixel" and 1 in size) or node.get("cubic_coeff_a", -0.75) != -0.75:
        raise node.refuse("resizing to a single element, or with another cubic coefficient than torch's")
    return lambda x, *_: F.interpolate(x, size, mode=kind, align_corners=aligned)


def _scales(node: Node, before: tuple[int, ...], after: tuple[int, ...]) -> list[float]:
    """By how much each spatial axis is stretched: as stated, or as the sizes say."""
    place = 2 if node.version > 10 else 1
    given = node.constant(place) if node.has(place) else node.get("scales")
    if node.get("axes") or node.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise node.refuse("resizing of some axes only")
    if given is not None and len(given) == len(before):
        return [float(scale) for scale in given[2:]]
    return [b / a for a, b in zip(before[2:], after[2:], strict=True)]


def _nearest(node: Node, how: str, scales: list[float], before: tuple[int, ...], after: tuple[int, ...]) -> Call:
    """Every element is a copy of one: which one is known beforehand."""
    # NOTE: in float32, as ONNX Runtime computes it, because a place that lies on an edge depends on that.
    rounding = node.get("nearest_mode", "round_prefer_floor" if node.version > 10 else "floor")
    picks: dict[int, Constant] = {}
    for axis, scale in enumerate(scales, start=2):
        old, new = before[axis], after[axis]
        at, stretch = torch.arange(new, dtype=torch.float32), torch.tensor(scale, dtype=torch.float32)
        if how == "asymmetric":
            at = at / stretch
        elif how == "align_corners":
            at = at * (old - 1) / max(1, new - 1)
        elif how == "pytorch_half_pixel" and new == 1:
            at = torch.zeros_like(at)
        else:
            shift = 0.0 if how != "half_pixel_symmetric" else old / 2 * (1 - new / (old * scale))
            at = shift + (at + 0.5) / stretch - 0.5
        down = rounding in ("floor", "round_prefer_ceil")
        half = {"round_prefer_floor": -0.5, "round_prefer_ceil": 0.5}.get(rounding, 0.0)
        found = torch.floor(at + half) if down else torch.ceil(at + half)
        picks[axis] = Constant(found.clamp(0, old - 1).to(torch.int64))
    if rounding == "floor" and how == "asymmetric" and all(scale == int(scale) for scale in scales):
        return lambda x, *_: F.interpolate(x, list(after[2:]), mode="nearest")

    def call(x: Tensor, *_: Tensor) -> Tensor:
        for axis, places in picks.items():
            x = x.index_select(axis, places.at(x.device))
        return x

    return call

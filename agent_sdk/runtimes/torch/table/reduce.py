"""Reductions, and what picks elements by their order."""

from collections.abc import Callable

import torch
from torch import Tensor

from agent_sdk.runtimes.torch.node import Node
from agent_sdk.runtimes.torch.table.registry import Call, op

Reduce = Callable[..., Tensor]


def _sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.sum(x, axes, keepdim=keep, dtype=x.dtype)


def _product(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in sorted(axes, reverse=True):
        x = torch.prod(x, axis, keepdim=keep, dtype=x.dtype)
    return x


def _length(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    # NOTE: squares of float16 activations overflow; in here they are taken in float32.
    wide = x if x.is_floating_point() else x.double()
    found: Tensor = torch.linalg.vector_norm(wide, 2, axes, keepdim=keep)
    return found.to(x.dtype)


REDUCTIONS: dict[str, Reduce] = {
    "ReduceL1": lambda x, axes, keep: _sum(torch.abs(x), axes, keep),
    "ReduceL2": _length,
    "ReduceLogSum": lambda x, axes, keep: torch.log(_sum(x, axes, keep)),
    "ReduceLogSumExp": lambda x, axes, keep: torch.logsumexp(x, axes, keepdim=keep),
    "ReduceMax": lambda x, axes, keep: torch.amax(x, axes, keepdim=keep),
    "ReduceMean": lambda x, axes, keep: torch.mean(x, axes, keepdim=keep),
    "ReduceMin": lambda x, axes, keep: torch.amin(x, axes, keepdim=keep),
    "ReduceProd": _product,
    "ReduceSum": _sum,
    "ReduceSumSquare": lambda x, axes, keep: _sum(x * x, axes, keep),
}


@op(*REDUCTIONS)
def _reduction(node: Node) -> Call:
    call, keep = REDUCTIONS[node.type], bool(node.get("keepdims", 1))
    found = node.argument(1, "axes", [])
    axes = node.axes(found)
    if not axes:
        if node.get("noop_with_empty_axes", 0):
            return lambda x, *_: (
                x if node.type in ("ReduceMax", "ReduceMean", "ReduceMin") else call(x[None], (0,), False)
            )
        axes = tuple(range(len(node.shape())))
    if not axes:  # a scalar
        return lambda x, *_: call(x[None], (0,), False)
    return lambda x, *_: call(x, axes, keep)


@op("GlobalAveragePool", "GlobalMaxPool")
def _global(node: Node) -> Call:
    call, axes = torch.mean if node.type == "GlobalAveragePool" else torch.amax, tuple(range(2, len(node.shape())))
    return lambda x: call(x, axes, keepdim=True)


@op("ArgMax", "ArgMin")
def _arg(node: Node) -> Call:
    (axis,) = node.axes(node.get("axis", 0))
    keep, last = bool(node.get("keepdims", 1)), bool(node.get("select_last_index", 0))
    call = torch.argmax if node.type == "ArgMax" else torch.argmin
    if not last:
        return lambda x: call(x, axis, keepdim=keep)
    length = node.shape()[axis]
    return lambda x: length - 1 - call(torch.flip(x, (axis,)), axis, keepdim=keep)


@op("TopK")
def _top(node: Node) -> Call:
    count = int(node.argument(1, "k")[0]) if node.has(1) else int(node.get("k"))
    (axis,) = node.axes(node.get("axis", -1))
    largest = bool(node.get("largest", 1))

    def call(x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        # NOTE: not torch.topk, because ONNX wants the first of equal elements.
        values, places = torch.sort(x, dim=axis, descending=largest, stable=True)
        return values.narrow(axis, 0, count), places.narrow(axis, 0, count)

    return call


@op("CumSum")
def _cumulative(node: Node) -> Call:
    axes = node.constant(1)
    assert axes is not None
    (axis,) = node.axes(axes.item())
    exclusive, reverse = node.get("exclusive", 0), node.get("reverse", 0)

    def call(x: Tensor, _: Tensor) -> Tensor:
        x = torch.flip(x, (axis,)) if reverse else x
        total = torch.cumsum(x, axis, dtype=x.dtype)
        total = total - x if exclusive else total
        return torch.flip(total, (axis,)) if reverse else total

    return call

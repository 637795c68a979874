"""NASNet-A (Zoph et al. 2018) and PNASNet-5 (Liu et al. 2018): cells of five blocks, as TF-Slim wires them.

A block adds two operations on earlier hidden states. States 0 and 1 of a cell are its input and the output of the
cell before it, both brought to the cell's width; state 2 + b is what block b made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hope_zoo.network import Network, square
from hope_zoo.weights import Topology

CLASSES = 1001
LOWEST = -65504.0
"""Padding that no maximum picks: the lowest half-precision number, so that it is finite in every element type."""

Step = tuple[str, int]
"""An operation and the hidden state it is applied to."""


@dataclass(frozen=True)
class Cell:
    """Five blocks, each a pair of steps, and the hidden states that are joined at the end."""

    blocks: tuple[tuple[Step, Step], ...]
    joined: tuple[int, ...]


NASNET_NORMAL = Cell(
    blocks=(
        (("separable_5x5", 0), ("separable_3x3", 1)),
        (("separable_5x5", 1), ("separable_3x3", 1)),
        (("avg_pool", 0), ("none", 1)),
        (("avg_pool", 1), ("avg_pool", 1)),
        (("separable_3x3", 0), ("none", 0)),
    ),
    joined=(1, 2, 3, 4, 5, 6),
)
NASNET_REDUCTION = Cell(
    blocks=(
        (("separable_5x5", 0), ("separable_7x7", 1)),
        (("max_pool", 0), ("separable_7x7", 1)),
        (("avg_pool", 0), ("separable_5x5", 1)),
        (("none", 3), ("avg_pool", 2)),
        (("separable_3x3", 2), ("max_pool", 0)),
    ),
    joined=(3, 4, 5, 6),
)
PNASNET = Cell(
    blocks=(
        (("separable_5x5", 1), ("max_pool", 1)),
        (("separable_7x7", 0), ("max_pool", 0)),
        (("separable_5x5", 0), ("separable_3x3", 0)),
        (("separable_3x3", 4), ("max_pool", 0)),
        (("separable_3x3", 1), ("none", 0)),
    ),
    joined=(2, 3, 4, 5, 6),
)


def nasnet_mobile() -> Topology:
    """Return NASNet-A (4 @ 1056): 224 x 224, 12 normal cells."""
    return _nasnet("nasnet_mobile", 224, stem=32, filters=44, cells=12, skip_reduction=False)


def nasnet_large() -> Topology:
    """Return NASNet-A (6 @ 4032): 331 x 331, 18 normal cells."""
    return _nasnet("nasnet_large", 331, stem=96, filters=168, cells=18, skip_reduction=True)


def pnasnet_mobile() -> Topology:
    """Return PNASNet-5 (3 @ 1080 after the last reduction): 224 x 224, 9 cells."""
    return _pnasnet("pnasnet_mobile", 224, stem=32, filters=54, cells=9)


def pnasnet_large() -> Topology:
    """Return PNASNet-5 (4 @ 4320 after the last reduction): 331 x 331, 12 cells."""
    return _pnasnet("pnasnet_large", 331, stem=96, filters=216, cells=12)


def _nasnet(name: str, size: int, *, stem: int, filters: int, cells: int, skip_reduction: bool) -> Topology:
    """Stem, then three stacks of normal cells with a reduction cell between them.

    ``skip_reduction``: the cell after a reduction sees, as its previous state, what the reduction saw.
    """
    net, states = _start(name, size, stem)
    for index, width in enumerate((filters // 4, filters // 2)):
        _cell(net, states, NASNET_REDUCTION, width, f"cell_stem_{index}", stride=2)
    width = filters
    for index in range(cells):
        previous = states[-2]
        if index in (cells // 3, 2 * cells // 3):
            width *= 2
            _cell(net, states, NASNET_REDUCTION, width, f"reduction_cell_{index * 3 // cells - 1}", stride=2)
        _cell(net, states, NASNET_NORMAL, width, f"cell_{index}", previous=previous if skip_reduction else states[-2])
    return net.topology(net.classify(net.relu(states[-1], "final_layer/Relu"), CLASSES, "final_layer"))


def _pnasnet(name: str, size: int, *, stem: int, filters: int, cells: int) -> Topology:
    """Stem, then cells of one kind; the first cell of the second and third stack halves the resolution."""
    net, states = _start(name, size, stem)
    for index, width in enumerate((filters // 4, filters // 2)):
        _cell(net, states, PNASNET, width, f"cell_stem_{index}", stride=2)
    width = filters
    for index in range(cells):
        reduces = index in (cells // 3, 2 * cells // 3)
        width *= 2 if reduces else 1
        _cell(net, states, PNASNET, width, f"cell_{index}", stride=2 if reduces else 1)
    return net.topology(net.classify(net.relu(states[-1], "final_layer/Relu"), CLASSES, "final_layer"))


def _start(name: str, size: int, stem: int) -> tuple[Network, list[str]]:
    net = Network(name, {"input": (1, 3, size, size)})
    return net, [net.conv("input", stem, 3, "conv0/Conv2D", stride=2, same=False)]


def _cell(
    net: Network, states: list[str], cell: Cell, width: int, scope: str, *, stride: int = 1, previous: str | None = None
) -> None:
    """Append a cell to the network and its output to ``states``, the outputs of the cells so far."""
    x = states[-1]
    if previous is None:
        previous = states[-2] if len(states) > 1 else x
    last = previous if previous == x else _match(net, previous, x, width, scope)
    squeezed = net.relu(x, f"{scope}/Relu_1")
    hidden = [net.conv(squeezed, width, 1, f"{scope}/1x1/Conv2D"), last]
    for index, (left, right) in enumerate(cell.blocks):
        block = f"{scope}/comb_iter_{index}"
        a = _apply(net, hidden, left, width, stride, f"{block}/left")
        b = _apply(net, hidden, right, width, stride, f"{block}/right")
        hidden.append(net.add(a, b, f"{block}/combine/add"))
    states.append(net.concat([hidden[index] for index in cell.joined], f"{scope}/cell_output/concat"))


def _match(net: Network, previous: str, x: str, width: int, scope: str) -> str:
    """Bring the previous cell's output to this cell's resolution and width."""
    if net.shape[previous][2] == net.shape[x][2]:
        if net.shape[previous][1] == width:
            return previous
        return net.conv(net.relu(previous, f"{scope}/Relu"), width, 1, f"{scope}/prev_1x1/Conv2D")
    # Factorised reduction: two grids, one shifted by a pixel, each to half of the width.
    rectified = net.relu(previous, f"{scope}/Relu")
    even = net.avg_pool(rectified, 1, f"{scope}/AvgPool2D", stride=2, same=False)
    even = net.conv(even, width // 2, 1, f"{scope}/path1_conv/Conv2D")
    odd = net.crop(net.pad(rectified, (0, 0, 1, 1), f"{scope}/Pad"), f"{scope}/strided_slice")
    odd = net.avg_pool(odd, 1, f"{scope}/AvgPool2D_1", stride=2, same=False)
    odd = net.conv(odd, width - width // 2, 1, f"{scope}/path2_conv/Conv2D")
    return net.batch_norm(net.concat([even, odd], f"{scope}/concat"), f"{scope}/final_path_bn")


def _apply(net: Network, hidden: Sequence[str], step: Step, width: int, stride: int, scope: str) -> str:
    """Apply one operation of a block; only the cell's own two inputs are still to be strided.

    What is strided is padded by an op of its own, as exporters write TensorFlow's uneven SAME padding (a mean is not:
    there, padding must not count).
    """
    kind, state = step
    x = hidden[state]
    stride = stride if state < 2 else 1
    if kind.startswith("separable"):
        return _separable(net, x, int(kind[-1]), width, stride, scope)
    if kind == "none":
        if stride == 1 and net.shape[x][1] == width:
            return x
        return net.conv(net.relu(x, f"{scope}/Relu"), width, 1, f"{scope}/1x1/Conv2D", stride=stride)
    if kind == "max_pool" and stride > 1:
        padded = net.pad(x, net.same_pads(x, (3, 3), (stride, stride)), f"{scope}/Pad", value=LOWEST)
        x = net.max_pool(padded, 3, f"{scope}/max_pool", stride=stride, same=False)
    else:
        pool = net.max_pool if kind == "max_pool" else net.avg_pool
        x = pool(x, 3, f"{scope}/{kind}", stride=stride)
    return x if net.shape[x][1] == width else net.conv(x, width, 1, f"{scope}/1x1/Conv2D")


def _separable(net: Network, x: str, kernel: int, width: int, stride: int, scope: str) -> str:
    """Twice: rectifier, depth-wise convolution, point-wise convolution; only the first is strided."""
    for index, step in ((1, stride), (2, 1)):
        name = f"{scope}/separable_{kernel}x{kernel}_{index}"
        x = net.relu(x, f"{name}/Relu")
        if step > 1:
            x = net.pad(x, net.same_pads(x, square(kernel), square(step)), f"{name}/Pad")
        channels = net.shape[x][1]
        x = net.conv(x, channels, kernel, f"{name}/depthwise", stride=step, same=step == 1, groups=channels, bias=False)
        x = net.conv(x, width, 1, f"{name}/pointwise")
    return x

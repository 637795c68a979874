"""Lossless tiles of a stack of convolutions and pools: D3's vertical separation (Zhang et al. 2021, section III-F).

The last output is divided into A x B tiles, which several hosts or cores compute apart from each other. Backwards from
a tile, layer by layer, `reach` says what of its input each layer needs, and how much padding it still has to add: only
where the tile lies at the border of the image. So tiles overlap in what is computed twice, nothing is exchanged, and
what they make is what the whole stack makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import NamedTuple


@dataclass(frozen=True)
class Window:
    """A window's way along one axis: its extent with dilation, its stride, the padding before and behind the image."""

    extent: int
    stride: int
    before: int
    behind: int

    def made(self, size: int) -> int:
        """So many windows fit in an image of a size."""
        return (size + self.before + self.behind - self.extent) // self.stride + 1


class Reach(NamedTuple):
    """What windows see of an image along one axis: from ``start`` to before ``stop``, and so much padding around."""

    start: int
    stop: int
    before: int
    behind: int


def reach(window: Window, start: int, stop: int, size: int) -> Reach:
    """What the windows from ``start`` to before ``stop`` see of an image of a size; rows_in = (rows_out - 1) S + F."""
    first = start * window.stride - window.before
    last = (stop - 1) * window.stride - window.before + window.extent
    return Reach(max(0, first), min(size, last), max(0, -first), max(0, last - size))


class Box(NamedTuple):
    """A tile of an image: rows and columns, each from the first to before the last."""

    top: int
    bottom: int
    left: int
    right: int


@dataclass(frozen=True)
class Layer:
    """A convolution or a pool: its windows down and across, and the image that it reads."""

    down: Window
    across: Window
    height: int
    width: int


class Fetched(NamedTuple):
    """What a layer reads for a tile, and the padding that it adds: above, left, below, right (as ONNX orders them)."""

    box: Box
    pads: tuple[int, int, int, int]


def tiles(height: int, width: int, down: int, across: int) -> list[Box]:
    """Divide an image into tiles of about equal size, row by row.

    Raises:
        ValueError: an image with fewer rows or columns than tiles.
    """
    if not (1 <= down <= height and 1 <= across <= width):
        raise ValueError(f"an image of {height} x {width} cannot be divided into {down} x {across} tiles")
    rows, columns = ([size * k // count for k in range(count + 1)] for size, count in ((height, down), (width, across)))
    return [Box(*row, *column) for row, column in product(pairwise(rows), pairwise(columns))]


def fetched(layers: Sequence[Layer], tile: Box) -> list[Fetched]:
    """What each layer of a stack, first to last, reads so that the last one makes a tile.

    Raises:
        ValueError: a window that would see nothing but padding; the message names the layer by its place.
    """
    found: list[Fetched] = []
    for place, layer in reversed(list(enumerate(layers))):
        rows = reach(layer.down, tile.top, tile.bottom, layer.height)
        columns = reach(layer.across, tile.left, tile.right, layer.width)
        if rows.start >= rows.stop or columns.start >= columns.stop:
            raise ValueError(f"layer {place}: a window of this tile sees nothing but padding")
        tile = Box(rows.start, rows.stop, columns.start, columns.stop)
        found.append(Fetched(tile, (rows.before, columns.before, rows.behind, columns.behind)))
    return found[::-1]

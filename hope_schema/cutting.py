"""Splits as a rewriting of the graph: which parts, slices and joins cuts make of it, and what these are called.

A cut op is computed in parts of its output along one axis (CoDL section 4). Parts, slices and joins are ordinary ops of
the graph that results, and are measured, planned, moved and executed as such; nobody else knows of splits. Here is the
algebra of intervals, on names: both wings use it, so that a plan's steps are the ops that a device makes.

- What a part leaves of the tensor ``X`` is called ``X[axis:start:stop]``; joined, for those who read all of it, ``X``.
- A part reads all of an input, or an interval. It reads an interval that stands as it is, else a slice
  ``X[axis:start:stop]``, else a join for it alone, ``X[axis:start:stop]>Y#j``: made where it is read, so that only what
  is missing there is moved.
- Chained parts read nothing but what the same part of the op before left: that one is extended by what is computed
  twice instead of exchanged (CoDL section 4.3, rows_in = (rows_out - 1) * stride + size).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from hope_schema.base import MAX_NAME
from hope_schema.plan import Cut


class CutError(ValueError):
    """A cut that cannot be made; the message says why."""


class Region(NamedTuple):
    """An interval of a tensor along one axis."""

    axis: int
    start: int
    stop: int

    def of(self, tensor: str) -> str:
        """What it is called."""
        return f"{tensor}[{self.axis}:{self.start}:{self.stop}]"


@dataclass(frozen=True)
class Node:
    """An op as the algebra sees it.

    Attributes:
        id: its name.
        reads, writes: names of tensors.
        granularity: of an axis of its output: borders lie at multiples of it.
        needs: of a region of its output: what a part that makes it reads of each input; None, or no entry: all of it.
            This and ``granularity`` raise :class:`CutError` for what cannot be.
    """

    id: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    granularity: Callable[[int], int]
    needs: Callable[[Region], Mapping[str, Region | None]]


@dataclass(frozen=True)
class Piece:
    """An op of the graph that results.

    ``op`` is the op that a ``whole`` or a ``part`` computes, and the tensor that a ``slice`` or a ``join`` is of.
    ``region`` is what a part makes of the output, what a join holds of its tensor, and what a slice takes of the one
    tensor that it reads. A join puts what it reads one after the other along the region's axis.
    """

    kind: Literal["whole", "part", "slice", "join"]
    op: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    region: Region | None = None
    index: int = 0


Shapes = Mapping[str, Sequence[int]]


def axes_of(shape: Sequence[int]) -> range:
    """Along which axes an output of this shape may be cut: channels and height, as in CoDL; of a matrix both."""
    return range(1, 3) if len(shape) > 2 else range(len(shape))


def halve(node: Node, axis: int, extent: int) -> int:
    """Where an op can be cut about in the middle of an axis of its output. Raises CutError with the reason why not."""
    step = node.granularity(axis)
    middle = extent // 2 // step * step
    if not 0 < middle < extent:
        raise CutError(f"'{node.id}' has {extent} along axis {axis} in steps of {step}: a part would be empty")
    node.needs(Region(axis, 0, middle))
    node.needs(Region(axis, middle, extent))
    return middle


def whole_because(node: Node, shapes: Shapes) -> str | None:
    """Why an op stays whole, axis by axis; None where it can be cut."""
    if len(node.writes) != 1:
        return f"it has {len(node.writes)} outputs"
    shape = shapes[node.writes[0]]
    reasons: dict[str, None] = {}
    for axis in axes_of(shape):
        try:
            halve(node, axis, shape[axis])
        except CutError as error:
            reasons[str(error)] = None
        else:
            return None
    return "; ".join(reasons) or "it makes a single number"


def regions(nodes: Sequence[Node], cuts: Sequence[Cut], shapes: Shapes) -> dict[str, list[Region]]:
    """What each part of each cut op computes, by op, with what chains compute twice.

    Args:
        nodes: the graph in topological order.
        cuts: at most one per op.
        shapes: of every tensor, by name.

    Raises:
        CutError: an op is unknown, has several outputs, is cut twice or cannot be cut there; a part is empty; a chain
            has nothing to hold on to.
    """
    known = {node.id: node for node in nodes}
    cut = {one.op: one for one in cuts}
    if len(cut) != len(cuts):
        raise CutError("an op is cut twice")
    found: dict[str, list[Region]] = {}
    for one in cuts:
        if one.op not in known:
            raise CutError(f"there is no op '{one.op}' to cut")
        found[one.op] = _parts(known[one.op], one, shapes)
    makers = {name: node.id for node in nodes for name in node.writes}
    for node in reversed(nodes):
        if node.id not in cut or not cut[node.id].chained:
            continue
        for index, part in enumerate(found[node.id]):
            for name, need in node.needs(part).items():
                if need is None:
                    continue
                before = found.get(makers.get(name, ""))
                if before is None or before[0].axis != need.axis or len(before) != len(found[node.id]):
                    raise CutError(f"op '{node.id}' is chained to '{name}', which is not cut the same way")
                own = before[index]
                before[index] = Region(own.axis, min(own.start, need.start), max(own.stop, need.stop))
    return found


def _parts(node: Node, cut: Cut, shapes: Shapes) -> list[Region]:
    if len(node.writes) != 1:
        raise CutError(f"op '{node.id}' has {len(node.writes)} outputs")
    shape = shapes[node.writes[0]]
    if cut.axis >= len(shape):
        raise CutError(f"op '{node.id}' cannot be cut along axis {cut.axis} of {len(shape)}")
    step = node.granularity(cut.axis)
    borders = [0, *cut.at, shape[cut.axis]]
    if any(low >= high for low, high in pairwise(borders)):
        raise CutError(f"op '{node.id}' is cut at {list(cut.at)} of {shape[cut.axis]}: a part is empty")
    if any(border % step for border in cut.at):
        raise CutError(f"op '{node.id}' is cut at {list(cut.at)}, which are not all multiples of {step}")
    return [Region(cut.axis, low, high) for low, high in pairwise(borders)]


def pieces(nodes: Sequence[Node], cuts: Sequence[Cut], shapes: Shapes, outputs: Sequence[str]) -> list[Piece]:
    """The ops of the graph that cuts make of a graph, in topological order.

    Args:
        nodes: the graph in topological order.
        cuts: at most one per op.
        shapes: of every tensor, by name.
        outputs: tensors that must exist as they are.

    Raises:
        CutError: see :func:`regions`; or a name becomes too long.
    """
    return _Pieces(nodes, cuts, shapes, outputs).made


class _Pieces:
    """The graph that results, as it grows."""

    def __init__(self, nodes: Sequence[Node], cuts: Sequence[Cut], shapes: Shapes, outputs: Sequence[str]) -> None:
        self.shapes = shapes
        self.made: list[Piece] = []
        self.names: set[str] = set()
        self.parts: dict[str, list[Region]] = {}
        computed = regions(nodes, cuts, shapes)
        kept = set(outputs)
        for node in nodes:
            if node.id not in computed:
                self.add(Piece("whole", node.id, tuple(map(self.whole, node.reads)), node.writes))
                continue
            self.cut(node, computed[node.id])
            if node.writes[0] in kept:
                self.whole(node.writes[0])

    def add(self, piece: Piece) -> str:
        """Make an op, unless what it writes stands already."""
        name = piece.writes[0]
        if len(name) > MAX_NAME:
            raise CutError(f"op '{piece.op[:80]}' has a name too long for parts of it")
        if name not in self.names:
            self.names.update(piece.writes)
            self.made.append(piece)
        return name

    def cut(self, node: Node, computed: list[Region]) -> None:
        """An op in parts."""
        tensor = node.writes[0]
        for index, part in enumerate(computed):
            needs, reader = node.needs(part), f"{node.id}#{index}"
            reads = []
            for name in node.reads:
                need = needs.get(name)
                if need is None or need[1:] == (0, self.shapes[name][need.axis]):
                    reads.append(self.whole(name, reader))
                else:
                    reads.append(self.some(name, need, index, reader))
            self.add(Piece("part", node.id, tuple(reads), (part.of(tensor),), part, index))
        self.parts[tensor] = computed

    def whole(self, tensor: str, reader: str = "") -> str:
        """A tensor as a whole: for everybody, or for a part that reads it."""
        if tensor not in self.parts:
            return tensor
        axis = self.parts[tensor][0].axis
        name = f"{tensor}>{reader}" if reader else tensor
        return self.join(tensor, name, Region(axis, 0, self.shapes[tensor][axis]))

    def some(self, tensor: str, wanted: Region, index: int, reader: str) -> str:
        """A region of a tensor for part ``index`` of its reader."""
        parts = self.parts.get(tensor)
        if parts is None:
            return self.slice(tensor, tensor, wanted)
        name = f"{wanted.of(tensor)}>{reader}"
        if parts[0].axis != wanted.axis:
            sliced: list[str] = []
            at = 0
            for part in parts:  # what was computed twice is left out of the second
                if part.stop <= at:
                    continue
                piece = self.slice(tensor, part.of(tensor), wanted)
                if part.start < at:
                    piece = self.slice(tensor, piece, Region(part.axis, at - part.start, part.stop - part.start))
                sliced.append(piece)
                at = part.stop
            axis = parts[0].axis
            whole = Region(axis, 0, self.shapes[tensor][axis])
            return self.add(Piece("join", tensor, tuple(sliced), (name,), whole))
        holders = [part for part in parts if part.start <= wanted.start and wanted.stop <= part.stop]
        if holders:
            return self.within(
                tensor, parts[index] if index < len(parts) and parts[index] in holders else holders[0], wanted
            )
        return self.join(tensor, name, wanted, index)

    def within(self, tensor: str, part: Region, wanted: Region) -> str:
        """What is wanted of a part: all of it, or a slice."""
        if part == wanted:
            return part.of(tensor)
        return self.slice(
            tensor, part.of(tensor), Region(part.axis, wanted.start - part.start, wanted.stop - part.start)
        )

    def slice(self, tensor: str, source: str, wanted: Region) -> str:
        """A region of what stands under a name, counted from its beginning."""
        return self.add(Piece("slice", tensor, (source,), (wanted.of(source),), wanted))

    def join(self, tensor: str, name: str, wanted: Region, index: int = -1) -> str:
        """A region put together of parts, of part ``index`` as much as there is."""
        parts = self.parts[tensor]
        own = parts[index] if 0 <= index < len(parts) else None
        reads: list[str] = []
        at = wanted.start
        while at < wanted.stop:
            holders = [part for part in parts if part.start <= at < part.stop]
            holder = own if own in holders and own is not None else max(holders, key=lambda part: part.stop)
            stop = min(holder.stop, wanted.stop)
            if own is not None and at < own.start:
                stop = min(stop, own.start)
            reads.append(self.within(tensor, holder, Region(wanted.axis, at, stop)))
            at = stop
        if len(reads) == 1 and name != tensor:  # a part of a chain is the whole by itself
            return reads[0]
        return self.add(Piece("join", tensor, tuple(reads), (name,), wanted))

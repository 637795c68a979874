"""Splits as a rewriting of the graph: which parts, slices and joins cuts make of it, and what these are called.

A cut op is computed in parts of its output: intervals of one axis (CoDL section 4), or boxes along two (D3's tiles).
Parts, slices and joins are ordinary ops of the graph that results, and are measured, planned, moved and executed as
such; nobody else knows of splits. Here is the algebra of boxes, on names: both wings use it, so that a plan's steps are
the ops that a device makes.

- What a part leaves of the tensor ``X`` is called ``X[axis:start:stop]``, along two axes
  ``X[axis:start:stop,axis:start:stop]``; joined, for those who read all of it, ``X``.
- A join that no op reads is of an output and no work: whoever stores the output puts it together of its parts.
- A part reads all of an input, or a box. It reads a box that stands as it is, else a slice ``X[axis:start:stop]``, else
  a join for it alone, ``X[axis:start:stop]>Y#j``: made where it is read, so that only what is missing there is moved.
- A network's input is cut as an op is: into slices, so that parts which overlap do not read the same twice.
- A join is along one axis: boxes are joined to bands, and bands to what is read.
- Chained parts read nothing but what the same part of the op before left: that one is extended by what is computed
  twice instead of exchanged (CoDL section 4.3, rows_in = (rows_out - 1) * stride + size).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod
from typing import Literal, NamedTuple

from hope_schema.base import MAX_NAME
from hope_schema.plan import Cut


class CutError(ValueError):
    """A cut that cannot be made; the message says why."""


class Span(NamedTuple):
    """An interval along one axis."""

    axis: int
    start: int
    stop: int


@dataclass(frozen=True, order=True)
class Region:
    """A box of a tensor: one interval along each of some axes, which ascend, and all of the others."""

    spans: tuple[Span, ...]

    @classmethod
    def along(cls, axis: int, start: int, stop: int) -> Region:
        """An interval of one axis."""
        return cls((Span(axis, start, stop),))

    @property
    def axes(self) -> tuple[int, ...]:
        """Along which it does not hold everything."""
        return tuple(span.axis for span in self.spans)

    def of(self, tensor: str) -> str:
        """What it is called."""
        return f"{tensor}[{','.join(f'{axis}:{start}:{stop}' for axis, start, stop in self.spans)}]"

    def shape(self, whole: Sequence[int]) -> tuple[int, ...]:
        """The shape of what it holds of a tensor."""
        sizes = {axis: stop - start for axis, start, stop in self.spans}
        return tuple(sizes.get(axis, size) for axis, size in enumerate(whole))

    def index(self, rank: int) -> tuple[slice, ...]:
        """What an array of so many axes is indexed with for it."""
        bounds = [slice(None)] * rank
        for axis, start, stop in self.spans:
            bounds[axis] = slice(start, stop)
        return tuple(bounds)

    def within(self, part: Region) -> Region:
        """Where it stands in a part that holds it, without the axes along which it is all of that."""
        begins = {axis: start for axis, start, _ in part.spans}
        left = (one for one in self.spans if one not in part.spans)
        return Region(tuple(Span(axis, *(at - begins.get(axis, 0) for at in ends)) for axis, *ends in left))

    def meet(self, other: Region) -> Region | None:
        """What two along the same axes both hold; None where that is nothing."""
        pairs = zip(self.spans, other.spans, strict=True)
        both = tuple(Span(one.axis, max(one.start, two.start), min(one.stop, two.stop)) for one, two in pairs)
        return Region(both) if all(span.start < span.stop for span in both) else None

    def hull(self, other: Region) -> Region:
        """The smallest box around two along the same axes."""
        pairs = zip(self.spans, other.spans, strict=True)
        return Region(tuple(Span(one.axis, min(one.start, two.start), max(one.stop, two.stop)) for one, two in pairs))


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
    ``region`` is what a part makes of the output, what a slice takes of the one tensor that it reads, and how much a
    join holds along the one axis along which it puts what it reads one after the other.
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
    node.needs(Region.along(axis, 0, middle))
    node.needs(Region.along(axis, middle, extent))
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
    inputs = {node.id: node for node in _inputs(nodes)}
    known = inputs | {node.id: node for node in nodes}
    cut = {one.op: one for one in cuts}
    if len(cut) != len(cuts):
        raise CutError("an op is cut twice")
    found: dict[str, list[Region]] = {}
    for one in cuts:
        if one.op not in known:
            raise CutError(f"there is no op '{one.op}' to cut")
        if one.chained and one.op in inputs:
            raise CutError(f"input '{one.op}' is chained, and nothing stands before it")
        found[one.op] = _parts(known[one.op], one, shapes)
    makers = {name: node.id for node in known.values() for name in node.writes}
    for node in reversed(nodes):
        if node.id not in cut or not cut[node.id].chained:
            continue
        for index, part in enumerate(found[node.id]):
            for name, need in node.needs(part).items():
                if need is None:
                    continue
                before = makers.get(name, "")
                if (
                    before not in found
                    or need.axes != cut[before].axes
                    or _counts(cut[before]) != _counts(cut[node.id])
                ):
                    raise CutError(f"op '{node.id}' is chained to '{name}', which is not cut the same way")
                found[before][index] = found[before][index].hull(need)
    return found


def _inputs(nodes: Sequence[Node]) -> list[Node]:
    """What nobody makes, as what makes it."""
    made = {name for node in nodes for name in node.writes}
    read = dict.fromkeys(name for node in nodes for name in node.reads if name not in made)
    return [Node(name, (), (name,), lambda axis: 1, lambda region: {}) for name in read]


def _counts(cut: Cut) -> tuple[int, ...]:
    """In how many parts an op is, axis by axis."""
    return tuple(len(at) + 1 for at in cut.at)


def _parts(node: Node, cut: Cut, shapes: Shapes) -> list[Region]:
    """The first axis changes slowest."""
    if len(node.writes) != 1:
        raise CutError(f"op '{node.id}' has {len(node.writes)} outputs")
    shape = shapes[node.writes[0]]
    found: list[list[Span]] = []
    for axis, at in zip(cut.axes, cut.at, strict=True):
        if axis >= len(shape):
            raise CutError(f"op '{node.id}' cannot be cut along axis {axis} of {len(shape)}")
        step = node.granularity(axis)
        borders = [0, *at, shape[axis]]
        if any(low >= high for low, high in pairwise(borders)):
            raise CutError(f"op '{node.id}' is cut at {list(at)} of {shape[axis]}: a part is empty")
        if any(border % step for border in at):
            raise CutError(f"op '{node.id}' is cut at {list(at)}, which are not all multiples of {step}")
        found.append([Span(axis, low, high) for low, high in pairwise(borders)])
    return [Region(spans) for spans in product(*found)]


def pieces(nodes: Sequence[Node], cuts: Sequence[Cut], shapes: Shapes, outputs: Collection[str]) -> list[Piece]:
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


def lines(parts: Sequence[Region], counts: Sequence[int]) -> list[list[Span]]:
    """The intervals of boxes in so many rows and columns, axis by axis."""
    return [[part.spans[g] for part in parts[:: prod(counts[g + 1 :])][:count]] for g, count in enumerate(counts)]


class _Grid:
    """The parts of a tensor: boxes in rows and columns, which overlap where chains compute twice."""

    def __init__(self, op: str, parts: Sequence[Region], counts: Sequence[int]) -> None:
        self.places = list(product(*map(range, counts)))
        self.parts = dict(zip(self.places, parts, strict=True))
        self.lines = lines(parts, counts)
        if [*parts] != [Region(spans) for spans in product(*self.lines)]:
            raise CutError(f"op '{op}' is in a chain whose tiles would be no rows and columns")

    def cover(self, g: int, wanted: Span, own: int | None) -> list[tuple[int, Span]]:
        """Which parts an interval along an axis is made of, and what each gives: ``own`` as much as it has."""
        line = self.lines[g]
        inside = [k for k, span in enumerate(line) if span.start <= wanted.start and wanted.stop <= span.stop]
        if inside:
            return [(own if own in inside and own is not None else inside[0], wanted)]
        found: list[tuple[int, Span]] = []
        at = wanted.start
        while at < wanted.stop:
            holders = [k for k, span in enumerate(line) if span.start <= at < span.stop]
            holder = own if own in holders and own is not None else max(holders, key=lambda k: line[k].stop)
            stop = min(line[holder].stop, wanted.stop)
            if own is not None and at < line[own].start:
                stop = min(stop, line[own].start)
            found.append((holder, Span(wanted.axis, at, stop)))
            at = stop
        return found


class _Pieces:
    """The graph that results, as it grows."""

    def __init__(self, nodes: Sequence[Node], cuts: Sequence[Cut], shapes: Shapes, outputs: Collection[str]) -> None:
        self.shapes = shapes
        self.made: list[Piece] = []
        self.names: set[str] = set()
        self.grids: dict[str, _Grid] = {}
        computed = regions(nodes, cuts, shapes)
        counts = {cut.op: _counts(cut) for cut in cuts}
        kept = set(outputs)
        inputs = _inputs(nodes)
        self.inputs = {node.id for node in inputs}
        for node in inputs:
            if node.id in computed:
                self.grids[node.id] = _Grid(node.id, computed[node.id], counts[node.id])
        for node in nodes:
            if node.id not in computed:
                self.made.append(Piece("whole", node.id, tuple(map(self.whole, node.reads)), node.writes))
                continue
            self.cut(node, computed[node.id])
            self.grids[node.writes[0]] = _Grid(node.id, computed[node.id], counts[node.id])
            if node.writes[0] in kept:
                self.whole(node.writes[0])

    def add(self, piece: Piece) -> str:
        """Make a part, a slice or a join, unless it stands already."""
        (name,) = piece.writes
        if len(name) > MAX_NAME:
            raise CutError(f"op '{piece.op[:80]}' has a name too long for parts of it")
        if name in self.shapes and name != piece.op:
            raise CutError(f"op '{piece.op[:80]}' stays whole: the graph calls another tensor '{name}'")
        if name not in self.names:
            self.names.add(name)
            self.made.append(piece)
        return name

    def cut(self, node: Node, computed: list[Region]) -> None:
        """An op in parts."""
        tensor = node.writes[0]
        for index, part in enumerate(computed):
            needs, reader = node.needs(part), f"{node.id}#{index}"
            reads = [self.some(name, needs.get(name), index, reader) for name in node.reads]
            self.add(Piece("part", node.id, tuple(reads), (part.of(tensor),), part, index))

    def whole(self, tensor: str) -> str:
        """A tensor as a whole, for everybody."""
        if tensor not in self.grids or tensor in self.inputs:
            return tensor
        found = self.join(tensor, tensor, "", self.all_of(tensor), -1)
        if found == tensor:
            return tensor
        axis, start, stop = self.all_of(tensor).spans[0]  # a part of a chain is the whole by itself
        return self.add(Piece("join", tensor, (found,), (tensor,), Region.along(axis, start, stop)))

    def all_of(self, tensor: str) -> Region:
        """All of a tensor, along the axes of its parts."""
        shape = self.shapes[tensor]
        return Region(tuple(Span(line[0].axis, 0, shape[line[0].axis]) for line in self.grids[tensor].lines))

    def some(self, tensor: str, need: Region | None, index: int, reader: str) -> str:
        """What part ``index`` of its reader needs of a tensor."""
        shape = self.shapes[tensor]
        wanted = Region(tuple(one for one in need.spans if one[1:] != (0, shape[one.axis])) if need else ())
        if tensor not in self.grids:
            return self.slice(tensor, tensor, wanted) if wanted.spans else tensor
        box = {span.axis: span for span in (*self.all_of(tensor).spans, *wanted.spans)}
        name = wanted.of(tensor) if wanted.spans else tensor
        whole = Region(tuple(box[axis] for axis in sorted(box)))
        return self.join(tensor, f"{name}>{reader}", f">{reader}", whole, index)

    def join(self, tensor: str, name: str, suffix: str, wanted: Region, index: int) -> str:
        """A region put together of parts, of part ``index`` as much as there is; the part itself where it has all."""
        grid = self.grids[tensor]
        own = grid.places[index] if 0 <= index < len(grid.places) else (None,) * len(grid.lines)
        spans = {span.axis: span for span in wanted.spans}

        def joined(name: str, chosen: tuple[int, ...]) -> str:
            """The part chosen row by row and column by column, or what of it is wanted, or several side by side."""
            here = Region(tuple(spans[axis] for axis in sorted(spans)))
            g = len(chosen)
            if g == len(grid.lines):
                part = grid.parts[chosen]
                source = self.slice(tensor, tensor, part) if tensor in self.inputs else part.of(tensor)
                left = here.within(part)
                return self.slice(tensor, source, left) if left.spans else source
            axis = grid.lines[g][0].axis
            along = spans[axis]
            reads = []
            found = grid.cover(g, along, own[g])
            for k, span in found:
                spans[axis] = span
                band = Region(tuple(spans[axis] for axis in sorted(spans)))
                reads.append(joined(name if len(found) == 1 else f"{band.of(tensor)}{suffix}", (*chosen, k)))
            spans[axis] = along
            if len(reads) == 1:
                return reads[0]
            return self.add(Piece("join", tensor, tuple(reads), (name,), Region((along,))))

        return joined(name, ())

    def slice(self, tensor: str, source: str, wanted: Region) -> str:
        """A region of what stands under a name, counted from its beginning."""
        return self.add(Piece("slice", tensor, (source,), (wanted.of(source),), wanted))

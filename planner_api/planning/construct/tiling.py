"""A network's stacks in tiles over one team of processors: where stretches of tiles end, and what that saves."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise, product

import numpy as np

from hope_schema import Cut
from hope_schema.cutting import CutError, Region, Span, lines
from planner_api.planning.construct.listing import realised
from planner_api.planning.judge.simulator import Schedule
from planner_api.planning.methods import Solution
from planner_api.planning.problem import FloatArray, Problem

ROWS, COLUMNS = 2, 3
"""The axes of tiles."""
LONGEST = 64
"""Ops of a stretch at most, but for its last block."""

Tiles = tuple[Region, ...]
Block = tuple[int, ...]
Move = tuple[int, Region, int, int]
"""A box of a tensor, from place to place."""


@dataclass(frozen=True)
class _Stretch:
    """Blocks from ``first`` on in tiles: what each tile computes of each op, reads of others, and takes (K,)."""

    first: int
    tiles: Mapping[int, Tiles]
    needed: Mapping[int, Tiles]
    us: FloatArray


@dataclass(frozen=True)
class _Way:
    """The best so far of a run's first blocks: the last one in tiles or not, and how it came about."""

    us: float
    before: _Way | None = None
    stretch: _Stretch | None = None


class Tiler:
    """Tiles over some processors, so many of them below each other; all else is computed at ``home``.

    Each tile is smaller than the one before it by ``lean`` of what all have on average, because it is sent later.
    ``saved_us`` is what that saves by the method's own count.
    """

    def __init__(
        self,
        problem: Problem,
        team: Sequence[int],
        rows: int,
        whole: Schedule,
        blocks: Sequence[Block],
        lean: float = 0.0,
    ) -> None:
        self.problem, self.team, self.rows, self.whole, self.blocks = problem, tuple(team), rows, whole, blocks
        self.home = whole.assignment
        self.cutter, self.lists = problem.cutter, problem.lists
        self.place: list[int] = problem.machine.place.tolist()
        self.places = [self.place[processor] for processor in team]
        counts = {ROWS: rows, COLUMNS: len(team) // rows}
        self.counts = {axis: count for axis, count in counts.items() if count > 1}
        later = {ROWS: lean * counts[COLUMNS], COLUMNS: lean}  # from one tile to the next along an axis
        self.ends = {
            axis: np.cumsum(1 + later[axis] * ((count - 1) / 2 - np.arange(count))) / count
            for axis, count in self.counts.items()
        }
        self.axes = tuple(self.counts)
        self.in_bands = len(self.axes) == len({*self.places}) == 1 and self.places[0] != problem.machine.host
        self.turn = {op: turn for turn, op in enumerate(chain(*blocks))}
        last = [max((self.turn[op] for op in readers), default=-1) for readers in self.lists.readers]
        self.last = [len(self.turn) if out else turn for out, turn in zip(problem.is_output, last, strict=True)]
        equal = {op: self._equal(op) for op in self.lists.order}
        self.equal = {op: tiles for op, tiles in equal.items() if tiles is not None}
        self.found = [self.best(run) for run in self.runs()]
        self.saved_us = sum(us for us, _ in self.found)

    def solution(self) -> Solution | None:
        """The plan, tile by tile; None where nothing is computed in tiles."""
        cuts: dict[str, Cut] = {}
        names = [node.id for node in self.cutter.nodes]
        homes: dict[str, Sequence[int]] = {name: (home,) for name, home in zip(names, self.home, strict=True)}
        begins: dict[str, Sequence[float]] = {name: (us,) for name, us in zip(names, self.whole.start_us, strict=True)}
        for stretch in (one for _, stretches in self.found for one in stretches):
            inputs = [tensor for tensor in stretch.needed if self.lists.producer[tensor] < 0]
            for name, tensor in ((self.problem.tensors[one], one) for one in inputs if self.in_bands):
                ends = {box.spans[0].stop for box in stretch.needed[tensor]} - {self.cutter.shapes[name][self.axes[0]]}
                if ends:
                    cuts[name] = Cut(op=name, axes=self.axes, at=(tuple(sorted(ends)),))
            whole_us = [self.whole.start_us[op] for op in stretch.tiles]
            first, us = min(whole_us), max(whole_us) - min(whole_us)
            for turn, (op, tiles) in enumerate(sorted(stretch.tiles.items(), key=lambda one: self.turn[one[0]])):
                chained = stretch.needed.keys().isdisjoint(self.problem.reads[op])
                cuts[names[op]] = Cut(op=names[op], axes=self.axes, at=self.borders(op, tiles), chained=chained)
                part = turn / len(stretch.tiles)
                begins[names[op]] = tuple(first + us * (k + part) / len(self.team) for k in range(len(self.team)))
                homes[names[op]] = self.team
        return realised(self.problem, cuts, homes, begins, "vsm") if cuts else None

    def runs(self) -> Iterator[list[Block]]:
        """Maximal runs of blocks all of whose ops can be computed in tiles."""
        for inside, run in groupby(self.blocks, self.divisible):
            if inside:
                yield list(run)

    def divisible(self, block: Block) -> bool:
        """Whether tiles can be made of a block: what reads nothing is computed whole."""
        return any(op in self.equal for op in block) and all(
            op in self.equal or not self.problem.reads[op] for op in block
        )

    def _equal(self, op: int) -> Tiles | None:
        """An op's output in equal tiles; None where it has none, or cannot be made of tiles."""
        node = self.cutter.nodes[op]
        if len(node.writes) != 1 or not node.reads or len(shape := self.cutter.shapes[node.writes[0]]) != 4:
            return None
        found: list[list[Span]] = []
        try:
            for axis in self.axes:
                extent, step = shape[axis], node.granularity(axis)
                borders = [0, *(round(extent * float(end) / step) * step for end in self.ends[axis][:-1]), extent]
                if any(low >= high for low, high in pairwise(borders)):
                    return None
                found.append([Span(axis, low, high) for low, high in pairwise(borders)])
            tiles = tuple(Region(spans) for spans in product(*found))
            self.needed(op, tiles)
        except CutError:
            return None
        return tiles

    def best(self, run: Sequence[Block]) -> tuple[float, list[_Stretch]]:
        """What tiles save of a run by the method's count, and its stretches that are computed in them."""
        ends = [self.turn[block[-1]] for block in run]
        own = [self.solo_us(block) for block in run]
        left = self.gather_us({op: None for block in run for op in block}, ends[-1])
        alone = sum(own) + left
        tiled: list[_Way] = [_Way(math.inf)]
        solo: list[_Way] = [_Way(0.0)]
        for last, block in enumerate(run):
            entered = _Way(solo[-1].us + own[last], solo[-1])
            if (stretch := tiled[-1].stretch) is not None:
                us = tiled[-1].us + self.gather_us(stretch.tiles, ends[last - 1]) + self.solo_us(block, stretch.tiles)
                entered = min(entered, _Way(us, tiled[-1]), key=lambda way: way.us)
            solo.append(entered)
            way = _Way(math.inf)
            for stretch in self.stretches(run, last):
                if self.pipelined_us([[]] * len(self.team), stretch.us) >= min(way.us, alone):
                    break
                for before in (solo[stretch.first], tiled[stretch.first]):
                    if before.us < min(way.us, alone):
                        us = before.us + self.pipelined_us(self.brought(stretch, before.stretch), stretch.us)
                        way = min(way, _Way(us, before, stretch), key=lambda way: way.us)
            tiled.append(way)
        whole = _Way(solo[-1].us + left, solo[-1])
        if (stretch := tiled[-1].stretch) is not None:
            ended = _Way(tiled[-1].us + self.gather_us(stretch.tiles, ends[-1]), tiled[-1])
            whole = min(whole, ended, key=lambda one: one.us)
        found = []
        back: _Way | None = whole
        while back is not None:
            if back.stretch is not None:
                found.append(back.stretch)
            back = back.before
        return alone - whole.us, found[::-1]

    def made_at(self, tensor: int) -> int:
        """The place where a tensor is made whole."""
        maker = self.lists.producer[tensor]
        return self.problem.machine.host if maker < 0 else self.place[self.home[maker]]

    def solo_us(self, block: Block, parted: Collection[int] = ()) -> float:
        """What a block takes at home, with what is brought there; what other ops made in tiles is there already."""
        free: dict[int, float] = {}
        done: dict[int, float] = {}
        for op in block:
            here = self.home[op]
            begin = free.get(here, 0.0)
            for tensor in self.problem.reads[op]:
                maker = self.lists.producer[tensor]
                moved = 0.0 if maker in parted else self.move_us(tensor, None, self.made_at(tensor), self.place[here])
                begin = max(begin, done.get(maker, 0.0) + moved)
            free[here] = done[op] = begin + self.lists.latency[op][here]
        return max(done.values())

    def pipelined_us(self, brought: Sequence[Sequence[Move]], us: FloatArray) -> float:
        """When the last tile is computed. What each needs is brought by queues that carry one move after the other."""
        queues, free = dict[int, float](), dict.fromkeys(self.team, 0.0)
        for processor, moves, tile in zip(self.team, brought, us.tolist(), strict=True):
            ready = free[processor]
            for tensor, box, source, target in moves:
                at = 0.0
                for a, b in self.problem.machine.way(source, target):
                    queue = int(self.problem.machine.busy[a, b])
                    at = max(at, queues.get(queue, 0.0)) + self.move_us(tensor, box, a, b)
                    queues |= {queue: at} if queue >= 0 else {}
                ready = max(ready, at)
            free[processor] = ready + tile
        return max(free.values())

    def stretches(self, run: Sequence[Block], last: int) -> Iterator[_Stretch]:
        """All that end with a block, longer and longer."""
        end, us = self.turn[run[last][-1]], np.zeros(len(self.team))
        tiles: dict[int, Tiles] = {}
        wanted: dict[int, Tiles] = {}
        for first in range(last, -1, -1):
            try:
                for op in reversed([op for op in run[first] if op in self.equal]):
                    (tensor,) = self.lists.writes[op]
                    asked = [wanted.pop(tensor)] if tensor in wanted else []
                    if self.last[tensor] > end or not asked:
                        asked.append(self.equal[op])
                    tiles[op] = _around(asked)
                    if not all(self.borders(op, tiles[op])):
                        return
                    us += [self.cutter.part_us(op, tile)[p] for tile, p in zip(tiles[op], self.team, strict=True)]
                    for read, boxes in self.needed(op, tiles[op]).items():
                        wanted[read] = _around([boxes, wanted[read]] if read in wanted else [boxes])
            except CutError:
                return
            entering = {op for tensor in wanted for op in self.lists.readers[tensor] if op in tiles}
            if all(tensor in wanted for op in entering for tensor in self.problem.reads[op]):  # else chains would tear
                yield _Stretch(first, dict(tiles), dict(wanted), us.copy())
            if len(tiles) >= LONGEST:
                return

    def borders(self, op: int, tiles: Tiles) -> tuple[tuple[int, ...], ...]:
        """Where an op is cut, axis by axis, so that no tile becomes larger by it; empty where it cannot be."""
        counts, found = [*self.counts.values()], []
        for own_line, line in zip(lines(self.equal[op], counts), lines(tiles, counts), strict=True):
            step = self.cutter.nodes[op].granularity(line[0].axis)
            inner = zip(own_line[1:], line[1:], line, strict=False)
            at = tuple(min(max(own.start, tile.start), before.stop) // step * step for own, tile, before in inner)
            ends = [line[0].start, *at, line[-1].stop]
            found.append(at if all(low < high for low, high in pairwise(ends)) else ())
        return tuple(found)

    def needed(self, op: int, tiles: Tiles) -> dict[int, Tiles]:
        """What tiles of an op read, by tensor. Raises CutError."""
        node, found = self.cutter.nodes[op], dict[int, Tiles]()
        boxes = [node.needs(tile) for tile in tiles]
        for tensor, name in zip(self.problem.reads[op], node.reads, strict=True):
            read = [box.get(name) for box in boxes]
            found[tensor] = tuple(need for need in read if need is not None and need.axes == self.axes)
            if len(found[tensor]) < len(tiles):
                raise CutError("a tile reads everything")
        return found

    def brought(self, stretch: _Stretch, before: _Stretch | None) -> list[list[Move]]:
        """What is moved to each tile: what others made of the stretch before, else of the whole."""
        found: list[list[Move]] = [[] for _ in self.team]
        for tensor, needs in stretch.needed.items():
            maker = self.lists.producer[tensor]
            for k, need in enumerate(needs):
                if before is None or maker not in before.tiles:
                    if maker < 0 and self.in_bands and k:  # what the tile above read stands there
                        axis, start, stop = need.spans[0]
                        need = Region.along(axis, max(start, needs[k - 1].spans[0].stop), stop)
                    found[k].append((tensor, need, self.made_at(tensor), self.places[k]))
                    continue
                for other, part in enumerate(self.equal[maker]):
                    missing = part.meet(need)
                    if other != k and missing is not None:
                        found[k].append((tensor, missing, self.places[other], self.places[k]))
        return found

    def gather_us(self, ops: Mapping[int, Tiles | None], end: int) -> float:
        """What bringing tiles of ops together takes (None: there are none), where others read them behind ``end``."""
        total = 0.0
        for op, tiles in ops.items():
            for tensor in (one for one in self.lists.writes[op] if self.last[one] > end):
                readers = [reader for reader in self.lists.readers[tensor] if self.turn[reader] > end]
                target = self.place[self.home[readers[0]]] if readers else self.problem.machine.host
                parts = zip(self.equal[op], self.places, strict=True) if tiles else [(None, self.made_at(tensor))]
                total += sum(self.move_us(tensor, part, place, target) for part, place in parts)
        return total

    def move_us(self, tensor: int, tile: Region | None, source: int, target: int) -> float:
        """What moving a box of a tensor, or all of it, takes."""
        if source == target:
            return 0.0
        if tile is None:
            return float(self.problem.transfer_us[tensor, source, target])
        name = self.problem.tensors[tensor]
        return float(self.cutter.move_us(name, tile.shape(self.cutter.shapes[name]))[source, target])


def _around(boxes: Sequence[Tiles]) -> Tiles:
    """The smallest boxes, tile by tile, around all of some."""
    first, *others = boxes
    for other in others:
        first = tuple(one.hull(two) for one, two in zip(first, other, strict=True))
    return first

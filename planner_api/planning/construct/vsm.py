"""D3's vertical separation (Zhang et al. 2021, section III-F): stacks of convolutions and pools in A x B tiles.

A stack is a chain of ops each of which reads a box of what the one before makes. A stretch of it is computed in as many
tiles as there are hosts, or cores, without loss: each computes the box that its part of the last output needs, halo
included, twice where tiles overlap. Where stretches end the paper leaves open; here a dynamic program says, which
counts what tiles compute twice against what hosts exchange between two stretches, and so which A and B are tried. What
is not in tiles stays where a plan of whole ops has it: HPA's, as the paper has it, or the best that is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product

import numpy as np

from hope_schema import Cut
from hope_schema.cutting import CutError, Region, Span
from planner_api.planning.budget import Budget
from planner_api.planning.construct import hpa
from planner_api.planning.construct.listing import listed
from planner_api.planning.methods import Solution
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.problem.cuts import cut_problem, homes_of

ROWS, COLUMNS = 2, 3
"""The axes of tiles."""
LONGEST = 24
"""Ops of a stretch at most."""
ALIKE = 2.0
"""How many times what the fastest of a team takes one may take that has a tile."""
CORES = 4
"""Tiles within one host take so many processors: with fewer they are stripes, which the search for cuts finds."""

Tiles = tuple[Region, ...]


@dataclass(frozen=True)
class _Stretch:
    """Ops of a chain from ``first`` on that are computed in tiles: what each tile computes of each, and reads."""

    first: int
    tiles: tuple[Tiles, ...]
    needed: Tiles
    us: float


@dataclass(frozen=True)
class _Way:
    """The best so far of a chain's first ops: the last one in tiles or not, and how it came about."""

    us: float
    before: _Way | None = None
    stretch: _Stretch | None = None


def solve(problem: Problem, budget: Budget) -> Solution:
    """D3's two steps: HPA's plan of whole ops, and tiles within it."""
    return tiled(problem, hpa.solve(problem, budget).schedule.assignment)


def tiled(problem: Problem, home: Sequence[int]) -> Solution:
    """The plan of the team and division that save most by the method's count; scored by the simulator.

    A search makes more of these than of the plan that is shortest as it stands: there fewer hosts wait for each other.

    Args:
        problem: with its cutter.
        home: where ops are that are not computed in tiles.

    Raises PlanningError where nothing is worth computing in tiles.
    """
    if problem.cutter is None:
        raise PlanningError("tiles take knowledge of parts")
    try:
        tilers = [
            _Tiler(problem, team[:count], rows, home)
            for team, counts in _teams(problem).items()
            for count in counts
            for rows in range(1, count + 1)
            if count % rows == 0
        ]
        best = max(tilers, key=lambda tiler: tiler.saved_us, default=None)
        found = None if best is None else best.solution()
    except CutError as error:
        raise PlanningError(f"tiles cannot be made: {error}") from error
    if found is None:
        raise PlanningError("no two hosts or four cores are alike, or nothing is worth computing in tiles")
    return found


def _teams(problem: Problem) -> dict[tuple[int, ...], list[int]]:
    """Processors about as fast as each other that can work side by side, and how many of them to take.

    They are one of each host, the first that are so, or of one host all.
    """
    hosts = problem.machine.owners[problem.machine.place]
    total = problem.latency_us.sum(axis=0)
    order = [p for p in np.argsort(total, kind="stable").tolist() if math.isfinite(total[p])]
    found: dict[tuple[int, ...], list[int]] = {}
    spread = False
    for turn, head in enumerate(order):
        if any(head in team for team in found):
            continue
        apart: list[int] = []
        within: list[int] = []
        for one in (p for p in order[turn:] if total[p] <= ALIKE * total[head]):
            if not any(hosts[one] == hosts[other] for other in apart):
                apart.append(one)
            if hosts[one] == hosts[head] and not any(problem.conflicts[one, other] for other in within):
                within.append(one)
        for team, least in ((apart, 2), (within, CORES)):
            if len(team) >= least and not (team is apart and spread):
                spread = spread or team is apart
                counts = range(least, len(team) + 1)
                found[tuple(team)] = [k for k in counts if k <= CORES or k % CORES == 0 or k == len(team)]
    return found


class _Tiler:
    """Tiles over some processors, so many of them below each other; all else is computed at ``home``.

    ``saved_us`` is what that saves by the method's own count.
    """

    def __init__(self, problem: Problem, team: Sequence[int], rows: int, home: Sequence[int]) -> None:
        self.problem, self.team, self.home = problem, tuple(team), home
        assert problem.cutter is not None
        self.cutter, self.lists = problem.cutter, problem.lists
        self.places = [int(problem.machine.place[processor]) for processor in team]
        counts = {ROWS: rows, COLUMNS: len(team) // rows}
        self.counts = {axis: count for axis, count in counts.items() if count > 1}
        self.axes = tuple(self.counts)
        equal = {op: self._equal(op) for op in self.lists.order}
        self.equal = {op: tiles for op, tiles in equal.items() if tiles is not None}
        self.found = [(chain, *self.best(chain)) for chain in self.chains()]
        self.saved_us = sum(us for _, us, _ in self.found)

    def solution(self) -> Solution | None:
        """The plan; None where nothing is computed in tiles."""
        cuts: dict[str, Cut] = {}
        for chain, _, stretches in self.found:
            for stretch in stretches:
                for k, tiles in enumerate(stretch.tiles):
                    op = chain[stretch.first + k]
                    name = self.cutter.nodes[op].id
                    cuts[name] = Cut(op=name, axes=self.axes, at=self.borders(op, tiles), chained=k > 0)
        if not cuts:
            return None
        cut, made = cut_problem(self.problem, tuple(cuts.values()))
        homes = {
            node.id: self.team if node.id in cuts else (home,)
            for node, home in zip(self.cutter.nodes, self.home, strict=True)
        }
        schedule = listed(cut, homes_of(cut, made, homes))
        return Solution(schedule, "vsm", cuts=tuple(cuts.values()), cut=cut)

    def chains(self) -> Iterator[list[int]]:
        """Maximal runs of ops that each read a box of what the one before makes, and nothing else does."""
        before, after = self.lists.before, self.lists.after
        taken: set[int] = set()
        for op in self.lists.order:
            if op in taken or op not in self.equal:
                continue
            chain = [op]
            while len(after[chain[-1]]) == 1 and len(before[after[chain[-1]][0]]) == 1:
                following = after[chain[-1]][0]
                if following not in self.equal:
                    break
                chain.append(following)
            taken.update(chain)
            yield chain

    def _equal(self, op: int) -> Tiles | None:
        """An op's output in equal tiles; None where it has none, or cannot be made of tiles."""
        node = self.cutter.nodes[op]
        shape = self.cutter.shapes[node.writes[0]]
        if len(node.writes) != 1 or len(node.reads) != 1 or len(shape) != 4:
            return None
        lines: list[list[Span]] = []
        try:
            for axis, count in self.counts.items():
                extent, step = shape[axis], node.granularity(axis)
                borders = [*(round(extent * k / count / step) * step for k in range(count)), extent]
                if any(low >= high for low, high in pairwise(borders)):
                    return None
                lines.append([Span(axis, low, high) for low, high in pairwise(borders)])
            tiles = tuple(Region(spans) for spans in product(*lines))
            self.needed(op, tiles)
        except CutError:
            return None
        return tiles

    def best(self, chain: Sequence[int]) -> tuple[float, list[_Stretch]]:
        """What tiles save of a chain by the method's count, and its stretches that are computed in them."""
        at = [int(self.problem.machine.place[self.home[op]]) for op in chain]
        begins, ends = self.begins(chain[0]), self.ends(chain[-1])
        own = [float(self.problem.latency_us[op, self.home[op]]) for op in chain]
        read = [self.problem.reads[op][0] for op in chain]
        moved = [self.move_us(read[k], None, at[k - 1] if k else begins, at[k]) for k in range(len(chain))]
        left = self.move_us(self.lists.writes[chain[-1]][0], None, at[-1], ends)
        alone = sum(own) + sum(moved) + left
        least = min(map(self.gather_us, chain, [*at[1:], ends]))
        if self.most_us(chain, own) + alone - sum(own) <= least:
            return 0.0, []
        tiled: list[_Way] = [_Way(math.inf)]
        solo: list[_Way] = [_Way(0.0)]
        for last in range(len(chain)):
            gathered = _Way(tiled[-1].us + self.gather_us(chain[last - 1], at[last]) if last else math.inf, tiled[-1])
            entered = min(_Way(solo[-1].us + moved[last], solo[-1]), gathered, key=lambda way: way.us)
            solo.append(_Way(entered.us + own[last], entered))
            way = _Way(math.inf)
            for stretch in self.stretches(chain, last):
                if stretch.us >= min(way.us, alone):
                    break
                first = stretch.first
                for before, brought_us in (
                    (solo[first], partial(self.scatter_us, chain, stretch, at[first - 1] if first else begins)),
                    (tiled[first], partial(self.exchange_us, chain, stretch)),
                ):
                    if (us := before.us + stretch.us) < min(way.us, alone) and (us := us + brought_us()) < way.us:
                        way = _Way(us, before, stretch)
            tiled.append(way)
        whole = _Way(solo[-1].us + left, solo[-1])
        ended = _Way(tiled[-1].us + self.gather_us(chain[-1], ends), tiled[-1])
        best = min(whole, ended, key=lambda one: one.us)
        found = []
        back: _Way | None = best
        while back is not None:
            if back.stretch is not None:
                found.append(back.stretch)
            back = back.before
        return alone - best.us, found[::-1]

    def begins(self, op: int) -> int:
        """The place where what a chain reads is made."""
        maker = self.lists.producer[self.problem.reads[op][0]]
        return self.problem.machine.host if maker < 0 else int(self.problem.machine.place[self.home[maker]])

    def ends(self, op: int) -> int:
        """The place where what a chain makes is read."""
        readers = self.lists.readers[self.lists.writes[op][0]]
        return int(self.problem.machine.place[self.home[readers[0]]]) if readers else self.problem.machine.host

    def most_us(self, chain: Sequence[int], own: Sequence[float]) -> float:
        """What tiles that lack nothing of each other save beside computing all at home: none save more."""
        tiles = [
            max(self.cutter.part_us(op, tile)[p] for tile, p in zip(self.equal[op], self.team, strict=True))
            for op in chain
        ]
        return float(sum(max(0.0, us - tile) for us, tile in zip(own, tiles, strict=True)))

    def stretches(self, chain: Sequence[int], last: int) -> Iterator[_Stretch]:
        """All that end with an op, and what the slowest tile of each computes, which grows from one to the next."""
        tiles = self.equal[chain[last]]
        us = np.zeros(len(self.team))
        computed: list[Tiles] = []
        for first in range(last, max(-1, last - LONGEST), -1):
            computed.insert(0, tiles)
            try:
                for k, tile in enumerate(tiles):
                    us[k] += self.cutter.part_us(chain[first], tile)[self.team[k]]
                needed = self.needed(chain[first], tiles)
            except CutError:
                return
            yield _Stretch(first, tuple(computed), needed, float(us.max()))
            if not first or not all(self.borders(chain[first - 1], needed)):
                return
            tiles = needed

    def borders(self, op: int, tiles: Tiles) -> tuple[tuple[int, ...], ...]:
        """Where an op is cut, axis by axis, so that no tile becomes larger by it; empty where it cannot be."""
        equal = self.equal[op]
        found = []
        for own_line, line in zip(self.lines(equal), self.lines(tiles), strict=True):
            step = self.cutter.nodes[op].granularity(line[0].axis)
            inner = zip(own_line[1:], line[1:], line, strict=False)
            at = tuple(min(max(own.start, tile.start), before.stop) // step * step for own, tile, before in inner)
            ends = [line[0].start, *at, line[-1].stop]
            found.append(at if all(low < high for low, high in pairwise(ends)) else ())
        return tuple(found)

    def lines(self, tiles: Tiles) -> list[list[Span]]:
        """The intervals of tiles, axis by axis."""
        counts, step = [*self.counts.values()], {ROWS: self.counts.get(COLUMNS, 1), COLUMNS: 1}
        firsts = [tiles[:: step[axis]][:count] for axis, count in zip(self.axes, counts, strict=True)]
        return [[tile.spans[g] for tile in line] for g, line in enumerate(firsts)]

    def needed(self, op: int, tiles: Tiles) -> Tiles:
        """What tiles of an op read. Raises CutError."""
        node = self.cutter.nodes[op]
        found = [node.needs(tile).get(node.reads[0]) for tile in tiles]
        if any(need is None or need.axes != self.axes for need in found):
            raise CutError("a tile reads everything")
        return tuple(need for need in found if need is not None)

    def scatter_us(self, chain: Sequence[int], stretch: _Stretch, source: int) -> float:
        """What bringing its input to the tiles takes, from where all of it is."""
        tensor = self.problem.reads[chain[stretch.first]][0]
        ways = zip(stretch.needed, self.places, strict=True)
        return sum(self.move_us(tensor, tile, source, place) for tile, place in ways)

    def exchange_us(self, chain: Sequence[int], stretch: _Stretch) -> float:
        """What tiles of the stretch before miss of their input, from their neighbours."""
        own = self.equal[chain[stretch.first - 1]]
        tensor = self.problem.reads[chain[stretch.first]][0]
        total = 0.0
        for k, need in enumerate(stretch.needed):
            for other, part in enumerate(own):
                missing = part.meet(need)
                if other != k and missing is not None:
                    total += self.move_us(tensor, missing, self.places[other], self.places[k])
        return total

    def gather_us(self, op: int, target: int) -> float:
        """What bringing an op's tiles together takes."""
        tensor = self.lists.writes[op][0]
        ways = zip(self.equal[op], self.places, strict=True)
        return sum(self.move_us(tensor, tile, place, target) for tile, place in ways)

    def move_us(self, tensor: int, tile: Region | None, source: int, target: int) -> float:
        """What moving a box of a tensor, or all of it, takes."""
        if source == target:
            return 0.0
        if tile is None:
            return float(self.problem.transfer_us[tensor, source, target])
        name = self.problem.tensors[tensor]
        return float(self.cutter.move_us(name, tile.shape(self.cutter.shapes[name]))[source, target])

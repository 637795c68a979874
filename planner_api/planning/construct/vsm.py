"""D3's vertical separation (Zhang et al. 2021, section III-F): stacks of convolutions and pools in tiles over hosts.

A stack is a chain of ops each of which reads rows of what the one before makes. A stretch of it is computed in as many
tiles as there are hosts, without loss: each computes the rows that its part of the last output needs, halo included,
twice where tiles overlap. Where stretches end the paper leaves open; here a dynamic program says, which counts what
tiles compute twice against what hosts exchange between two stretches. What is not in tiles stays on one of the hosts.

Tiles are rows: where hosts exchange halos alone, squares of as many pixels gain little more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hope_schema import Cut
from hope_schema.cutting import CutError, Region
from planner_api.planning.budget import Budget
from planner_api.planning.construct.tiers import tiers_of
from planner_api.planning.judge.simulator import simulate
from planner_api.planning.methods import Solution
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.problem.cuts import cut_problem, homes_of

ROWS = 2
"""The axis of tiles."""
LONGEST = 24
"""Ops of a stretch at most."""
ALIKE = 2.0
"""How many times what the fastest host takes one may take that has a tile."""

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
    """The best plan of any number of hosts; scored by the simulator."""
    if problem.cutter is None or problem.machine.owner is None:
        raise PlanningError("tiles take several hosts, and knowledge of parts")
    tiers = tiers_of(problem)
    total = np.where(np.isfinite(tiers.us), tiers.us, 0.0).sum(axis=0)
    order = [k for k in np.argsort(total, kind="stable").tolist() if np.isfinite(tiers.us[:, k]).all()]
    hosts = [k for k in order if total[k] <= ALIKE * total[order[0]]]
    found = []
    for count in range(2, len(hosts) + 1):
        team = [int(tiers.processor[0, k]) for k in hosts[:count]]
        try:
            found.append(_Tiler(problem, team).solution())
        except CutError as error:
            raise PlanningError(f"tiles cannot be made: {error}") from error
    best = min((one for one in found if one is not None), key=lambda one: one.schedule.value_us, default=None)
    if best is None:
        raise PlanningError("no two hosts are alike, or nothing is worth computing in tiles")
    return best


class _Tiler:
    """Tiles over some processors, of which the first computes all else."""

    def __init__(self, problem: Problem, team: Sequence[int]) -> None:
        self.problem, self.team = problem, tuple(team)
        assert problem.cutter is not None
        self.cutter, self.lists = problem.cutter, problem.lists
        self.places = [int(problem.machine.place[processor]) for processor in team]

    def solution(self) -> Solution | None:
        """The plan; None where nothing is computed in tiles."""
        cuts: dict[str, Cut] = {}
        for chain in self.chains():
            for stretch in self.best(chain):
                for k, tiles in enumerate(stretch.tiles):
                    op = chain[stretch.first + k]
                    name = self.cutter.nodes[op].id
                    cuts[name] = Cut(op=name, axis=ROWS, at=self.borders(op, tiles), chained=k > 0)
        if not cuts:
            return None
        cut, made = cut_problem(self.problem, tuple(cuts.values()))
        home = self.team[0]
        homes = {node.id: self.team if node.id in cuts else (home,) for node in self.cutter.nodes}
        schedule = simulate(cut, homes_of(cut, made, homes), cut.lists.order)
        return Solution(schedule, "vsm", cuts=tuple(cuts.values()), cut=cut)

    def chains(self) -> Iterator[list[int]]:
        """Maximal runs of ops that each read rows of what the one before makes, and nothing else does."""
        before, after = self.lists.before, self.lists.after
        taken: set[int] = set()
        for op in self.lists.order:
            if op in taken or self.whole(op) is None:
                continue
            chain = [op]
            while len(after[chain[-1]]) == 1 and len(before[after[chain[-1]][0]]) == 1:
                following = after[chain[-1]][0]
                if self.whole(following) is None:
                    break
                chain.append(following)
            taken.update(chain)
            yield chain

    def whole(self, op: int) -> Tiles | None:
        """An op's output in equal tiles; None where it has none, or cannot be made of tiles."""
        node = self.cutter.nodes[op]
        shape = self.cutter.shapes[node.writes[0]]
        if len(node.writes) != 1 or len(node.reads) != 1 or len(shape) != 4:
            return None
        extent, count = shape[ROWS], len(self.team)
        try:
            step = node.granularity(ROWS)
            borders = [*(round(extent * k / count / step) * step for k in range(count)), extent]
            tiles = tuple(Region(ROWS, low, high) for low, high in pairwise(borders))
            if min(map(_size, tiles)) > 0:
                self.needed(op, tiles)
                return tiles
        except CutError:
            pass
        return None

    def best(self, chain: Sequence[int]) -> list[_Stretch]:
        """The stretches of a chain that are computed in tiles."""
        tiled: list[_Way] = [_Way(math.inf)]
        solo: list[_Way] = [_Way(0.0)]
        for last, op in enumerate(chain):
            one = float(self.problem.latency_us[op, self.team[0]])
            gathered = _Way(tiled[-1].us + self.gather_us(chain[last - 1]) if last else math.inf, tiled[-1])
            entered = min(solo[-1], gathered, key=lambda way: way.us)
            ways = [
                _Way(before.us + stretch.us + moved, before, stretch)
                for stretch in self.stretches(chain, last)
                for before, moved in (
                    (solo[stretch.first], self.scatter_us(chain, stretch)),
                    (tiled[stretch.first], self.exchange_us(chain, stretch)),
                )
            ]
            solo.append(_Way(entered.us + one, entered))
            tiled.append(min(ways, key=lambda way: way.us, default=_Way(math.inf)))
        ended = _Way(tiled[-1].us + self.gather_us(chain[-1]), tiled[-1])
        way: _Way | None = min(solo[-1], ended, key=lambda one: one.us)
        found = []
        while way is not None:
            if way.stretch is not None:
                found.append(way.stretch)
            way = way.before
        return found[::-1]

    def stretches(self, chain: Sequence[int], last: int) -> Iterator[_Stretch]:
        """All that end with an op, and what the slowest tile of each computes."""
        tiles = self.whole(chain[last])
        assert tiles is not None
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
            if not first or not self.borders(chain[first - 1], needed):
                return
            tiles = needed

    def borders(self, op: int, tiles: Tiles) -> tuple[int, ...]:
        """Where an op is cut so that no tile becomes larger by it; empty where it cannot be."""
        equal = self.whole(op)
        assert equal is not None
        step = self.cutter.nodes[op].granularity(ROWS)
        inner = zip(equal[1:], tiles[1:], tiles, strict=False)
        at = tuple(min(max(own.start, tile.start), before.stop) // step * step for own, tile, before in inner)
        ends = [tiles[0].start, *at, tiles[-1].stop]
        return at if all(low < high for low, high in pairwise(ends)) else ()

    def needed(self, op: int, tiles: Tiles) -> Tiles:
        """What tiles of an op read. Raises CutError."""
        node = self.cutter.nodes[op]
        found = [node.needs(tile).get(node.reads[0]) for tile in tiles]
        if any(need is None or need.axis != ROWS for need in found):
            raise CutError("a tile reads everything")
        return tuple(need for need in found if need is not None)

    def scatter_us(self, chain: Sequence[int], stretch: _Stretch) -> float:
        """What bringing its input to the tiles takes, from where all of it is."""
        op = chain[stretch.first]
        tensor = self.problem.reads[op][0]
        given = self.lists.producer[tensor] < 0
        source = self.problem.machine.host if given else self.places[0]
        ways = zip(stretch.needed, self.places, strict=True)
        return sum(self.move_us(tensor, _size(tile), source, place) for tile, place in ways)

    def exchange_us(self, chain: Sequence[int], stretch: _Stretch) -> float:
        """What tiles of the stretch before miss of their input, from their neighbours."""
        if not stretch.first:
            return math.inf
        own = self.whole(chain[stretch.first - 1])
        assert own is not None
        tensor = self.problem.reads[chain[stretch.first]][0]
        total = 0.0
        for k, need in enumerate(stretch.needed):
            for other, part in enumerate(own):
                missing = min(part.stop, need.stop) - max(part.start, need.start)
                if other != k and missing > 0:
                    total += self.move_us(tensor, missing, self.places[other], self.places[k])
        return total

    def gather_us(self, op: int) -> float:
        """What bringing an op's tiles together takes."""
        tiles = self.whole(op)
        assert tiles is not None
        tensor = self.lists.writes[op][0]
        target = self.places[0] if self.lists.readers[tensor] else self.problem.machine.host
        ways = zip(tiles, self.places, strict=True)
        return sum(self.move_us(tensor, _size(tile), place, target) for tile, place in ways)

    def move_us(self, tensor: int, rows: int, source: int, target: int) -> float:
        """What moving some rows takes."""
        name = self.problem.tensors[tensor]
        shape = self.cutter.shapes[name]
        return float(self.cutter.move_us(name, (*shape[:ROWS], rows, *shape[ROWS + 1 :]))[source, target])


def _size(tile: Region) -> int:
    return tile.stop - tile.start

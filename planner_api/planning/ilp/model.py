"""HOPE eqs 1-6 for a window of ops that follows a schedule already fixed.

The formulation is tighter than the paper's: one start and one finish per op instead of one per op and device;
ordering binaries only for pairs without a path that can meet on a resource; the smallest big-M each pair allows;
load cuts. Two things that the paper leaves open are made exact, so that the objective equals the simulator:

- a tensor with several readers on one processor is paid for by the first of them there (tensor caching, section
  4.3): a binary says who pays;
- with three or more processors the price depends on the source: the product of both placements is linearised.

Like every method of the literature it sees the problem as `Lists` does, and the simulator says what its plans take.
"""

import itertools
import math
from collections.abc import Collection, Sequence

import networkx as nx

from planner_api.planning.highs import Program
from planner_api.planning.judge.simulator import Decoder
from planner_api.planning.problem import Problem


class Window:
    """The program for some ops, after what ``fixed`` holds.

    Args:
        fixed: the schedule so far; every producer that the ops read from outside has been placed.
        ops: the window in topological order; convex (no path leaves it and returns).
        limit: a makespan in microseconds that is known to be reachable; the tighter, the smaller the big-Ms.
    """

    def __init__(self, problem: Problem, fixed: Decoder, ops: Sequence[int], limit: float) -> None:
        self.problem, self.fixed, self.ops = problem, fixed, list(ops)
        self.lists = problem.lists
        self.m = len(self.ops)
        self.free = fixed.free
        self.base = min(self.free)
        self.limit = limit - self.base
        self.index = {op: i for i, op in enumerate(self.ops)}
        self.program = Program()
        self._paths()
        self._times()
        self._variables()
        self._order_rows()
        self._transfers()
        self._timing_rows()
        self._load_rows()

    def _paths(self) -> None:
        """Transitive closure within the window."""
        self.paths = nx.DiGraph()
        self.paths.add_nodes_from(range(self.m))
        self.paths.add_edges_from(
            (self.index[one], i) for i, op in enumerate(self.ops) for one in self.lists.before[op] if one in self.index
        )
        self.earlier: list[set[int]] = [nx.ancestors(self.paths, i) for i in range(self.m)]
        self.later: list[set[int]] = [nx.descendants(self.paths, i) for i in range(self.m)]

    def _times(self) -> None:
        """Earliest start and latest finish of every op: what makes the big-Ms small."""
        lists = self.lists
        shortest = [min(lists.latency[op]) for op in self.ops]
        self.head = [0.0] * self.m
        for i, op in enumerate(self.ops):
            outside = [e for e in lists.before[op] if e not in self.index]
            release = max((self.fixed.finish[e] for e in outside), default=0.0) - self.base
            places = [p for p, us in enumerate(lists.latency[op]) if us < math.inf]
            free = min(self.free[p] for p in places) - self.base
            inside = [self.head[k] + shortest[k] for k in self.earlier[i]]
            self.head[i] = max(0.0, release, free, *inside)
        way = lists.ways_on(self.ops, [min(row) for row in lists.latency])
        self.tail = [way[op] for op in self.ops]

    def _variables(self) -> None:
        program = self.program
        self.makespan = program.column(0.0, self.limit, cost=1.0)
        self.start, self.finish = [], []
        self.on: list[dict[int, int]] = []
        for i, op in enumerate(self.ops):
            latest = max(self.limit - self.tail[i], self.head[i])
            self.start.append(program.column(self.head[i], latest))
            self.finish.append(program.column(self.head[i], latest))
            self.on.append({p: program.binary() for p, us in enumerate(self.lists.latency[op]) if us < math.inf})
            program.row([(x, 1.0) for x in self.on[i].values()], 1.0, 1.0)  # eq. 6
        # What an op spends on a processor, as a linear expression: latency here, transfers are added later.
        self.spends: list[dict[int, list[tuple[int, float]]]] = [
            {p: [(x, self.lists.latency[op][p])] for p, x in self.on[i].items()} for i, op in enumerate(self.ops)
        ]

    def _order_rows(self) -> None:
        """Eqs 4 and 5 for pairs without a path: one before the other where they meet on a resource."""
        program = self.program
        self.first: dict[tuple[int, int], int] = {}
        for i, k in itertools.combinations(range(self.m), 2):
            if i in self.earlier[k] or k in self.earlier[i]:
                continue
            meets = [(p, q) for p in self.on[i] for q in self.on[k] if q in self.lists.rivals[p]]
            if not meets:
                continue
            ahead, behind, same = program.binary(), program.binary(), program.column(0.0, 1.0)
            self.first[i, k], self.first[k, i] = ahead, behind
            program.row([(ahead, 1.0), (behind, 1.0)], 1.0, 1.0)
            for p, q in meets:
                program.at_least([(same, 1.0), (self.on[i][p], -1.0), (self.on[k][q], -1.0)], -1.0)
            for one, two, order in ((i, k, ahead), (k, i, behind)):
                big = self.limit - self.tail[one] - self.head[two]
                row = [(self.start[two], 1.0), (self.finish[one], -1.0), (order, -big), (same, -big)]
                program.at_least(row, -2 * big)

    def _transfers(self) -> None:
        """The communication term of eq. 1, tensor by tensor and target by target."""
        readers: dict[int, list[int]] = {}
        for i, op in enumerate(self.ops):
            for tensor in self.lists.reads[op]:
                readers.setdefault(tensor, []).append(i)
        for tensor, reading in readers.items():
            producer = self.lists.producer[tensor]
            maker = self.index.get(producer)
            for target in range(self.problem.host):
                here = [i for i in reading if target in self.on[i]]
                if not here:
                    continue
                if maker is None:
                    source = self.fixed.home[producer] if producer >= 0 else self.problem.host
                    if source != target and (tensor, target) not in self.fixed.taken:
                        self._from_outside(tensor, source, target, here)
                elif any(p != target for p in self.on[maker]):
                    self._from_inside(tensor, target, here, maker)

    def _from_outside(self, tensor: int, source: int, target: int, here: list[int]) -> None:
        cost = float(self.problem.crossing_us(tensor)[source, target])
        if cost == 0.0:
            return
        if cost == math.inf:
            for i in here:
                self.program.row([(self.on[i][target], 1.0)], 0.0, 0.0)
        elif len(here) == 1:
            i = here[0]
            self.spends[i][target][0] = (self.on[i][target], self.spends[i][target][0][1] + cost)
        else:
            for i, pays in zip(here, self._payers(here, target, None), strict=True):
                self.spends[i][target].append((pays, cost))

    def _from_inside(self, tensor: int, target: int, here: list[int], maker: int) -> None:
        program, made = self.program, self.on[maker]
        prices = {
            p: us
            for p, us in enumerate(self.problem.crossing_us(tensor)[:, target].tolist())
            if p in made and p != target
        }
        if len(here) == 1:
            payers: list[int | None] = [None] * len(here)
        elif all(price == 0.0 for price in prices.values()):
            return
        else:
            payers = list(self._payers(here, target, maker))
        for i, pays in zip(here, payers, strict=True):
            # Sum of the moves from each source is at least what is needed; each is possible from its source only.
            moves = {p: program.column(0.0, 1.0) for p, price in prices.items() if price < math.inf}
            need = [(pays, -1.0)] if pays is not None else [(self.on[i][target], -1.0)]
            if pays is None and target in made:
                need.append((made[target], 1.0))
            program.at_least([*((w, 1.0) for w in moves.values()), *need], 0.0)
            if len(made) > 2 or len(moves) < len(prices):
                for p, w in moves.items():
                    program.at_least([(made[p], 1.0), (w, -1.0)], 0.0)
            self.spends[i][target].extend((w, prices[p]) for p, w in moves.items() if prices[p] > 0.0)

    def _payers(self, here: list[int], target: int, maker: int | None) -> list[int]:
        """A binary per reader: it is the first on ``target`` to read a tensor that was made elsewhere."""
        program = self.program
        pays = [program.binary() for _ in here]
        away = [] if maker is None or target not in self.on[maker] else [(self.on[maker][target], 1.0)]
        total = [(y, 1.0) for y in pays]
        for i, y in zip(here, pays, strict=True):
            x = self.on[i][target]
            program.at_least([*total, (x, -1.0), *away], 0.0)
            program.at_least([(x, 1.0), (y, -1.0)], 0.0)
            for k in here:
                if k == i or k in self.later[i]:
                    continue
                both = [(y, -1.0), (self.on[k][target], -1.0)]
                if k in self.earlier[i]:
                    program.at_least(both, -1.0)
                else:
                    program.at_least([(self.first[i, k], 1.0), *both], -1.0)
        return pays

    def _timing_rows(self) -> None:
        """Eqs 1, 2 and 3."""
        program, free = self.program, self.free
        for i, op in enumerate(self.ops):
            spends = [(column, -us) for terms in self.spends[i].values() for column, us in terms]
            program.row([(self.finish[i], 1.0), (self.start[i], -1.0), *spends], 0.0, 0.0)
            program.at_least([(self.makespan, 1.0), (self.finish[i], -1.0)], 0.0)
            later = [(x, -(free[p] - self.base)) for p, x in self.on[i].items() if free[p] > self.base]
            program.at_least([(self.start[i], 1.0), *later], 0.0)
            for producer in self.lists.before[op]:
                if producer in self.index:
                    program.at_least([(self.start[i], 1.0), (self.finish[self.index[producer]], -1.0)], 0.0)

    def _load_rows(self) -> None:
        """Valid cuts: processors that share a resource do their work one after the other.

        The ops that start at ``head`` or later and end ``tail`` before the end at the latest, for every pair of
        such thresholds; the ops below an op after it; above an op before it; between two ops between them.
        """
        program = self.program
        conflicts = nx.Graph()
        conflicts.add_nodes_from(range(self.problem.host))
        conflicts.add_edges_from((p, q) for p, row in enumerate(self.lists.rivals) for q in row if p != q)
        for clique in nx.find_cliques(conflicts):
            seen: set[frozenset[int]] = set()
            for head, tail in itertools.product(sorted(set(self.head)), sorted(set(self.tail))):
                inside = frozenset(k for k in range(self.m) if self.head[k] >= head and self.tail[k] >= tail)
                if len(inside) > 1 and inside not in seen:
                    seen.add(inside)
                    room = min(self.head[k] for k in inside) + min(self.tail[k] for k in inside)
                    work = self._work(inside, clique)
                    if len(inside) == self.m:
                        work += self._wait(clique, min(self.head))
                    program.at_least([(self.makespan, 1.0), *work], room)
            for i in range(self.m):
                below, above = self.later[i], self.earlier[i]
                if len(below) > 1:
                    rest = min(self.tail[k] for k in below)
                    work = self._work(below, clique)
                    program.at_least([(self.makespan, 1.0), (self.finish[i], -1.0), *work], rest)
                if len(above) > 1:
                    first = min(self.head[k] for k in above)
                    program.at_least([(self.start[i], 1.0), *self._work(above, clique)], first)
                for k in below:
                    between = below & self.earlier[k]
                    if len(between) > 1:
                        work = self._work(between, clique)
                        program.at_least([(self.start[k], 1.0), (self.finish[i], -1.0), *work], 0.0)

    def _wait(self, clique: list[int], head: float) -> list[tuple[int, float]]:
        """Minus the time from ``head`` until the clique is free, if the window uses it at all."""
        wait = min(self.free[p] for p in clique) - self.base - head
        if wait <= 0.0:
            return []
        used = self.program.column(0.0, 1.0)
        for on in self.on:
            for p in clique:
                if p in on:
                    self.program.at_least([(used, 1.0), (on[p], -1.0)], 0.0)
        return [(used, -wait)]

    def _work(self, members: Collection[int], clique: list[int]) -> list[tuple[int, float]]:
        """Minus what the members spend on the processors of a clique, as a linear expression."""
        return [(column, -us) for k in members for p in clique for column, us in self.spends[k].get(p, ())]

    def point(self, assignment: Sequence[int], start: Sequence[float], finish: Sequence[float]) -> dict[int, float]:
        """A schedule of the window as a warm start; lists by position in ``ops``, absolute microseconds."""
        values: dict[int, float] = {}
        for i, processor in enumerate(assignment):
            values.update((x, float(p == processor)) for p, x in self.on[i].items())
            values[self.start[i]], values[self.finish[i]] = start[i] - self.base, finish[i] - self.base
        for (i, k), column in self.first.items():
            values[column] = float((start[i] + finish[i], i) < (start[k] + finish[k], k))
        values[self.makespan] = max(finish) - self.base
        return values

    def decode(self, values: Sequence[float]) -> tuple[list[int], list[int]]:
        """Processor of each op of the window, and the order in which they run."""
        assignment = [max(on, key=lambda p: values[on[p]]) for on in self.on]
        # By the middle of their intervals: starts are equal only up to tolerance where an op has no length. And what it
        # reads from goes first, with which it may share all its times.
        middle = [values[start] + values[finish] for start, finish in zip(self.start, self.finish, strict=True)]
        order = nx.lexicographical_topological_sort(self.paths, key=lambda i: (middle[i], i))
        return assignment, list(order)

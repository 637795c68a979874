"""The interval-load bound: a linear program over fractional placements.

Variables: x[i, p], the share of op i on processor p; y[t, p], whether tensor t is moved to p (at least x[reader, p] -
x[producer, p] for each of its readers); and when each op finishes. Three families of rows, each true of every schedule:

- paths: an op finishes after each predecessor by its latency plus the transfers that nobody else can pay for;
- load: the work on the processors that share a resource, transfers included, fits into the makespan;
- intervals: whatever lies between ops a and b in the graph runs after a's finish and before b's start, so between them
  fits its work on each resource, and the transfer of every tensor that is read nowhere else.

There are too many intervals to write down; those that the last solution violates are added until none is left.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import highspy
import networkx as nx
import numpy as np
from numpy.typing import NDArray

from planner_api.planning.problem import BoolArray, FloatArray, IntArray, Problem
from planner_api.planning.solver import Bound, Budget

MOST_HUBS = 400
"""Ops at which intervals may begin, and at which they may end."""
MOST_OPS = 5000
"""Above this many ops the first program alone takes longer than a plan may."""
MOST_OPS_WITH_MOVES = 3000
"""Above this many ops the program leaves transfers out, to end in time."""
MOST_CLIQUES = 64
"""Sets of processors that share a resource."""
ROUNDS = 12
"""Times that violated intervals are looked for."""
MOST_VIOLATED = 2
"""Intervals added per end and round for their violation alone."""
TOLERANCE = 1e-4
"""Violations, relative to the critical path, that are not worth a row."""
ENOUGH = 5e-5
"""Relative progress of a round below which the next is not worth its time."""
SAFETY = 1e-6
"""Relative margin for the solver's tolerance: the bound must hold, not only nearly."""
SCALE = 1000.0
"""The critical path in the program's unit, so that tolerances mean the same for a phone and for a server."""


def interval_load(problem: Problem, budget: Budget) -> Bound | None:
    """The bound that the budget allows.

    Returns:
        None when there are too many ops, or no time to solve the first program.
    """
    if len(problem.ops) > MOST_OPS:
        return None
    program = _Program(problem)
    best: float | None = None
    for turn in range(ROUNDS):
        value = program.solve(budget.left())
        if value is None:
            break
        slow = best is not None and value <= best * (1 + ENOUGH)
        best = value
        if slow or turn == ROUNDS - 1 or budget.left() <= 0 or not program.add_violated():
            break
    return None if best is None else Bound(best * (1 - SAFETY), "interval-load")


class _Program:
    """The program, growing by intervals. Times are in ``unit`` microseconds."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.lists = problem, problem.lists
        n, host = problem.latency_us.shape
        self.host = host
        supported = np.isfinite(problem.latency_us)
        path = 0.0
        reach = [0.0] * n
        for op in self.lists.order:
            reach[op] = min(self.lists.latency[op]) + max((reach[b] for b in self.lists.before[op]), default=0.0)
            path = max(path, reach[op])
        self.unit = path / SCALE if path > 0 else 1.0
        self.latency = np.where(supported, problem.latency_us, 0.0) / self.unit
        self.cliques = _cliques(problem.conflicts)
        # Columns: x by op and processor, then the finish of each op, then the makespan, then y.
        self.upper = list(supported.astype(float).ravel())
        self.finish = n * host
        self.makespan = self.finish + n
        self.upper += [math.inf] * (n + 1)
        self.rows: list[tuple[NDArray[np.int64], FloatArray, float, float]] = []
        self.moves: dict[tuple[int, int], tuple[int, float]] = {}
        self._place_rows()
        self._move_rows()
        self._path_rows()
        self._load_rows()
        self._hubs()
        self.known: set[tuple[int, int, int]] = set()
        self.solver = self._pass()

    def x(self, op: int, processor: int) -> int:
        """Column of an op's share on a processor."""
        return int(op * self.host + processor)

    def _row(self, terms: dict[int, float], low: float = 0.0, high: float = math.inf) -> None:
        columns = np.fromiter(terms.keys(), dtype=np.int64, count=len(terms))
        self.rows.append((columns, np.fromiter(terms.values(), dtype=np.float64, count=len(terms)), low, high))

    def _place_rows(self) -> None:
        for op in range(len(self.lists.latency)):
            self._row({self.x(op, p): 1.0 for p in range(self.host)}, 1.0, 1.0)

    def _move_rows(self) -> None:
        """y[t, p] >= x[reader, p] - x[producer, p]; what cannot be moved must not be."""
        lists, host = self.lists, self.host
        costly = len(lists.latency) <= MOST_OPS_WITH_MOVES
        for tensor, producer in enumerate(lists.producer):
            readers = lists.readers[tensor]
            for target in range(host) if readers else ():
                if producer >= 0:
                    sources = [p for p in range(host) if p != target and lists.latency[producer][p] < math.inf]
                else:
                    sources = [host]
                cost = min((lists.transfer[tensor][p][target] for p in sources), default=0.0)
                if cost == 0.0:
                    continue
                if math.isinf(cost):
                    for reader in readers:
                        terms = {self.x(reader, target): -1.0}
                        if producer >= 0:
                            terms[self.x(producer, target)] = 1.0
                        self._row(terms)
                elif costly:
                    self.upper.append(1.0)
                    column = len(self.upper) - 1
                    self.moves[tensor, target] = column, cost / self.unit
                    for reader in readers:
                        terms = {column: 1.0, self.x(reader, target): -1.0}
                        if producer >= 0:
                            terms[self.x(producer, target)] = 1.0
                        self._row(terms)

    def _duration(self, op: int) -> dict[int, float]:
        """What surely passes between the finish of all that an op reads from and its own finish."""
        terms = {self.x(op, p): float(us) for p, us in enumerate(self.latency[op]) if us > 0}
        if self.problem.mode == "blocking":
            for tensor in self.lists.reads[op]:
                terms.update(self._fetch(tensor))
        return terms

    def _fetch(self, tensor: int) -> dict[int, float]:
        """What the only reader of a tensor waits for it. With other readers, one of them may have fetched it."""
        if len(self.lists.readers[tensor]) > 1:
            return {}
        return dict(self.moves[tensor, p] for p in range(self.host) if (tensor, p) in self.moves)

    def _path_rows(self) -> None:
        lists = self.lists
        self.durations = [self._duration(op) for op in range(len(lists.latency))]
        for op, duration in enumerate(self.durations):
            spent = {column: -value for column, value in duration.items()}
            for earlier in lists.before[op] or [-1]:
                terms = {self.finish + op: 1.0, **spent}
                if earlier >= 0:
                    terms[self.finish + earlier] = -1.0
                self._row(terms)
            if self.problem.mode == "overlap":
                for tensor in lists.reads[op]:
                    fetch = self._fetch(tensor)
                    if fetch:
                        terms = {self.finish + op: 1.0, **spent, **{column: -cost for column, cost in fetch.items()}}
                        if lists.producer[tensor] >= 0:
                            terms[self.finish + lists.producer[tensor]] = -1.0
                        self._row(terms)
            export: dict[int, float] = {}
            for tensor in lists.writes[op]:
                if self.problem.is_output[tensor]:
                    for p in range(self.host):
                        cost = lists.transfer[tensor][p][self.host] / self.unit
                        if math.isinf(cost):
                            self.upper[self.x(op, p)] = 0.0
                        else:
                            export[self.x(op, p)] = min(export.get(self.x(op, p), 0.0), -cost)
            if export or not lists.after[op]:
                self._row({self.makespan: 1.0, self.finish + op: -1.0, **export})

    def _load_rows(self) -> None:
        for clique in self.cliques:
            terms = {self.makespan: 1.0}
            for processor in clique:
                for op in np.flatnonzero(self.latency[:, processor]):
                    terms[self.x(int(op), processor)] = -float(self.latency[op, processor])
                if self.problem.mode == "blocking":
                    for (_, target), (column, cost) in self.moves.items():
                        if target == processor:
                            terms[column] = -cost
            self._row(terms)

    def _hubs(self) -> None:
        """Where intervals begin (forks) and end (joins), what lies below and above, which tensors stay inside."""
        lists = self.lists
        n = len(lists.latency)
        self.begins = _busiest([op for op in range(n) if len(lists.after[op]) > 1], lists.after)
        self.ends = _busiest([op for op in range(n) if len(lists.before[op]) > 1], lists.before)
        below = np.zeros((n, len(self.begins)), dtype=bool)
        own = {op: k for k, op in enumerate(self.begins)}
        for op in lists.order:
            for earlier in lists.before[op]:
                below[op] |= below[earlier]
                if earlier in own:
                    below[op, own[earlier]] = True
        above = np.zeros((n, len(self.ends)), dtype=bool)
        own = {op: k for k, op in enumerate(self.ends)}
        for op in reversed(lists.order):
            for later in lists.after[op]:
                above[op] |= above[later]
                if later in own:
                    above[op, own[later]] = True
        self.below: BoolArray = below
        self.above: BoolArray = above
        self.linked: BoolArray = below[self.ends].T if self.begins and self.ends else np.zeros((0, 0), dtype=bool)
        blocking = self.problem.mode == "blocking"
        inside: list[int] = sorted({tensor for tensor, _ in self.moves}) if blocking else []
        self.tensors: IntArray = np.array(inside, dtype=np.int64)
        self.tensor_below: BoolArray = np.zeros((len(inside), len(self.begins)), dtype=bool)
        self.tensor_above: BoolArray = np.zeros((len(inside), len(self.ends)), dtype=bool)
        for k, tensor in enumerate(inside):
            self.tensor_below[k] = below[lists.readers[tensor]].all(axis=0)
            self.tensor_above[k] = above[lists.readers[tensor]].all(axis=0)
        self.ops_inside = _factors(below, above)
        self.tensors_inside = _factors(self.tensor_below, self.tensor_above)
        column = np.full((len(inside), self.host), -1)
        cost = np.zeros((len(inside), self.host))
        place = {tensor: k for k, tensor in enumerate(inside)}
        for (tensor, target), (index, value) in self.moves.items():
            if tensor in place:
                column[place[tensor], target], cost[place[tensor], target] = index, value
        self.move_column: IntArray = column
        self.move_cost: FloatArray = cost

    def _pass(self) -> highspy.Highs:
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.upper), len(self.rows)
        lp.col_cost_ = np.zeros(len(self.upper))
        lp.col_cost_[self.makespan] = 1.0
        lp.col_lower_, lp.col_upper_ = np.zeros(len(self.upper)), np.array(self.upper)
        lp.row_lower_ = np.array([row[2] for row in self.rows])
        lp.row_upper_ = np.array([row[3] for row in self.rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(row[0]) for row in self.rows)]).astype(np.int32)
        lp.a_matrix_.index_ = np.concatenate([row[0] for row in self.rows]).astype(np.int32)
        lp.a_matrix_.value_ = np.concatenate([row[1] for row in self.rows])
        solver = highspy.Highs()
        for name, value in {"output_flag": False, "threads": 1, "random_seed": 0}.items():
            solver.setOptionValue(name, value)
        solver.passModel(lp)
        return solver

    def solve(self, seconds: float) -> float | None:
        """The optimum in microseconds, or None when the solver did not reach it in time."""
        if math.isfinite(seconds):
            # The limit counts all runs of this solver together.
            self.solver.setOptionValue("time_limit", self.solver.getRunTime() + max(seconds, 0.0))
        self.solver.run()
        if self.solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        return float(self.solver.getInfo().objective_function_value) * self.unit

    def add_violated(self) -> bool:
        """Add intervals that the solution violates; False when there are none.

        Some are added for their violation alone. Others because they decide: for fixed shares the earliest finish of
        every op is a longest path over rows and intervals together, and where short intervals add up to a long one,
        the short ones win. Short rows are what keeps the program quick.
        """
        if not self.linked.any():
            return False
        values = np.array(self.solver.getSolution().col_value)
        share = values[: self.finish].reshape(-1, self.host)
        moved = np.where(self.move_column >= 0, values[self.move_column], 0.0) * self.move_cost
        load = np.full(self.linked.shape, -np.inf)
        which = np.zeros(self.linked.shape, dtype=np.int64)
        for index, clique in enumerate(self.cliques):
            work = (self.latency[:, clique] * share[:, clique]).sum(axis=1)
            sums = _between(self.ops_inside, work)
            if len(self.tensors):
                sums += _between(self.tensors_inside, moved[:, clique].sum(axis=1))
            better = self.linked & (sums > load)
            load[better] = sums[better]
            which[better] = index
        value = values.tolist()
        duration = [sum([value[column] * us for column, us in terms.items()]) for terms in self.durations]
        # Single long intervals that are violated most, and then the deciding arcs.
        late = np.array(duration)[self.ends] - values[self.finish + np.array(self.ends)]
        early = values[self.finish + np.array(self.begins)]
        excess = np.where(self.linked, load + early[:, None] + late[None, :], -np.inf)
        rank = np.argsort(-excess, axis=0, kind="stable")[:MOST_VIOLATED]
        found = [
            (begin, end, int(which[begin, end]))
            for row in rank.tolist()
            for end, begin in enumerate(row)
            if excess[begin, end] > TOLERANCE * SCALE
        ]
        earliest = [0.0] * len(duration)
        begun = np.zeros(len(self.begins))
        begin_of = {op: k for k, op in enumerate(self.begins)}
        end_of = {op: k for k, op in enumerate(self.ends)}
        for op in self.lists.order:
            ready = max((earliest[earlier] for earlier in self.lists.before[op]), default=0.0)
            if op in end_of:
                end = end_of[op]
                arrivals = begun + load[:, end]
                begin = int(np.argmax(arrivals))
                if arrivals[begin] > ready + TOLERANCE * SCALE:
                    # Of equal arcs the shortest.
                    near = np.flatnonzero(arrivals >= arrivals[begin] - TOLERANCE * SCALE)
                    begin = int(near[np.argmin(load[near, end])])
                    found.append((begin, end, int(which[begin, end])))
                    ready = float(arrivals[begin])
            earliest[op] = ready + duration[op]
            if op in begin_of:
                begun[begin_of[op]] = earliest[op]
        fresh = [key for key in dict.fromkeys(found) if key not in self.known]
        self.known.update(fresh)
        if fresh:
            rows = [self._interval(*key) for key in fresh]
            starts = np.cumsum([0, *(len(columns) for columns, _ in rows)]).astype(np.int32)
            columns = np.concatenate([columns for columns, _ in rows]).astype(np.int32)
            coefficients = np.concatenate([values for _, values in rows])
            count = len(rows)
            self.solver.addRows(
                count, np.zeros(count), np.full(count, math.inf), len(columns), starts[:-1], columns, coefficients
            )
        return bool(fresh)

    def _interval(self, begin: int, end: int, clique: int) -> tuple[IntArray, FloatArray]:
        """start(b) - finish(a) >= the work of one resource between them, as columns and coefficients."""
        first, last = self.begins[begin], self.ends[end]
        between = np.flatnonzero(self.below[:, begin] & self.above[:, end])
        inside: IntArray = np.flatnonzero(self.tensor_below[:, begin] & self.tensor_above[:, end])
        duration = self.durations[last]
        columns: list[NDArray[np.int64]] = [
            np.array([self.finish + last, self.finish + first]),
            np.fromiter(duration.keys(), dtype=np.int64, count=len(duration)),
        ]
        values: list[FloatArray] = [
            np.array([1.0, -1.0]),
            -np.fromiter(duration.values(), dtype=np.float64, count=len(duration)),
        ]
        for processor in self.cliques[clique]:
            columns += [between * self.host + processor]
            values += [-self.latency[between, processor]]
            if len(inside):
                moved = inside[self.move_column[inside, processor] >= 0]
                columns += [self.move_column[moved, processor]]
                values += [-self.move_cost[moved, processor]]
        return np.concatenate(columns), np.concatenate(values)


def _factors(below: BoolArray, above: BoolArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return np.ascontiguousarray(below.T, dtype=np.float32), np.ascontiguousarray(above, dtype=np.float32)


def _between(inside: tuple[NDArray[np.float32], NDArray[np.float32]], work: FloatArray) -> FloatArray:
    """(begins, ends): the work of all that lies below a begin and above an end."""
    below, above = inside
    used = np.flatnonzero(work)
    return ((below[:, used] * work[used].astype(np.float32)) @ above[used]).astype(np.float64)


def _busiest(ops: list[int], neighbours: list[list[int]]) -> list[int]:
    """The ops with most neighbours if there are too many, in their old order."""
    if len(ops) <= MOST_HUBS:
        return ops
    return sorted(sorted(ops, key=lambda op: (-len(neighbours[op]), op))[:MOST_HUBS])


def _cliques(conflicts: BoolArray) -> list[list[int]]:
    """Sets of processors of which at most one runs at a time, each as large as can be."""
    graph = nx.from_numpy_array(np.triu(conflicts, 1))
    found: Iterator[list[int]] = nx.find_cliques(graph)
    return sorted(sorted(clique) for clique in itertools.islice(found, MOST_CLIQUES))

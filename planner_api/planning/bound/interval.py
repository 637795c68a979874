"""The interval-load bound: a linear program over fractional placements.

Three families of rows, each true of every schedule (`rows` has their columns):

- paths: an op finishes after each predecessor by its latency plus the launch and the transfers that nobody else can
  pay for;
- load: the work on equal resources, in shares, transfers included, fits into the time that there is; where neighbours
  slow each other, into what they leave of it (`_crowding`);
- intervals: whatever lies between ops a and b in the graph runs after a's finish and before b's start, so between them
  fits its work on every group of equal resources, and the transfer of every tensor that is read nowhere else.

There are too many intervals to write down; those that the last solution violates are added until none is left. Equal
processors have one variable, and resources that the same classes use one row for all: sixty processors of a 16-core
machine are some ten classes on one group of cores, and the program is no weaker for it.
"""

import math

import highspy
import numpy as np
from numpy.typing import NDArray

from planner_api.planning.bound.rows import SCALE, Rows
from planner_api.planning.budget import Budget
from planner_api.planning.methods import Bound
from planner_api.planning.problem import BoolArray, FloatArray, IntArray, Problem

MOST_HUBS = 400
"""Ops at which intervals may begin, and at which they may end."""
MOST_OPS = 3000
"""Above this many ops the first program alone takes longer than a plan may."""
MOST_OPS_UNSPLIT = 300
"""Above this many ops nobody proves what plans take that spread no op over hosts."""
NODES = 500
"""Of the search tree in which that is proven."""
ROUNDS = 12
"""Times that violated intervals are looked for."""
MOST_VIOLATED = 2
"""Intervals added per end and round."""
TOLERANCE = 1e-4
"""Violations, relative to the critical path, that are not worth a row."""
ENOUGH = 5e-5
"""Relative progress of a round below which the next is not worth its time."""
SAFETY = 1e-6
"""Relative margin for the solver's tolerance: the bound must hold, not only nearly."""


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
        slow = best is not None and value <= best + ENOUGH * abs(best)
        best = value
        if slow or turn == ROUNDS - 1 or budget.left() <= 0 or not program.add_violated():
            break
    if best is not None and problem.machine.owner is not None and len(problem.ops) <= MOST_OPS_UNSPLIT:
        best = max(best, program.unsplit(budget))
    return None if best is None else Bound(best - SAFETY * (abs(best) + program.unit), "interval-load")


class _Program(Rows):
    """The program, growing by intervals."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self._hubs()
        self.known: set[tuple[int, int, int]] = set()
        self.solver = self.program.solver()

    def _hubs(self) -> None:
        """Where intervals begin (forks) and end (joins), what lies below and above, which tensors stay inside."""
        lists = self.lists
        self.begins, self.ends = _busiest(lists.after), _busiest(lists.before)
        n = len(lists.latency)
        passed = np.zeros((n, n), dtype=bool)  # which ops lie on a way to each
        for op in lists.order:
            for earlier in lists.before[op]:
                passed[op] |= passed[earlier]
                passed[op, earlier] = True
        below: BoolArray = passed[:, self.begins]
        above: BoolArray = passed.T[:, self.ends]
        self.below, self.above, self.linked = below, above, below[self.ends].T
        readers = lists.readers  # (T, hubs) which hubs lie on a way to every reader of each tensor
        self.tensor_below, self.tensor_above = (
            np.array([passed[ops].all(axis=0) for ops in readers], bool).reshape(len(readers), passed.shape[1])
            for passed in (below, above)
        )
        self.ops_inside = _factors(below, above)
        self.tensors_inside = _factors(self.tensor_below, self.tensor_above)

    def _run(self, seconds: float) -> None:
        if math.isfinite(seconds):
            # The limit counts all runs of this solver together.
            self.solver.setOptionValue("time_limit", self.solver.getRunTime() + seconds)
        self.solver.run()

    def solve(self, seconds: float) -> float | None:
        """The optimum in microseconds, or None when the solver did not reach it in time."""
        self._run(seconds)
        if self.solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        return float(self.solver.getInfo().objective_function_value) * self.unit

    def unsplit(self, budget: Budget) -> float:
        """What is proven in microseconds where no op is spread over processors.

        Between hosts a fraction of every op on each makes no move: only whole ops must pay for links.
        """
        columns = np.flatnonzero(self.supported.ravel()).astype(np.int32)
        kinds = np.full(len(columns), int(highspy.HighsVarType.kInteger), dtype=np.uint8)
        self.solver.changeColsIntegrality(len(columns), columns, kinds)
        self.solver.setOptionValue("mip_max_nodes", NODES)
        self._run(budget.left())
        proven = float(self.solver.getInfo().mip_dual_bound)
        return proven * self.unit if math.isfinite(proven) else -math.inf

    def add_violated(self) -> bool:
        """Add the intervals that the solution violates most, by where they end; False when there are none."""
        if not self.linked.any():
            return False
        values = np.array(self.solver.getSolution().col_value)
        share = values[: self.finish].reshape(-1, self.width)
        moved = np.where(self.move_column >= 0, values[self.move_column], 0.0)
        launched = np.where(self.launch_column >= 0, values[self.launch_column], 0.0) * self.launch * self.share
        load = np.full(self.linked.shape, -np.inf)
        which = np.zeros(self.linked.shape, dtype=np.int64)
        for index, part in enumerate(self.parts):
            work = (self.work[index] * share + launched * part).sum(axis=1)
            sums = _between(self.ops_inside, work)
            sums += _between(self.tensors_inside, (moved * self.move_cost[index]).sum(axis=1))
            better = self.linked & (sums > load)
            load[better] = sums[better]
            which[better] = index
        value = values.tolist()
        spent = [sum([value[column] * us for column, us in self.durations[op].items()]) for op in self.ends]
        late = np.array(spent) - values[self.finish + np.array(self.ends)]
        early = values[self.finish + np.array(self.begins)]
        excess = np.where(self.linked, load + early[:, None] + late[None, :], -np.inf)
        rank = np.argsort(-excess, axis=0, kind="stable")[:MOST_VIOLATED]
        found = [
            (begin, end, int(which[begin, end]))
            for row in rank.tolist()
            for end, begin in enumerate(row)
            if excess[begin, end] > TOLERANCE * SCALE
        ]
        fresh = [key for key in found if key not in self.known]
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

    def _interval(self, begin: int, end: int, group: int) -> tuple[IntArray, FloatArray]:
        """start(b) - finish(a) >= the work on one group of resources between them, as columns and coefficients."""
        first, last = self.begins[begin], self.ends[end]
        between = np.flatnonzero(self.below[:, begin] & self.above[:, end])
        inside: IntArray = np.flatnonzero(self.tensor_below[:, begin] & self.tensor_above[:, end])
        duration = self.durations[last]
        columns, values = self._work(group, between, inside)
        ends = [self.finish + last, self.finish + first, *duration]
        spent = [1.0, -1.0, *(-us for us in duration.values())]
        return np.append(np.array(ends), columns), np.append(spent, -values)


def _factors(below: BoolArray, above: BoolArray) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return np.ascontiguousarray(below.T, dtype=np.float32), np.ascontiguousarray(above, dtype=np.float32)


def _between(inside: tuple[NDArray[np.float32], NDArray[np.float32]], work: FloatArray) -> FloatArray:
    """(begins, ends): the work of all that lies below a begin and above an end."""
    below, above = inside
    used = np.flatnonzero(work)
    return ((below[:, used] * work[used].astype(np.float32)) @ above[used]).astype(np.float64)


def _busiest(neighbours: list[list[int]]) -> list[int]:
    """The ops with several neighbours, or, if these are too many, with most."""
    several = [op for op, near in enumerate(neighbours) if len(near) > 1]
    return sorted(sorted(several, key=lambda op: (-len(neighbours[op]), op))[:MOST_HUBS])

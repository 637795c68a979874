"""The search: one window of annealing after another, never losing the best schedule met."""

from __future__ import annotations

import time

import numpy as np

from planner_api.planning.evaluator import arrays, evaluate
from planner_api.planning.problem import Problem
from planner_api.planning.simulator import Schedule, simulate
from planner_api.planning.solver import Budget
from planner_api.planning.solvers.annealing import anneal_whole, anneal_window

WINDOW = (40, 120)
"""Shortest and longest window, in positions."""
MOVES = 10_000
"""Moves per window."""
HOT = 1.2
"""First temperature, in mean fastest latencies of the problem's ops."""
COLD_US = 5.0
"""Last temperature in microseconds, where the first is above it."""


class Search:
    """An improving schedule.

    Attributes:
        makespan_us: of the best schedule met.
        rounds: windows annealed so far.
    """

    def __init__(self, problem: Problem, schedule: Schedule, seed: int) -> None:
        self.problem = problem
        self.rounds = 0
        self._arrays = arrays(problem)
        self._random = np.random.default_rng(seed)
        self._state = self._random.integers(1, 2**63, size=1, dtype=np.uint64)
        self._assignment = np.array(schedule.assignment, dtype=np.int64)
        self._sequence = np.array(schedule.sequence, dtype=np.int64)
        n, p = problem.latency_us.shape
        self._start, self._finish = np.zeros(n), np.zeros(n)
        self._payer = np.zeros((len(problem.tensors), p), dtype=np.int64)
        self.makespan_us = self._evaluate()
        self._hot = HOT * float(problem.latency_us.min(axis=1).mean())
        self._cold = min(COLD_US, self._hot / 10)

    @property
    def movable(self) -> bool:
        """False when no move can change anything."""
        return len(self.problem.ops) > 1 and self._hot > 0 and len(self.problem.processors) > 1

    def schedule(self) -> Schedule:
        """The best schedule, timed by the simulator."""
        return simulate(self.problem, self._assignment.tolist(), self._sequence.tolist())

    def round(self, moves: int = MOVES) -> float:
        """Anneal one window; the schedule never gets worse.

        Returns:
            The best makespan as the window sees it (the schedule's own is timed anew).
        """
        n = len(self.problem.ops)
        width = min(n, int(self._random.integers(*WINDOW, endpoint=True)))
        low = int(self._random.integers(0, n - width, endpoint=True))
        # Windows are stretches of time: a stable sort by start keeps the order topological and every time as it is.
        self._sequence = self._sequence[np.argsort(self._start[self._sequence], kind="stable")]
        before = self._evaluate()
        kept = self._assignment.copy(), self._sequence.copy()
        place = (self._assignment, self._sequence)
        if self._arrays.blocking:
            believed = anneal_window(
                self._arrays, *place, self._finish, self._payer, low, low + width, moves, self._hot, self._cold,
                self._state,
            )  # fmt: skip
        else:
            believed = anneal_whole(self._arrays, *place, low, low + width, moves, self._hot, self._cold, self._state)
        self.makespan_us = self._evaluate()
        if self.makespan_us > before:
            self._assignment, self._sequence = kept
            self.makespan_us = self._evaluate()
        self.rounds += 1
        return float(believed)

    def run(self, budget: Budget, target_us: float) -> None:
        """Anneal until the budget ends or the makespan reaches ``target_us``."""
        rate = 0.0
        while self.movable and self.makespan_us > target_us:
            if budget.rounds is not None:
                if self.rounds >= budget.rounds:
                    return
                self.round()
                continue
            left = budget.left()
            if left <= 0:
                return
            moves = MOVES if rate == 0 else int(min(MOVES, left / rate))
            if moves < 100:
                return
            began = time.monotonic()
            self.round(moves)
            rate = (time.monotonic() - began) / moves

    def _evaluate(self) -> float:
        return float(evaluate(self._arrays, self._assignment, self._sequence, self._start, self._finish, self._payer))

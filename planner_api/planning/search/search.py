"""The search: one window of annealing after another, never losing the best schedule met."""

from __future__ import annotations

import math
import time
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np

from planner_api.planning.judge.evaluator import arrays, evaluate
from planner_api.planning.judge.simulator import Schedule, simulate
from planner_api.planning.problem import IntArray, Problem
from planner_api.planning.search.annealing import anneal_whole, anneal_window
from planner_api.planning.solver import Budget

WINDOW = (20, 75)
"""Shortest and longest window, in positions."""
MOVES = 1250
"""Moves per window: in the same number of moves, more and shorter windows reach more (of 600 to 20 000)."""
STALE = 480
"""Rounds without progress after which a window is polished,"""
POLISH_EVERY = 80
"""and how many more until the next one is."""
POLISH_SECONDS = 0.4
"""Time for one window."""
FEWEST_MOVES = 100
"""Moves of the last window below which it is not worth beginning."""
HOT = 1.2
"""First temperature, in mean fastest latencies of the problem's ops."""
COLD_US = 5.0
"""Last temperature in microseconds, where the first is above it."""


class Search:
    """An improving schedule.

    Attributes:
        makespan_us: of the best schedule met.
        rounds: turns of annealing so far.
    """

    def __init__(self, problem: Problem, schedule: Schedule, seed: int) -> None:
        self.problem = problem
        self.rounds = 0
        self._arrays = arrays(problem)
        self._random = np.random.default_rng(seed)
        self._states = self._random.integers(1, 2**63, size=(2, 1), dtype=np.uint64)
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

    def round(self, moves: int = MOVES, pool: Executor | None = None) -> tuple[float, ...]:
        """Anneal a window, or two that do not touch (in a large problem); the schedule never gets worse.

        Args:
            moves: per window.
            pool: where the second window runs beside the first; the result is the same without it.

        Returns:
            The best makespan as each window sees it (the schedule's own is timed anew).
        """
        # Windows are stretches of time: a stable sort by start keeps the order topological and every time as it is.
        self._sequence = self._sequence[np.argsort(self._start[self._sequence], kind="stable")]
        self._evaluate()
        windows = self._windows()
        others = [pool.submit(self._anneal, 1, *window, moves) for window in windows[1:]] if pool else []
        found = [self._anneal(0, *windows[0], moves)]
        found += [other.result() for other in others] or [self._anneal(1, *window, moves) for window in windows[1:]]
        # What two windows gain adds up, unless the longest path goes round one of them.
        merged = self._assignment.copy(), self._sequence.copy()
        for (low, high), (_, assignment, sequence) in zip(windows, found, strict=True):
            ops = sequence[low:high]
            merged[0][ops], merged[1][low:high] = assignment[ops], ops
        self._keep_best([(self._assignment, self._sequence), merged, *(result[1:] for result in found)])
        self.rounds += 1
        return tuple(result[0] for result in found)

    def _windows(self) -> list[tuple[int, int]]:
        n = len(self.problem.ops)
        if n < 3 * WINDOW[1]:
            return [self._window(0, n)]
        border = int(self._random.integers(n // 3, 2 * n // 3))
        return [self._window(0, border), self._window(border, n)]

    def _window(self, first: int, last: int) -> tuple[int, int]:
        width = min(last - first, int(self._random.integers(*WINDOW, endpoint=True)))
        low = int(self._random.integers(first, last - width, endpoint=True))
        return low, low + width

    def _anneal(self, lane: int, low: int, high: int, moves: int) -> tuple[float, IntArray, IntArray]:
        """One window on copies; the makespan it believes in, the placement and the order."""
        assignment, sequence = self._assignment.copy(), self._sequence.copy()
        hot, cold, state = self._hot, self._cold, self._states[lane]
        if self._arrays.blocking:
            believed = anneal_window(
                self._arrays, assignment, sequence, self._finish, self._payer, low, high, moves, hot, cold, state
            )
        else:
            believed = anneal_whole(self._arrays, assignment, sequence, low, high, moves, hot, cold, state)
        return float(believed), assignment, sequence

    def _keep_best(self, candidates: list[tuple[IntArray, IntArray]]) -> None:
        """Make the best of some placements with orders the present one; the first of equals."""
        makespans = []
        for self._assignment, self._sequence in candidates:
            makespans.append(self._evaluate())
        self._assignment, self._sequence = candidates[int(np.argmin(makespans))]
        self.makespan_us = self._evaluate()

    def run(self, budget: Budget, target_us: float) -> None:
        """Anneal until the budget ends or the makespan reaches ``target_us``; polish when annealing finds nothing."""
        rate, stale = 0.0, 0
        with ThreadPoolExecutor(1) as pool:
            while self.movable and self.makespan_us > target_us:
                if budget.rounds is not None and self.rounds >= budget.rounds:
                    return
                if budget.timed and rate == 0:
                    # How long a move takes depends on how far its effects reach: a few tell.
                    moves = FEWEST_MOVES
                else:
                    moves = int(min(MOVES, budget.left() / rate)) if rate else MOVES
                if moves < FEWEST_MOVES or budget.left() <= 0:
                    return
                began, before = time.monotonic(), self.makespan_us
                self.round(moves, pool)
                if budget.timed:
                    rate = (time.monotonic() - began) / moves
                stale = stale + 1 if self.makespan_us == before else 0
                if stale >= STALE and budget.left() > POLISH_SECONDS:
                    self.polish(POLISH_SECONDS if budget.timed else math.inf)
                    stale = 0 if self.makespan_us < before else STALE - POLISH_EVERY

    def polish(self, seconds: float) -> None:
        """Solve a short random window to its optimum; the schedule never gets worse."""
        # HiGHS takes a while to import, and most searches end before they need it.
        from planner_api.planning.search.polish import WIDTH, polish

        self._sequence = self._sequence[np.argsort(self._start[self._sequence], kind="stable")]
        width = min(WIDTH, len(self.problem.ops))
        low = int(self._random.integers(0, len(self.problem.ops) - width, endpoint=True))
        better = polish(self.problem, self.schedule(), low, low + width, seconds)
        self._assignment = np.array(better.assignment, dtype=np.int64)
        self._sequence = np.array(better.sequence, dtype=np.int64)
        self.makespan_us = self._evaluate()

    def _evaluate(self) -> float:
        return float(evaluate(self._arrays, self._assignment, self._sequence, self._start, self._finish, self._payer))

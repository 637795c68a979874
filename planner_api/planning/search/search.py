"""The search: one window of annealing after another, never losing the best schedule met."""

import math
import time
from collections import defaultdict
from collections.abc import Collection

import numpy as np

from planner_api.planning.budget import Budget
from planner_api.planning.judge.arrays import tails
from planner_api.planning.judge.simulator import Schedule, simulate, value_of
from planner_api.planning.judge.ways import HOME
from planner_api.planning.methods import Solution
from planner_api.planning.problem import IntArray, Problem, Recipe
from planner_api.planning.problem.recipes import by_recipes
from planner_api.planning.search.annealing import Kernels
from planner_api.planning.search.replays import SEARCHED, Replays, varies

WINDOW = (20, 75)
"""Shortest and longest window, in positions;"""
CUT_WINDOW = (5, 15)
"""and where ops may be cut."""
MOVES = 1250
"""Moves per window: in the same number of moves, more and shorter windows reach more (of 600 to 20 000)."""
FEWEST_MOVES = 100
"""Moves of the last window below which it is not worth beginning."""
PATIENCE = 50
"""Rounds without a gain, for each op, after which there is none to come: a network of six ops takes no seconds."""
HOT = 1.2
"""First temperature, in mean fastest latencies of the problem's ops."""
REPLAYS = 16
"""Replays by which a round is judged, where runs are not alike: windows are annealed as if they were."""
SWAPS = 4
"""Recipes tried after each window's moves, where ops have several."""
COLD_US = 5.0
"""Last temperature in microseconds, where the first is above it."""


class Search:
    """An improving plan: where ops run, in what order, by which recipes, and, where it is known how, in which parts.

    Args:
        near: windows lie around these ops only; none: anywhere.

    Attributes:
        value_us: what is minimised, of the best schedule met: its makespan, or its lateness, in the mean.
        rounds: turns of annealing so far.
        state, kernels: the best plan, as the kernels see it, and what works on it.
    """

    def __init__(self, problem: Problem, schedule: Schedule, seed: int, near: Collection[int] = ()) -> None:
        self.problem = problem
        self._near = sorted(near)
        self.rounds = 0
        self.kernels = Kernels(problem, schedule.assignment, schedule.sequence)
        self.state, self._arrays = self.kernels.s, self.kernels.a
        self._widths = CUT_WINDOW if self._arrays.cuttable else WINDOW
        self._recipes: dict[tuple[int, int], list[Recipe]] = defaultdict(list)
        for one in () if self._arrays.cuttable else problem.recipes:  # parts have none
            self._recipes[one.op, one.processor].append(one)
        self._taken: dict[tuple[int, int], Recipe] = {}
        self._random = np.random.default_rng(seed)
        self._word = self._random.integers(1, 2**63, size=1, dtype=np.uint64)
        # Two jobs' microseconds may count differently: what is due is shifted so that the kernels need no weights.
        self._shifts = problem.objective == "lateness"
        # Who stands late in the sequence slows nobody: only in the order of starts is a schedule charged in full.
        self._neighbours = bool((problem.machine.slowdown > 1.0).any())
        self._replays = Replays(problem, REPLAYS, SEARCHED) if varies(problem) else None
        self.value_us = self._judged()
        self._hot = HOT * float(problem.latency_us.min(axis=1).mean())

    @property
    def movable(self) -> bool:
        """False when no move can change anything: on one processor the order tells only where ops run side by side."""
        alone = len(self.problem.processors) == 1 and self.problem.share is None
        several = len(self.problem.ops) > 1 or self._arrays.cuttable or bool(self._recipes)
        return several and self._hot > 0 and not alone

    def found(self, method: str) -> Solution:
        """The best plan of whole ops, timed by the simulator, under the name of who asked for it."""
        made = by_recipes(self.problem, self._taken.values())
        schedule = simulate(made, self.state.mode[:, 0, HOME].tolist(), self.state.sequence.tolist())
        return Solution(schedule, method, rounds=self.rounds, cut=made if made.recipe is not None else None)

    def round(self, moves: int = MOVES) -> float:
        """Anneal a window with so many moves; the schedule never gets worse.

        Returns:
            The best value as the window sees it (the schedule's own is timed anew).
        """
        s = self.state
        best = self.value_us, s.mode.copy(), s.sequence.copy()
        # Windows are stretches of time: a stable sort by start keeps the order topological and, where ops take their
        # resources whole and no queue carries moves, every time as it is.
        if not self._neighbours and self._by_start():
            self.value_us = self._judged()
        if self._shifts and math.isfinite(self.value_us):
            self._shift()
        if self.value_us <= best[0]:
            best = self.value_us, s.mode.copy(), s.sequence.copy()
        cold = min(COLD_US, self._hot / 10)
        low, high = self._window()
        believed = self.kernels.anneal(low, high, moves, self._hot, cold, self._word)
        self.value_us = self._timed()
        if self._replays is not None and self.value_us < best[0]:  # a mean is hardly below
            self.value_us = self._judged()
        if self.value_us >= best[0]:
            self._set(*best[1:])
            self._evaluate()
            self.value_us = best[0]
        if self._recipes:
            self._swap_some(low, high)
        self.rounds += 1
        return believed

    def _swap_some(self, low: int, high: int) -> None:
        """Try other recipes of some of the ops in a window."""
        here = [(op, int(self.state.mode[op, 0, HOME])) for op in self.state.sequence[low:high].tolist()]
        able = [at for at in here if at in self._recipes]
        for index in self._random.integers(len(able), size=SWAPS if able else 0).tolist():
            ways = self._recipes[able[index]]
            self._swap(ways[int(self._random.integers(len(ways)))])

    def _swap(self, recipe: Recipe) -> None:
        """Execute an op by a recipe, if the plan is better so, or as good with less work.

        What does not delay the end leaves room to others: the fastest on the longest way, the smallest beside it.
        """
        a, at, sequence = self._arrays, (recipe.op, recipe.processor), self.state.sequence.copy()
        before_us, before_share = float(a.latency[at]), float(a.share[at])
        a.latency[at], a.share[at] = recipe.us, recipe.taken
        value = self._timed()
        if self._replays is not None and value <= self.value_us:
            value = self._judged()
        if (value, recipe.us * recipe.taken) < (self.value_us, before_us * before_share):
            self.value_us, self._taken[at] = value, recipe
            return
        a.latency[at], a.share[at] = before_us, before_share
        self._set(self.state.mode, sequence)
        self._evaluate()

    def _window(self) -> tuple[int, int]:
        n = len(self.problem.ops)
        width = min(n, int(self._random.integers(*self._widths, endpoint=True)))
        if self._near:
            middle = int(self.state.position[self._random.choice(self._near)])
            low = min(max(0, middle - int(self._random.integers(width))), n - width)
        else:
            low = int(self._random.integers(0, n - width, endpoint=True))
        return low, low + width

    def run(self, budget: Budget, target_us: float, patience: int = PATIENCE) -> None:
        """Anneal until the budget ends.

        Or until the value reaches ``target_us``, or the value has not changed for ``patience`` rounds per op.
        """
        rate, first, gained = 0.0, self.rounds, self.rounds
        patience *= len(self.problem.ops)
        while self.movable and self.value_us > target_us and self.rounds - gained < patience:
            if budget.rounds is not None and self.rounds - first >= budget.rounds:
                return
            if budget.rounds is None and rate == 0:
                # How long a move takes depends on how far its effects reach: a few tell.
                moves = FEWEST_MOVES
            else:
                moves = int(min(MOVES, budget.left() / rate)) if rate else MOVES
            if moves < FEWEST_MOVES or budget.left() <= 0:
                return
            began, before_us = time.monotonic(), self.value_us
            self.round(moves)
            if self.value_us < before_us:
                gained = self.rounds
            if budget.rounds is None:
                rate = (time.monotonic() - began) / moves

    def _by_start(self) -> bool:
        """Put the ops in the order in which they start. False where they were in it."""
        s = self.state
        sequence = s.sequence[np.argsort(s.start[s.sequence], kind="stable")]
        changes = not np.array_equal(sequence, s.sequence)
        self._set(s.mode, sequence)
        return changes

    def _set(self, mode: IntArray, sequence: IntArray) -> None:
        self.state.mode[:], self.state.sequence[:] = mode, sequence

    def _judged(self) -> float:
        """Time the plan; what is minimised, in the mean over the replays where there are some."""
        if self._replays is None:
            return self._evaluate()
        return float(np.mean([self._value(end) for end in self._replays.timed(self.kernels)]))

    def _timed(self) -> float:
        """Time the plan as it is charged: where ops slow each other, in the order of their starts."""
        value = self._evaluate()
        if self._neighbours:
            self._by_start()
            value = self._evaluate()
        return value

    def _evaluate(self) -> float:
        return self._value(self.kernels.evaluate())

    def _value(self, end: float) -> float:
        """What is minimised of the plan that has just been timed; ``end``: its largest ``done - due``."""
        return value_of(self.problem, self.state.done) if self._shifts else end

    def _shift(self) -> None:
        """With ``due + value / weight`` as due, any schedule that is nowhere late is better than the present one."""
        due = self.problem.due_us + self.value_us / self.problem.weight
        self._arrays.due[:] = due - due.max()
        self._arrays.tail[:] = tails(self.problem, self._arrays.export, self._arrays.due)
        self.kernels.evaluate()

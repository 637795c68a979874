"""The search for cuts: placement, order and cuts annealed together, then what they make, as any problem is searched.

What lies before a window is frozen. Behind it ops are timed with every move as far as any reads what the window reads
or makes, because another may now pay for a move; the rest enters as longest paths to the end. Every result of a window
is timed anew and taken if it is no worse.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from hope_schema import Cut
from hope_schema.cutting import CutError
from planner_api.planning.budget import Budget
from planner_api.planning.judge.evaluator import arrays
from planner_api.planning.judge.simulator import Schedule
from planner_api.planning.problem import FloatArray, IntArray, Problem
from planner_api.planning.search.search import MOVES, Search, temperatures
from planner_api.planning.split.annealing import anneal_cuts
from planner_api.planning.split.choices import Choices, choices_of
from planner_api.planning.split.plan import CutPlan, realised
from planner_api.planning.split.state import Modes, joint
from planner_api.planning.split.timing import holds_on, time_all
from planner_api.planning.split.ways import Ways, ways

JOINT_SHARE = 0.65
"""Part of the budget for choosing cuts; the rest anneals what they make."""
TRIAL_SHARE = 0.25
"""Part of that, by the end of which cuts must have half of what would be enough: where they gain, they gain at once."""
WINDOW = (8, 30)
"""Shortest and longest window, in ops."""
LANES = 2
"""Searches side by side."""


class CutSearch:
    """An improving plan of modes and order.

    Attributes:
        value_us: its makespan, as `split.timing` has it.
    """

    def __init__(self, problem: Problem, table: Ways, whole: Schedule, seed: int) -> None:
        self.problem = problem
        self._arrays, self._ways = arrays(problem), table
        lists = problem.lists
        tensors = [(*reads, *writes) for reads, writes in zip(lists.reads, lists.writes, strict=True)]
        self._beside = [{reader for tensor in own for reader in lists.readers[tensor]} for own in tensors]
        self._random = np.random.default_rng(seed)
        self._word = self._random.integers(1, 2**63, size=1, dtype=np.uint64)
        self._number = 0
        self._joint = joint(self._arrays, self._ways, np.array(whole.assignment), np.array(whole.sequence))
        self.value_us = self._time()
        self._hot, self._cold = temperatures(problem)

    @property
    def modes(self) -> Modes:
        """How each op is computed."""
        return self._joint.modes

    @property
    def begin_us(self) -> FloatArray:
        """(n, K) when each part begins."""
        return self._joint.begin

    def chained(self, op: int) -> bool:
        """Whether a cut op reads nothing but the same parts of the ops before it."""
        kernel: Any = holds_on  # one that only kernels can call
        return bool(kernel.py_func(self._arrays, self._ways, self.modes, op))

    def run(self, budget: Budget, target_us: float) -> None:
        """Anneal until the budget ends or the value reaches ``target_us``."""
        rounds = 0
        while self._hot > 0 and self.value_us > target_us and budget.left() > 0:
            if budget.rounds is not None and rounds >= budget.rounds:
                return
            self.round()
            rounds += 1

    def round(self, moves: int = MOVES) -> float:
        """Anneal one window; the plan never gets worse. Returns what the window believes its best takes."""
        s, n = self._joint, len(self.problem.ops)
        best, plan = self.value_us, self._plan()
        s.sequence[:] = s.sequence[np.argsort(s.turn[s.sequence], kind="stable")]
        self.value_us = self._time()
        if self.value_us <= best:
            best, plan = self.value_us, self._plan()
        width = min(n, int(self._random.integers(*WINDOW, endpoint=True)))
        low = int(self._random.integers(0, n - width, endpoint=True))
        reached = (reader for op in s.sequence[low : low + width].tolist() for reader in self._beside[op])
        end = max([low + width, *(1 + int(s.position[reader]) for reader in reached)])
        turn = (low, low + width, end, self._number, moves, self._hot, self._cold)
        believed = anneal_cuts(self._arrays, self._ways, s, *turn, self._word)
        self._number += moves
        self.value_us = self._time()
        if self.value_us > best:
            self._take(*plan)
        return believed

    def _plan(self) -> tuple[list[IntArray], IntArray]:
        """Modes and order as they are, to come back to."""
        return [field.copy() for field in self.modes], self._joint.sequence.copy()

    def _take(self, modes: list[IntArray], sequence: IntArray) -> None:
        """Go on from such modes and order."""
        for field, value in zip(self.modes, modes, strict=True):
            field[:] = value
        self._joint.sequence[:] = sequence
        self.value_us = self._time()

    def _time(self) -> float:
        self._number += 1
        return float(time_all(self._arrays, self._ways, self._joint, self._number))


def search_cuts(
    problem: Problem, whole: Schedule, budget: Budget, target_us: float, enough_us: float = math.inf
) -> CutPlan | None:
    """The best plan with cuts that the budget buys; None, before the budget ends, where cuts gain too little.

    Searches with several seeds run side by side: where they end differs by more than what one finds in twice the time.

    Args:
        problem: with its cutter.
        whole: the plan to begin with.
        budget: its rounds count for each part of each search.
        target_us: no plan is shorter.
        enough_us: what cuts must come to, or better, to be worth going on with.
    """
    choices = choices_of(problem)
    table = ways(problem, choices)
    searches = [CutSearch(problem, table, whole, LANES * budget.seed + lane) for lane in range(LANES)]
    with ThreadPoolExecutor(LANES) as pool:
        lanes = [pool.submit(_lane, choices, search, budget, target_us, enough_us) for search in searches]
        found = [plan for lane in lanes if (plan := lane.result())]
    return min(found, key=lambda plan: plan.schedule.value_us, default=None)


def _lane(choices: Choices, search: CutSearch, budget: Budget, target_us: float, enough_us: float) -> CutPlan | None:
    """What one search finds; None where that is too little, or its cuts cannot be made."""
    joint = JOINT_SHARE * min(budget.seconds, budget.left())
    halfway = (search.value_us + enough_us) / 2
    for share, least in ((TRIAL_SHARE, halfway), (1 - TRIAL_SHARE, enough_us)):
        search.run(budget.within(share * joint), target_us)
        if search.value_us > least or (search.modes.parts == 1).all():
            return None
    try:
        found = found_by(search, choices)
    except CutError:
        return None
    polish = Search(found.problem, found.schedule, budget.seed)
    polish.run(budget, target_us)
    return replace(found, schedule=polish.schedule())


def found_by(search: CutSearch, choices: Choices) -> CutPlan:
    """What a search found, as a problem of its own. Raises CutError for a cut that cannot be made."""
    modes = search.modes
    cuts: dict[str, Cut] = {}
    homes, begins = {}, {}
    for name, op in choices.index.items():
        count = int(modes.parts[op])
        homes[name] = tuple(modes.home[op, :count].tolist())
        begins[name] = tuple(search.begin_us[op, :count].tolist())
        if count > 1:
            axis = choices.axes[name][int(modes.axis[op])]
            at = np.array(choices.tenths(name, axis))[modes.tenth[op, 1:count]]
            cuts[name] = Cut(op=name, axis=axis, at=tuple(at.tolist()), chained=search.chained(op))
    return realised(search.problem, cuts, homes, begins)

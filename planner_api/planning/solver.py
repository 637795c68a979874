"""One verb for every method: ``solve(problem, method, budget) -> Solution``."""

from __future__ import annotations

import importlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from planner_api.planning.judge.simulator import Schedule
from planner_api.planning.problem import PlanningError, Problem


@dataclass(frozen=True)
class Budget:
    """What a solver may spend.

    With ``rounds`` the work is counted instead of timed, and the result depends on the problem, the seed and the
    rounds only (design promise 3); ``seconds`` is then ignored. Without it the solver stops at ``deadline``. A
    budget of zero seconds is valid: the solver answers with the first plan it has.
    """

    seconds: float = 5.0
    rounds: int | None = None
    seed: int = 0
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.seconds) and self.seconds >= 0):
            raise PlanningError(f"a budget of {self.seconds} seconds cannot be spent: give a finite number >= 0")
        if self.rounds is not None and self.rounds < 0:
            raise PlanningError(f"a budget of {self.rounds} rounds cannot be spent: give a number >= 0")
        timed = self.rounds is None
        object.__setattr__(self, "deadline", time.monotonic() + self.seconds if timed else math.inf)

    @property
    def timed(self) -> bool:
        """True when the clock decides, False when rounds are counted."""
        return self.rounds is None

    def left(self) -> float:
        """Seconds until the deadline, never below zero; ``inf`` when rounds are counted."""
        return max(0.0, self.deadline - time.monotonic())

    def postponed(self, seconds: float) -> Budget:
        """The same budget with its deadline moved: what is paid once per process, such as compiling, is no search."""
        later = replace(self)
        object.__setattr__(later, "deadline", self.deadline + seconds)
        return later

    def within(self, seconds: float) -> Budget:
        """A budget for a part of the work: the same seed and rounds, at most ``seconds`` of what is left."""
        return Budget(min(seconds, self.left()), self.rounds, self.seed)


@dataclass(frozen=True)
class Bound:
    """A proven lower bound on every makespan, in microseconds, and the argument that proves it."""

    us: float
    method: str


@dataclass(frozen=True)
class Solution:
    """A schedule and how it was found.

    ``rounds`` counts the search rounds spent; ``bound`` is what the method proved on its way, if it did.
    ``in_rounds`` says that ops wait for more than their inputs and their processor, as the method's paper has it.
    """

    schedule: Schedule
    method: str
    notes: tuple[str, ...] = ()
    rounds: int = 0
    bound: Bound | None = None
    in_rounds: bool = False


class UnknownMethod(PlanningError):  # noqa: N818 - says what it is
    """A method that no solver implements; the message lists those that exist."""


Solve = Callable[[Problem, Budget], Solution]

SOLVERS: Mapping[str, str] = {
    "single": "planner_api.planning.construct.single",
    "mosaic": "planner_api.planning.construct.mosaic",
    "dmdar": "planner_api.planning.construct.dmdar",
    "heft": "planner_api.planning.construct.heft",
    "partitiontuner": "planner_api.planning.construct.partitiontuner",
    "greedy": "planner_api.planning.construct.greedy",
    "ilp": "planner_api.planning.ilp",
    "auto": "planner_api.planning.portfolio",
}
"""Method name to the module whose ``solve(problem, budget)`` implements it; imported on first use."""


def solve(problem: Problem, method: str, budget: Budget) -> Solution:
    """Solve a problem by a named method.

    Raises:
        UnknownMethod: no solver has that name.
        PlanningError: the method finds no legal plan.
    """
    if method not in SOLVERS:
        raise UnknownMethod(f"there is no method '{method}': choose one of {', '.join(SOLVERS)}")
    implementation: Solve = importlib.import_module(SOLVERS[method]).solve
    return implementation(problem, budget)

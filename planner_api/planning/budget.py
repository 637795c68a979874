"""What a solver may spend."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from planner_api.planning.problem import PlanningError


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
        object.__setattr__(self, "deadline", time.monotonic() + self.seconds if self.rounds is None else math.inf)

    def left(self) -> float:
        """Seconds until the deadline, never below zero; ``inf`` when rounds are counted."""
        return max(0.0, self.deadline - time.monotonic())

    def overdrawn(self) -> bool:
        """Whether as much again as was given has been spent: time for what ends late to give up."""
        return time.monotonic() > self.deadline + self.seconds

    def part(self, share: float) -> Budget:
        """A budget for a part of the work: the same seed and rounds, and a share of the seconds that are left."""
        return Budget(share * min(self.seconds, self.left()), self.rounds, self.seed)

"""Which shapes are worth a plan: those that come again, while they come, within a share of the application's CPU."""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

USES: Final = 3
"""A plan is made at the third run at the same shapes: most sets of shapes come but once or twice."""
FRESH_S: Final = 2.0
"""Shapes that nobody has run for so long when it is their turn are not planned; they may come again."""
MAX_SHAPES: Final = 1024
"""Sets of shapes whose runs are counted at all; those seen longest ago are forgotten first."""
CREDIT_S: Final = 20.0
"""CPU time that plans of further shapes may take in any case."""
SHARE: Final = 0.5
"""What they may take on top of that for every second that the application takes itself."""

ShapeKey = tuple[tuple[int, ...], ...]


def cpu_s() -> float:
    return sum(os.times()[:4])


class Budget:
    """CPU time for plans of further shapes, one for all sessions of an agent.

    Args:
        cpu_s: what has been used so far, by the application and behind it.
    """

    def __init__(self, cpu_s: Callable[[], float] = cpu_s) -> None:
        self._cpu_s = cpu_s
        self._began_s = cpu_s()
        self._lock = threading.Lock()
        self._spent_s = 0.0

    @property
    def left_s(self) -> float:
        """What may be spent by now; less than nothing where a plan took more than there was."""
        with self._lock:
            own_s = self._cpu_s() - self._began_s - self._spent_s
            return CREDIT_S + SHARE * max(0.0, own_s) - self._spent_s

    @contextmanager
    def spending(self) -> Iterator[None]:
        """What is used meanwhile counts as spent, also what the application uses beside it: that errs on its side."""
        began_s = self._cpu_s()
        try:
            yield
        finally:
            with self._lock:
                self._spent_s += self._cpu_s() - began_s


@dataclass
class _Seen:
    uses: int = 0
    last_s: float = 0.0


class Demand:
    """Runs by shapes of one network. May be used from any number of threads."""

    def __init__(self, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self._budget = budget
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: OrderedDict[ShapeKey, _Seen] = OrderedDict()
        self._waiting: dict[ShapeKey, None] = {}

    def used(self, key: ShapeKey) -> bool:
        """Count a run; whether these shapes are now waiting for a plan and were not before."""
        with self._lock:
            seen = self._seen.setdefault(key, _Seen())
            self._seen.move_to_end(key)
            seen.uses, seen.last_s = seen.uses + 1, self._clock()
            while len(self._seen) > MAX_SHAPES:
                gone, _ = self._seen.popitem(last=False)
                self._waiting.pop(gone, None)
            if seen.uses != USES:
                return False
            self._waiting[key] = None
            return True

    def chosen(self) -> ShapeKey | None:
        """Of the shapes that wait the ones that came last, which are taken out; None where nothing is worth it now.

        Those that no longer come, and all where the budget is spent, wait no more; their next run has them wait again.
        """
        with self._lock:
            oldest_s, affordable = self._clock() - FRESH_S, self._budget.left_s > 0
            for key in list(self._waiting):
                if not affordable or self._seen[key].last_s < oldest_s:
                    del self._waiting[key]
                    self._seen[key].uses = USES - 1
            chosen = max(self._waiting, key=lambda key: self._seen[key].last_s, default=None)
            if chosen is not None:
                del self._waiting[chosen]
            return chosen

    def forget(self, key: ShapeKey) -> None:
        """Count runs at these shapes anew: their plan made room for others."""
        with self._lock:
            self._seen.pop(key, None)
            self._waiting.pop(key, None)

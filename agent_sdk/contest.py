"""Never slower: of several executors that compute the same, run the one that is fastest here and now.

The plan stands beside whole-model executors of single processors. A trial finds the winner. While serving, a drift
of the winner's own times (other work on its cores, heat) calls for a new trial, which costs no extra run: the
requests that come in are simply answered by one contender after the other. A contender that fails is dropped, and
the request is answered by the next best.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final

import numpy as np

from agent_sdk.engine import DeviceClosedError, Executor, SegmentFailedError
from agent_sdk.steady import Witness
from agent_sdk.timing import summarise
from agent_sdk.trace import Trace

PLAN: Final = "plan"
"""The contender that stands for the plan; it wins ties."""
SLOWER: Final = 1.15
"""Times its reference that a run must take to count as slow."""
FASTER: Final = 0.95
"""Times the current contender's run that another one must take to replace it: less may be chance."""
WINDOW: Final = 4
"""Latest runs looked at; when all but one of them are slow, others are tried."""
BEHIND: Final = 1.3
"""A contender this many times slower than the best has lost the first trial after a few runs."""
SURE: Final = 3
"""Runs after which the first trial leaves out those who are behind."""
PATIENCE: Final = 4.0
"""Times what its runs take that a first trial may last in order to wait for steady cores."""
PATIENCE_S: Final = 2.0
"""The longest that it may last for that."""
RECHECK: Final = 64
"""Most runs between two trials while serving: the first waits for WINDOW runs, each next for twice as many."""


class Contest:
    """Runs the fastest of its contenders; safe to use from several threads.

    Attributes:
        current: name of the contender that is run.
        first_us: median times of the first trial by name, microseconds; empty before it.
        changes: what was decided, in sentences, latest last.
    """

    def __init__(self, contenders: Mapping[str, Executor]) -> None:
        self._contenders = dict(contenders)
        self.current = PLAN if PLAN in self._contenders else next(iter(self._contenders))
        self.first_us: dict[str, float] = {}
        self.changes: deque[str] = deque(maxlen=32)
        self._lock = threading.Lock()
        self._reference_us = math.inf
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._served = 0
        self._interval = WINDOW
        self._queue: deque[str] = deque()
        self._tried: dict[str, float] = {}
        self._pending = 0

    @property
    def executor(self) -> Executor:
        """The executor that is run at present."""
        return self._contenders[self.current]

    def trial(self, inputs: Mapping[str, np.ndarray], rounds: int = 7) -> dict[str, float]:
        """Run all contenders ``rounds`` times, interleaved, and make the fastest the current one.

        Runs during which the cores were not steady are repeated for a while. Returns what each takes in microseconds
        (the median of its faster half); one that is far behind has fewer runs. Raises what a run raises.
        """
        times: dict[str, list[float]] = {name: [] for name in self._contenders}
        began = time.monotonic()
        for executor in self._contenders.values():
            executor.run(inputs)
        warm = time.monotonic()
        deadline = warm + min(PATIENCE_S, PATIENCE * rounds * (warm - began))
        with Witness() as witness:
            for turn in range(rounds):
                best = min((min(own) for own in times.values() if own), default=math.inf)
                for name, executor in self._contenders.items():
                    if turn < SURE or min(times[name]) <= BEHIND * best:
                        (_, trace), _ = witness.steadily(partial(executor.run, inputs), deadline)
                        times[name].append(trace.total_us)
        self.first_us = {name: summarise(own).us for name, own in times.items()}
        with self._lock:
            self._settle(self.first_us, "after timing all of them")
        return dict(self.first_us)

    @property
    def contenders(self) -> Mapping[str, Executor]:
        """What is left to choose from, by name."""
        return dict(self._contenders)

    def recall(self, first_us: Mapping[str, float]) -> None:
        """Start from the median times of an earlier trial instead of holding a new one."""
        self.first_us = {name: us for name, us in first_us.items() if name in self._contenders}
        if self.first_us:
            with self._lock:
                self._settle(self.first_us, "as found before")

    def run(
        self, inputs: Mapping[str, np.ndarray], *, timeout_s: float | None = None
    ) -> tuple[dict[str, np.ndarray], Trace]:
        """Compute the outputs with the current contender, or with the next one on trial.

        Raises what ``Executor.run`` raises; a failing processor only when no contender is left.
        """
        while True:
            with self._lock:
                on_trial = bool(self._queue)
                name = self._queue.popleft() if on_trial else self.current
                executor = self._contenders[name]
            try:
                outputs, trace = executor.run(inputs, timeout_s=timeout_s)
            except DeviceClosedError:
                with self._lock:
                    # Another thread may have dropped this contender since it was chosen.
                    if self._contenders.get(name) is executor:
                        raise
                    if on_trial:
                        self._count_down()
                continue
            except SegmentFailedError as error:
                with self._lock:
                    if not self._drop(name, error, on_trial):
                        raise
                continue
            with self._lock:
                self._learn(name, trace.total_us, on_trial)
            return outputs, trace

    def close(self) -> None:
        """Close every executor."""
        for executor in self._contenders.values():
            executor.close()

    def _learn(self, name: str, us: float, on_trial: bool) -> None:
        if on_trial:
            self._tried[name] = us
            self._count_down()
            return
        if name != self.current or self._pending:
            return
        self._recent.append(us)
        self._served += 1
        if self._served < self._interval:
            return
        usual = statistics.median(self._recent)
        first = self._first_choice()
        if sum(one > SLOWER * self._reference_us for one in self._recent) >= WINDOW - 1:
            # Nobody is expected to be faster now than in the quiet first trial.
            self._begin([other for other in self._contenders if self.first_us.get(other, 0.0) < usual])
        elif self.current != first:
            self._begin([first])
        elif self._served >= RECHECK:
            self._interval = WINDOW
        self._reference_us = min(self._reference_us, usual)

    def _begin(self, names: list[str]) -> None:
        """Have the next requests answered by these contenders, and one more by the current one."""
        self._tried = {}
        self._queue = deque([*(name for name in names if name != self.current), self.current])
        self._pending = len(self._queue)
        self._interval = min(2 * self._interval, RECHECK)

    def _count_down(self) -> None:
        self._pending -= 1
        if self._pending or not self._tried:
            return
        # The current one ran last: if what slowed it down is over by then, the others only seemed faster.
        mine = self._tried.pop(self.current, math.inf)
        first = self._first_choice()
        faster = {name: us for name, us in self._tried.items() if us < (mine if name == first else FASTER * mine)}
        self._settle(faster or {self.current: mine}, "under the present load")

    def _settle(self, found: Mapping[str, float], when: str) -> None:
        times = {name: us for name, us in found.items() if name in self._contenders}
        if not times:
            return
        winner = min(times, key=lambda name: (times[name], name != PLAN))
        if winner != self.current:
            before = f" against {times[self.current] / 1e3:.2f} ms" if self.current in times else ""
            self.changes.append(
                f"running '{winner}' instead of '{self.current}' {when}: {times[winner] / 1e3:.2f} ms{before}"
            )
            self.current = winner
            self._interval = WINDOW
        self._reference_us = times[winner]
        self._recent.clear()
        self._served = 0

    def _drop(self, name: str, error: SegmentFailedError, on_trial: bool) -> bool:
        """Leave a contender out from now on; False when it was the last one."""
        if len(self._contenders) == 1 and name in self._contenders:
            return False
        failed = self._contenders.pop(name, None)
        if failed is not None:
            self.changes.append(f"'{name}' failed and is not used any more: {error}")
            self._pending -= self._queue.count(name)
            self._queue = deque(other for other in self._queue if other != name)
            if self.current == name:
                self.current = self._first_choice()
                self._reference_us = self.first_us.get(self.current, math.inf)
            failed.close()
        if on_trial:
            self._count_down()
        return True

    def _first_choice(self) -> str:
        return min(self._contenders, key=lambda name: (self.first_us.get(name, math.inf), name != PLAN))

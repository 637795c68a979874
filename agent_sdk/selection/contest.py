"""Never slower: of several executors that compute the same, run the one that is fastest here and now.

The plan stands beside whole-model executors of single processors. A trial finds the winner. While serving, a drift
of the winner's own times (other work on its cores, heat) calls for a new trial, which costs no extra run: the
requests that come in are simply answered by one contender after the other, in a few rounds. A request that a
contender fails is answered by the next best, and then the one that failed is dropped; a request that all of them
fail is the caller's.
"""

from __future__ import annotations

import math
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from agent_sdk.device.huge_pages import collapse
from agent_sdk.engine import DeviceClosedError, Executor, RunTimeoutError, SegmentFailedError
from agent_sdk.engine.trace import Trace
from agent_sdk.errors import ExecutionError, ProcessorError
from agent_sdk.measure.steady import Witness
from agent_sdk.measure.timing import FIRST_RUN_S

PLAN: Final = "plan"
"""The contender that stands for the plan; it wins ties."""
FAILURES: Final = (SegmentFailedError, ProcessorError, DeviceClosedError)
"""What a run raises where its processors failed, or hang: others may still answer."""
SLOWER: Final = 1.15
"""Times its reference that a run must take to count as slow."""
FASTER: Final = 0.95
"""Times what the current contender takes that another one must take to replace it: less may be chance."""
WINDOW: Final = 4
"""Latest runs looked at; when all but one of them are slow, others are tried."""
ROUNDS: Final = 3
"""Runs of each on trial while serving: beside other work any single run may take twice as long as usual."""
BEHIND: Final = 1.3
"""A contender whose best run is this many times slower than the best of all has lost a trial after a few runs."""
HOPELESS: Final = 2.0
"""One whose first run while serving is this many times slower has lost at once."""
SURE: Final = 3
"""Runs after which the first trial leaves out those who are behind."""
CLOSE: Final = 1.05
"""Times the best median below which chance may have set the order: a first trial goes on among these contenders."""
LONGER: Final = 2
"""Times its rounds that a first trial may go on for that."""
PATIENCE: Final = 4.0
"""Times what its runs take that a first trial may last in order to wait for steady cores."""
PATIENCE_S: Final = 2.0
"""The longest that it may last for that, and again for deciding between those that are close."""
RECHECK: Final = 64
"""Most runs between two trials while serving: the first waits for WINDOW runs, each next for twice as many."""


@dataclass(frozen=True)
class Trial:
    """What a trial found.

    Attributes:
        times_us: the times of each contender's runs, microseconds; one that was far behind has fewer.
        median_us: what each contender takes. Of those that were close, runs that are not in ``times_us`` decided
            what they take relative to one another.
        steady: whether the cores were steady in most runs of every contender, so that the figures are worth keeping.
    """

    times_us: Mapping[str, tuple[float, ...]]
    median_us: dict[str, float]
    steady: bool


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
        self._tried: dict[str, list[float]] = {}
        self._pending = 0

    @property
    def executor(self) -> Executor:
        """The executor that is run at present."""
        return self._contenders[self.current]

    def trial(self, inputs: Mapping[str, np.ndarray], rounds: int = 7) -> Trial:
        """Run all contenders ``rounds`` times, interleaved, and make the one with the least median the current one.

        Runs during which the cores were not steady are repeated for a while. Those whose medians are close to the best
        then go on among themselves. The order is drawn anew in every round, so that nobody always follows the same
        neighbour. A contender that fails is dropped; when none is left, the first one's failure is raised and the last
        is not dropped.
        """
        once_s = self.warm(inputs)
        contenders = self.contenders
        times: dict[str, list[float]] = {name: [] for name in contenders}
        steady = dict.fromkeys(contenders, 0)
        failures: dict[str, ExecutionError] = {}
        draw = random.Random(0)

        def play(names: Sequence[str]) -> None:
            for name in draw.sample(names, len(names)):
                try:
                    (_, trace), quiet = witness.steadily(partial(contenders[name].run, inputs), deadline)
                except FAILURES as error:
                    failures[name] = error
                    del times[name]
                    continue
                times[name].append(trace.total_us)
                steady[name] += quiet

        with Witness() as witness:
            deadline = time.monotonic() + min(PATIENCE_S, PATIENCE * rounds * once_s)
            for turn in range(rounds):
                play(_promising(times) if turn >= SURE else list(times))
            first = {name: tuple(own) for name, own in times.items()}
            close = _close(first)
            over = time.monotonic() + PATIENCE_S
            for _ in range(LONGER * rounds):
                if len(close) < 2 or time.monotonic() >= over:
                    break
                play(close)
                close = [name for name in close if name in times]
        if not times:
            raise next(iter(failures.values()))
        self._drop(failures)
        trial = Trial(
            times_us={name: first[name] for name in times},
            median_us=_medians({name: first[name] for name in times}, {name: times[name] for name in close}),
            steady=all(2 * steady[name] > len(own) for name, own in times.items()),
        )
        self.first_us = trial.median_us
        with self._lock:
            self._settle(self.first_us, "after timing all of them")
        return trial

    def warm(self, inputs: Mapping[str, np.ndarray]) -> float:
        """Run each contender once, so that its memory is there, and put that into huge pages; seconds the runs took.

        One that fails, or takes longer than ``FIRST_RUN_S``, is dropped; when all of them do, the first one's failure
        is raised and none is dropped.
        """
        began = time.monotonic()
        failures: dict[str, ExecutionError] = {}
        for name, executor in self.contenders.items():
            try:
                executor.run(inputs, timeout_s=FIRST_RUN_S)
            except (*FAILURES, RunTimeoutError) as error:
                failures[name] = error
        if len(failures) == len(self._contenders):
            raise next(iter(failures.values()))
        self._drop(failures)
        took = time.monotonic() - began
        collapse()
        return took

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

    def keep(self, names: Collection[str]) -> None:
        """Close all but the plan, the current contender and these. Call it before serving."""
        for name in self._contenders.keys() - {PLAN, self.current, *names}:
            self._contenders.pop(name).close()

    def run(
        self, inputs: Mapping[str, np.ndarray], *, timeout_s: float | None = None
    ) -> tuple[dict[str, np.ndarray], Trace]:
        """Compute the outputs with the current contender, or with the next one on trial.

        Raises what ``Executor.run`` raises; a failing processor only when no contender can answer this request.
        """
        failures: dict[str, ExecutionError] = {}
        while True:
            with self._lock:
                name, on_trial = self._next(failures)
                executor = self._contenders[name]
            try:
                outputs, trace = executor.run(inputs, timeout_s=timeout_s)
            except BaseException as error:
                with self._lock:
                    dropped = name not in self._contenders  # by another thread, since it was chosen
                    if on_trial and (dropped or isinstance(error, RunTimeoutError)):
                        self._learn(name, math.inf, on_trial)
                    elif on_trial:
                        self._queue.appendleft(name)
                if not isinstance(error, FAILURES):
                    raise
                if not dropped:
                    failures[name] = error
                continue
            with self._lock:
                self._learn(name, trace.total_us, on_trial)
            if failures:
                self._drop(failures)
            return outputs, trace

    def close(self) -> None:
        """Close every executor. Raises ExecutionError when a runtime hangs in one."""
        with ExitStack() as closing:
            for executor in self.contenders.values():
                closing.callback(executor.close)

    def _next(self, failures: Mapping[str, ExecutionError]) -> tuple[str, bool]:
        """Who answers a request that those in ``failures`` could not, and whether it is on trial."""
        if not failures:
            return (self._queue.popleft(), True) if self._queue else (self.current, False)
        left = self._contenders.keys() - failures.keys()
        if not left:
            raise next(iter(failures.values()))
        return self.current if self.current in left else self._first_choice(left), False

    def _learn(self, name: str, us: float, on_trial: bool) -> None:
        if on_trial:
            self._tried[name].append(us)
            self._count_down(1)
            return
        if name != self.current or self._pending:
            return
        self._recent.append(us)
        self._served += 1
        if self._served < self._interval:
            return
        if us <= SLOWER * self._reference_us and self._served % WINDOW:
            return  # a look at the window costs 30 µs, and every interval is whole windows long
        usual = statistics.median(self._recent)
        first = self._first_choice(self._contenders)
        if sum(one > SLOWER * self._reference_us for one in self._recent) >= WINDOW - 1:
            # Nobody is expected to be much faster now than in the quiet first trial.
            self._begin([other for other in self._contenders if self.first_us.get(other, 0.0) < SLOWER * usual])
        elif self.current != first:
            self._begin([first])
        elif self._served >= RECHECK:
            self._interval = WINDOW
        self._reference_us = min(self._reference_us, usual)

    def _begin(self, names: list[str]) -> None:
        """Have the next requests answered by these contenders and the current one, in turns."""
        others = [name for name in names if name != self.current]
        self._tried = {name: [] for name in (*others, self.current)}
        self._queue_round(self._tried)
        self._interval = min(2 * self._interval, RECHECK)

    def _queue_round(self, names: Iterable[str]) -> None:
        """One run of each; the current one comes last: if what slowed it down is over by then, it shows."""
        self._queue = deque(names)
        self._pending = len(self._queue)

    def _count_down(self, done: int) -> None:
        self._pending -= done
        if self._pending:
            return
        tried = {name: own for name, own in self._tried.items() if own and name in self._contenders}
        if not tried:
            return
        rounds = max(map(len, tried.values()))
        left = _promising(tried, HOPELESS if rounds == 1 else BEHIND)
        if rounds < ROUNDS and len(left) > 1:
            self._queue_round(left)
            return
        medians = {name: statistics.median(own) for name, own in tried.items()}
        mine = medians.pop(self.current, math.inf)
        first = self._first_choice(self._contenders)
        faster = {name: us for name, us in medians.items() if us < (mine if name == first else FASTER * mine)}
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

    def _drop(self, failures: Mapping[str, ExecutionError]) -> None:
        """Leave out from now on those who failed what another one answered; never the last one."""
        dropped = []
        for name, error in failures.items():
            with self._lock:
                if name not in self._contenders or len(self._contenders) == 1:
                    continue
                dropped.append(self._contenders.pop(name))
                self.changes.append(f"'{name}' failed and is not used any more: {error}")
                if self.current == name:
                    self.current = self._first_choice(self._contenders)
                    self._reference_us = self.first_us.get(self.current, math.inf)
                waiting = self._queue.count(name)
                self._queue = deque(other for other in self._queue if other != name)
                if waiting:
                    self._count_down(waiting)
        for executor in dropped:
            with suppress(ExecutionError):  # it hangs; it is freed by whoever comes back
                executor.close()

    def _first_choice(self, among: Collection[str]) -> str:
        return min(among, key=lambda name: (self.first_us.get(name, math.inf), name != PLAN, name))


def _promising(times_us: Mapping[str, Sequence[float]], behind: float = BEHIND) -> list[str]:
    """Those whose best run is less than so many times behind the best of all."""
    best = min(map(min, times_us.values()), default=math.inf)
    return [name for name, own in times_us.items() if min(own) <= behind * best]


def _close(times_us: Mapping[str, Sequence[float]]) -> list[str]:
    """Those whose medians are so near to the best that chance may have set their order."""
    medians = {name: statistics.median(own) for name, own in times_us.items()}
    best = min(medians.values(), default=math.inf)
    return [name for name, us in medians.items() if us <= CLOSE * best]


def _medians(first: Mapping[str, Sequence[float]], longer: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of everyone's first runs; of those that went on, what the longer trial found, on the same scale.

    The machine may have become slower or faster meanwhile, which changes nothing between those that went on.
    """
    medians = {name: statistics.median(own) for name, own in first.items()}
    overall = {name: statistics.median(own) for name, own in longer.items()}
    if overall:
        scale = min(medians[name] for name in overall) / min(overall.values())
        medians |= {name: us * scale for name, us in overall.items()}
    return medians

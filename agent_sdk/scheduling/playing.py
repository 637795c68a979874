"""A mix in real time: every run is asked for when its stream says so, and noted when it ends."""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter_ns
from typing import Any, Final

from agent_sdk.errors import DroppedError, ExecutionError, QueueFullError
from agent_sdk.scheduling.job import Job
from agent_sdk.scheduling.mixes import Mix, Stream
from agent_sdk.scheduling.outcome import Ended

Asks = Callable[[Stream, float | None], "Future[Any]"]
"""Begins a run of a stream that is due in so many milliseconds; raises QueueFullError where no more are taken."""
GRACE_S: Final = 5.0
"""How long runs may go on after the last release; those that have not ended by then count as missed."""


def play(
    mix: Mix,
    ask: Asks,
    *,
    seed: int = 0,
    grace_s: float = GRACE_S,
    hopeless: Callable[[Ended], bool] = lambda _: False,
) -> list[Ended]:
    """Ask for every run of a mix at its time, and say what became of each.

    A run's latency counts from the time at which its stream released it, not from when this came round to asking.
    Takes as long as the mix, and at most ``grace_s`` more; ``hopeless`` hears what became of each run, and may end it.
    """
    return _Playing(mix, ask, seed, grace_s, hopeless).run()


@dataclass
class _Playing:
    mix: Mix
    ask: Asks
    seed: int
    grace_s: float
    hopeless: Callable[[Ended], bool]
    ended: list[Ended] = field(default_factory=list)
    open: dict[int, tuple[Stream, float, Future[Any]]] = field(default_factory=dict)
    events: list[tuple[float, int, Stream]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.order = count()
        self.changed = threading.Condition()
        for stream in self.mix.streams:
            for at in [0.0] if stream.arrival == "closed" else stream.releases(self.mix.seconds, self.seed):
                heapq.heappush(self.events, (at, next(self.order), stream))
        self.over = False
        self.began_ns = perf_counter_ns()

    @property
    def now_ms(self) -> float:
        return (perf_counter_ns() - self.began_ns) / 1e6

    def run(self) -> list[Ended]:
        last_ms = self.mix.seconds * 1e3
        while True:
            with self.changed:
                left = (self.events[0][0] if self.events else last_ms) - self.now_ms
                if self.over:
                    break
                if left > 0 and self.now_ms < last_ms:
                    self.changed.wait(left / 1e3)
                    continue
                if not self.events or self.events[0][0] >= last_ms:
                    break
                at, _, stream = heapq.heappop(self.events)
            self._begin(stream, at)
        with self.changed:
            self.changed.wait_for(lambda: not self.open or self.over, timeout=self.grace_s)
            left_over = list(self.open.values())
            self.open = {}
        for stream, at, future in left_over:
            future.cancel()
            self.ended.append(Ended(stream.name, at, None, None, self._due(stream, at)))
        return self.ended

    def _due(self, stream: Stream, at: float) -> float | None:
        return None if stream.due_ms is None else at + stream.due_ms

    def _begin(self, stream: Stream, at: float) -> None:
        number, due = next(self.order), self._due(stream, at)
        try:
            future = self.ask(stream, None if due is None else max(due - self.now_ms, 0.001))
        except QueueFullError as error:
            with self.changed:
                self._note(Ended(stream.name, at, None, None, due, dropped=True, failure=str(error)))
                self._follow(stream, self.now_ms + 1)
            return
        with self.changed:
            self.open[number] = stream, at, future
        future.add_done_callback(lambda done: self._over(number, done))

    def _over(self, number: int, future: Future[Any]) -> None:
        now = self.now_ms
        with self.changed:
            if number not in self.open:
                return
            stream, at, _ = self.open.pop(number)
            raised = None if future.cancelled() else future.exception()
            if isinstance(future, Job) and future.ended_ns:
                now = (future.ended_ns - self.began_ns) / 1e6
            began = (future.started_ns - self.began_ns) / 1e6 if isinstance(future, Job) and future.started_ns else None
            dropped = isinstance(raised, DroppedError)
            self._note(
                Ended(
                    stream.name,
                    at,
                    began,
                    now if raised is None and not future.cancelled() else None,
                    self._due(stream, at),
                    dropped,
                    future.where if isinstance(future, Job) else "",
                    "" if raised is None or dropped else str(raised) or type(raised).__name__,
                )
            )
            if raised is None:
                for one in self.mix.followers(stream.name):
                    if one.after is not None and self.draw.random() < one.after.probability:
                        heapq.heappush(self.events, (now, next(self.order), one))
            failing = isinstance(raised, ExecutionError)
            self._follow(stream, now + (1 if failing else 0))
            self.changed.notify()

    def _note(self, ended: Ended) -> None:
        self.ended.append(ended)
        self.over = self.over or self.hopeless(ended)

    def _follow(self, stream: Stream, at: float) -> None:
        """The next run of a closed loop."""
        if stream.arrival == "closed":
            heapq.heappush(self.events, (at, next(self.order), stream))

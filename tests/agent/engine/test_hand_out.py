"""Lanes are handed out to threads that rest, outside the interpreter or inside it: all are driven, once, and told."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from agent_sdk import native
from agent_sdk.engine import Event, Move, Work
from agent_sdk.engine.loops import Instruction, Loop, loop_for
from agent_sdk.engine.queue import Queue
from agent_sdk.runtimes.base import BoundCall, Buffer

MANY = 13


class Doing(BoundCall):
    """A launch that is a function of a test."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do

    def __call__(self) -> None:
        """Do it."""
        self._do()

    def rebind(self, name: str, buffer: Buffer) -> None:
        """It reads nothing."""


Task = tuple[tuple[Event, ...], Callable[[], object]]
"""What a piece of work waits for, and what it does."""


def loop_of(*rows: Sequence[Task]) -> Loop:
    """A loop with a lane per row."""
    code = [
        [
            Instruction(
                Work(
                    lane=lane,
                    position=position,
                    processor=f"p{lane}",
                    waits=waits,
                    lent=None,
                    moves=(Move("t", "here", "there"),),
                    finished=(),
                ),
                cores=frozenset(),
                copies=(),
                call=Doing(do),
                check=None,
            )
            for position, (waits, do) in enumerate(row)
        ]
        for lane, row in enumerate(rows)
    ]
    return loop_for(code, [frozenset()] * len(rows), native.library())


@contextmanager
def resting(count: int) -> Iterator[list[Queue]]:
    """So many threads that rest, and end at the end."""
    queues = [Queue(f"q{index}", frozenset(), native.library()) for index in range(count)]
    for queue in queues:
        queue.start()
    yield queues
    assert all(queue.stop(20) for queue in queues)


def test_whoever_sleeps_is_woken_by_somebody() -> None:
    """Twelve lanes that wait for one run on, by twos that wake two more, however long that one took."""
    driven: Counter[str] = Counter()
    after = ((Event(0, 1),), lambda: driven.update([threading.current_thread().name]))
    loop = loop_of([((), lambda: time.sleep(0.02))], *[[after]] * (MANY - 1))
    told: list[tuple[int, str]] = []
    with resting(MANY) as queues:
        for _ in range(5):
            loop.begin(first=False)
            loop.hand_out(dict(enumerate(queues)), lambda lane: told.append((lane, threading.current_thread().name)))
            assert loop.wait(range(MANY), 20)
    assert not loop.failures()
    assert driven == {f"hope-q{lane}": 5 for lane in range(1, MANY)}
    assert Counter(told) == {(lane, f"hope-q{lane}"): 5 for lane in range(MANY)}


def test_lanes_may_be_handed_out_while_others_are_driven() -> None:
    """As resources come free: the first lane goes on when the last one has been, which is handed out after it."""
    last = MANY - 1
    loop = loop_of([((Event(last, 1),), lambda: None)], *[[((Event(0, 0),), lambda: None)]] * last)
    told: list[int] = []
    with resting(MANY) as queues:
        for _ in range(5):
            loop.begin(first=False)
            loop.hand_out(dict(enumerate(queues[:2])), told.append)
            assert loop.wait([1], 20)
            assert not loop.wait([0], 0)
            loop.hand_out({lane: queues[lane] for lane in range(2, MANY)}, told.append)
            assert loop.wait(range(MANY), 20)
    assert Counter(told) == dict.fromkeys(range(MANY), 5)


def test_a_thread_comes_late_to_its_next_lane_and_to_its_end() -> None:
    """Still told of one lane when it is called for another one and to end: it does both, in that order."""
    done: list[str] = []
    late = threading.Event()
    loop = loop_of([((), lambda: done.append("driven"))])

    def tell_late(lane: int) -> None:
        late.wait(20)
        done.append("told")

    queue = Queue("q", frozenset(), native.library())
    queue.start()
    loop.begin(first=False)
    loop.hand_out({0: queue}, tell_late)
    assert loop.wait([0], 20)
    loop.begin(first=False)
    loop.hand_out({0: queue}, tell_late)
    assert not queue.stop(0.01)
    late.set()
    assert queue.stop(20)
    assert done == ["driven", "told"] * 2


@pytest.mark.parametrize("lane", [0, MANY - 1])
def test_a_lane_that_fails_stops_those_that_were_handed_out_with_it(lane: int) -> None:
    """They end where they wait for what will not come, and all of them are told."""

    def fail() -> None:
        raise ValueError("on fire")

    endless = ((Event(lane, 2),), lambda: None)
    rows: list[list[Task]] = [[endless]] * MANY
    rows[lane] = [((), fail)]
    loop = loop_of(*rows)
    told: list[int] = []
    with resting(MANY) as queues:
        for _ in range(3):
            loop.begin(first=False)
            loop.hand_out(dict(enumerate(queues)), told.append)
            assert loop.wait(range(MANY), 20)
            assert [str(error.__cause__) for error in loop.failures()] == ["on fire"]
    assert Counter(told) == dict.fromkeys(range(MANY), 3)

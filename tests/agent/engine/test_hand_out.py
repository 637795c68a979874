"""Lanes are handed out to threads that rest, outside the interpreter or inside it: all are driven, once, and told."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from operator import sub
from pathlib import Path

import pytest

from agent_sdk import native
from agent_sdk.engine import Copy, Device, Event, Move, build_program
from agent_sdk.engine.arbiter import Arbiter
from agent_sdk.engine.code import Instruction
from agent_sdk.engine.compiled import Compiled
from agent_sdk.engine.flight import Flight
from agent_sdk.engine.lanes import NativeLoop
from agent_sdk.engine.single import single_processor_plan
from agent_sdk.engine.threads import LaneThread
from agent_sdk.machine.soc import Soc
from agent_sdk.model import read_model
from agent_sdk.runtimes.base import BoundCall, Buffer
from agent_sdk.runtimes.ort.graph import FrozenGraphs
from agent_sdk.runtimes.ort.processor import OrtProcessor
from tests.agent.cores import GONE, SEVERAL
from tests.agent.engine.scene import NATIVE

pytestmark = NATIVE

MANY = 13
MOVE = Move("t", "here", "there")


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


def loop_of(
    *rows: Sequence[Task],
    seats: Sequence[frozenset[int]] = (),
    cores: frozenset[int] = frozenset(),
    far: Collection[int] = (),
) -> NativeLoop:
    """A loop with a lane per row, of which those that are ``far`` work for another host."""
    code = [
        [
            Instruction(
                Copy(lane=lane, position=position, processor=f"p{lane}", waits=waits, move=MOVE, far=lane in far),
                call=Doing(do),
            )
            for position, (waits, do) in enumerate(row)
        ]
        for lane, row in enumerate(rows)
    ]
    return NativeLoop(code, seats or [frozenset()] * len(rows), Arbiter(native.library()), cores)


def aside(loop: NativeLoop) -> int:
    """For how many runs its threads may leave their seats."""
    runs: int = loop._library.hope_aside(loop._run)
    return runs


@contextmanager
def resting(count: int) -> Iterator[dict[int, LaneThread]]:
    """So many threads that rest, and end at the end."""
    library = native.library()
    assert library is not None
    threads = {index: LaneThread(f"q{index}", frozenset(), library) for index in range(count)}
    yield threads
    assert all(thread.end(20) for thread in threads.values())


def test_whoever_sleeps_is_woken_by_somebody() -> None:
    """Twelve lanes that wait for one run on, by twos that wake two more, however long that one took."""
    driven: Counter[str] = Counter()
    after = ((Event(0, 1),), lambda: driven.update([threading.current_thread().name]))
    loop = loop_of([((), lambda: time.sleep(0.02))], *[[after]] * (MANY - 1))
    with resting(MANY) as threads:
        for _ in range(5):
            loop.begin(0)
            loop.hand_out(threads)
            assert loop.wait(20)
    assert not loop.failures()
    assert driven == {f"hope-q{lane}": 5 for lane in range(1, MANY)}


@pytest.mark.parametrize("far", [[0], [1]])
def test_who_waits_for_another_host_takes_no_core_meanwhile(far: list[int]) -> None:
    """A wait that a link is part of goes to sleep at once, whichever side is the other host's: others get the core."""
    taken: list[float] = []
    lost: list[int] = []

    def note() -> None:
        taken.append(time.thread_time())
        lost.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw)

    rows: list[list[Task]] = [[((), note), ((Event(1, 1),), note)], [((), lambda: time.sleep(0.02))]]
    with resting(2) as threads:
        for _ in range(5):  # each as the first one: who has yielded for long does not the next time
            loop = loop_of(*rows, far=far)
            loop.begin(0)
            loop.hand_out(threads)
            assert loop.wait(20)
            assert not loop.failures()
    # Who stays awake takes the core, or yields it to whoever wants it, which the kernel counts.
    assert statistics.median(map(sub, taken[1::2], taken[::2])) < 0.5e-3, "it stayed awake"
    assert statistics.median(map(sub, lost[1::2], lost[::2])) == 0, "it yielded"


def test_a_lane_that_is_left_behind_comes_back() -> None:
    """Its thread says so, once, and walks other lanes afterwards; who waited for the rest is free at once."""
    stuck, back = threading.Event(), threading.Event()
    loop = loop_of([((), lambda: stuck.wait(20))], [((), lambda: None)])
    with resting(2) as threads:
        loop.begin(0)
        loop.hand_out(threads)
        assert not loop.wait(0.05)
        threads[0].left = back.set
        assert loop.leave_behind(0)
        assert loop.wait(20)
        assert not loop.leave_behind(1)
        assert not back.is_set()
        stuck.set()
        assert back.wait(20)
        for _ in range(3):
            loop.begin(0)
            loop.hand_out(threads)
            assert loop.wait(20)


@pytest.mark.parametrize("lane", [0, MANY - 1])
def test_a_lane_that_fails_stops_those_that_were_handed_out_with_it(lane: int) -> None:
    """They end where they wait for what will not come."""

    def fail() -> None:
        raise ValueError("on fire")

    endless = ((Event(lane, 2),), lambda: None)
    rows: list[list[Task]] = [[endless]] * MANY
    rows[lane] = [((), fail)]
    loop = loop_of(*rows)
    with resting(MANY) as threads:
        for _ in range(3):
            loop.begin(0)
            loop.hand_out(threads)
            assert loop.wait(20)
            assert [str(error.__cause__) for error in loop.failures()] == ["on fire"]


@contextmanager
def spinning_on(core: int) -> Iterator[None]:
    """A process that keeps one core busy."""
    code = f"import os; os.sched_setaffinity(0, {{{core}}}); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as spinner:
        assert spinner.stdout is not None
        spinner.stdout.readline()
        try:
            yield
        finally:
            spinner.kill()


@SEVERAL
@pytest.mark.parametrize("count", [1, 2])
def test_threads_step_aside_where_others_keep_taking_their_core(count: int) -> None:
    """Bound at first; while something spins on their core they may use all, and the caller is put back where it was."""
    core, *_ = cores = sorted(os.sched_getaffinity(0))
    where: list[set[int]] = []

    def work() -> None:
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        where.append(os.sched_getaffinity(0))

    seat, everywhere = frozenset({core}), frozenset(cores)
    loop = loop_of(*[[((), work)]] * count, seats=[seat] * count, cores=everywhere)
    with spinning_on(core), resting(count) as threads:
        for _ in range(60):
            if count == 1:
                loop.alone(0)
            else:
                loop.begin(0)
                loop.hand_out(threads)
                assert loop.wait(20)
            if aside(loop) and where[-1] == everywhere:
                break
    assert where[0] == seat
    assert where[-1] == everywhere
    assert os.sched_getaffinity(0) == everywhere


@SEVERAL
def test_a_core_that_a_waiting_thread_yields_is_not_lost() -> None:
    """The kernel counts each time that a lane which waits lets another program on its core have it; those are left out
    of how often the lane lost its core.
    """
    core, *others = cores = sorted(os.sched_getaffinity(0))
    waiting: list[int] = []
    working: list[int] = []

    def count(counted: list[int]) -> None:
        counted.append(resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw)

    def work() -> None:
        count(working)
        time.sleep(0.002)
        count(working)

    look = partial(count, waiting)
    rows: list[list[Task]] = [[((), look), ((Event(1, 1),), look)], [((), work)]]
    lost = 0
    with spinning_on(core), resting(2) as threads:
        for _ in range(20):  # each as the first one: who has yielded for long does not the next time
            loop = loop_of(*rows, seats=[frozenset({core}), frozenset(others)], cores=frozenset(cores))
            loop.begin(0)
            loop.hand_out(threads)
            assert loop.wait(20)
            lost += loop._library.hope_lost(loop._run)
    assert lost < sum(sum(counted[1::2]) - sum(counted[::2]) for counted in (waiting, working))


def test_threads_that_may_go_nowhere_else_stay() -> None:
    """Without other cores to use, whatever disturbs them."""
    core = min(os.sched_getaffinity(0))
    loop = loop_of([((), lambda: time.sleep(0.001))], seats=[frozenset({core})])
    for _ in range(5):
        loop.alone(0)
        assert aside(loop) == 0


@SEVERAL
def test_a_gangs_thread_that_steps_aside_stays_off_its_workers_cores(tmp_path: Path) -> None:
    """Where its workers are bound, two of one gang on one core wait for each other; other threads may use all."""
    first, second, *_ = cores = sorted(os.sched_getaffinity(0))
    model = read_model("squeezenet")
    soc = Soc("here", "here", dict.fromkeys([*cores, GONE], "core"))
    one, gang = (
        OrtProcessor(soc, frozenset(own), frozen=FrozenGraphs(tmp_path)) for own in ([second], [first, second])
    )
    with Device([one, gang]) as device:

        def free(processor: OrtProcessor, *borders: int) -> list[frozenset[int]]:
            plan = single_processor_plan(model.graph, processor.id, soc="here", frequency="now")
            with closing(Compiled(build_program(plan, model, {processor.id: processor}, borders))) as compiled:
                loop = Flight(compiled, device.arbiter, frozenset(cores)).loop
                assert isinstance(loop, NativeLoop)
                return loop.beside

        assert free(gang, 1) == [frozenset(cores) - {second}]
        assert free(gang) == [frozenset(cores)]
        assert free(one) == [frozenset(cores)]

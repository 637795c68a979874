"""The witness: it ends with its block, and tells a slowed core and who was kept waiting."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from agent_sdk.machine import witness as witness_module
from agent_sdk.machine.cores import bound_to
from agent_sdk.machine.witness import SLOW, Witness, calm, pass_us
from tests.agent.cores import GONE

TOLD = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not tell who waited")


def test_it_looks_at_every_core_and_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread is bound to each and computes there, and the threads end with the block."""
    looked: set[int] = set()

    def on_core(seconds: float) -> float:
        [core] = os.sched_getaffinity(0)
        looked.add(core)
        return pass_us(seconds)

    monkeypatch.setattr(witness_module, "pass_us", on_core)
    before = set(threading.enumerate())
    with Witness() as witness:
        assert looked == os.sched_getaffinity(0)
        assert set(witness.shortest_us) == looked
    assert set(threading.enumerate()) <= before


def test_a_pass_goes_on_for_as_long_as_it_is_asked_to() -> None:
    """The core is kept at work until then; what is told is one pass, which is shorter."""
    began = time.monotonic()
    took_us = pass_us(0.02)
    assert time.monotonic() - began >= 0.02
    assert 0 < took_us < 1e6 * (time.monotonic() - began)


@pytest.mark.parametrize(("awake_ms", "waited_ms"), [(0, 1), (7, 8), (500, 100)])
def test_rest_begins_once_other_threads_are_asleep(
    awake_ms: int, waited_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that spins for so long is waited for, one that never sleeps is not waited for for ever."""
    now = [0]

    def sleep(seconds: float) -> None:
        now[0] += round(seconds * 1e9)

    clocks = SimpleNamespace(
        monotonic=lambda: now[0] / 1e9,
        perf_counter_ns=lambda: now[0],
        process_time_ns=lambda: min(now[0], awake_ms * 1_000_000),
        sleep=sleep,
    )
    monkeypatch.setattr(witness_module, "time", clocks)
    witness_module.until_asleep()
    assert now[0] == waited_ms * 1_000_000


def test_a_slowed_core_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """One core of all on which everything takes eight times as long shows, and no longer once that is over."""
    slowed: set[int] = set()
    monkeypatch.setattr(witness_module, "pass_us", lambda _: 8.0 if os.sched_getaffinity(0) <= slowed else 1.0)
    with Witness() as witness:
        assert witness.slowness() == witness.slowness(rest=True) == 1.0
        slowed.add(witness.cores[-1])
        assert witness.slowness() == 8.0
        slowed.clear()
        assert witness.slowness() == 1.0


def test_a_host_on_which_some_core_is_always_slow_is_calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside what its cores show at rest nothing disturbs it; what slows them all once more does."""
    looks, times = itertools.count(), [1.0]
    lock = threading.Lock()

    def strangers(_: float) -> float:
        with lock:  # each look finds another core beside a stranger, who takes half of it
            slow = next(looks) // len(cores) % len(cores) == cores.index(min(os.sched_getaffinity(0)))
        return times[0] * (2.0 if slow else 1.0)

    monkeypatch.setattr(witness_module, "pass_us", strangers)
    cores = Witness().cores
    with Witness() as witness:
        assert all(calm(witness.slowness(rest=rest)) for rest in (True, False) * 4)
        times[0] = 2.0
        assert not calm(witness.slowness())


def test_ctrl_c_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its threads end with a block that Ctrl-C ends, also where that comes while the block is entered."""
    monkeypatch.setattr(Witness, "_look", lambda self, seconds: os.kill(os.getpid(), signal.SIGINT))
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt), Witness():
        pass
    assert set(threading.enumerate()) <= before


def test_ctrl_c_between_two_threads_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have been started end, and nobody waits for those that have not."""
    start = threading.Thread.start

    def start_and_press(thread: threading.Thread) -> None:
        start(thread)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(threading.Thread, "start", start_and_press)
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt), Witness():
        pass
    assert set(threading.enumerate()) <= before


def test_a_core_that_is_gone_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core may go offline between two measurements; whoever looks at it still gets an answer."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, GONE})
    with Witness() as witness:
        assert witness.cores == [0, GONE]
        assert min(witness._last_us.values()) > 0


def test_few_cores_of_many_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """On 256 cores as many threads as on sixteen tell, spread over all of them."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(256)))
    assert Witness().cores == list(range(0, 256, 16))


def test_waiting_is_what_the_longest_waiting_thread_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of 30 ms in which one thread waited 10 and another, begun meanwhile, 20 took three times too long."""
    witness = Witness()
    waits = iter([{1: 5_000_000, 2: 7}, {1: 15_000_000, 2: 7, 3: 20_000_000}, {}, {}])
    now = [0]

    def look() -> dict[int, int]:
        now[0] += 50_000_000  # to ask the kernel takes long where there are many threads, and belongs to no call
        return next(waits)

    def call() -> str:
        now[0] += 30_000_000
        return "result"

    monkeypatch.setattr(witness, "_waits_ns", look)
    monkeypatch.setattr(witness_module, "time", SimpleNamespace(perf_counter_ns=lambda: now[0]))
    assert witness.kept_waiting(call) == ("result", 3.0)
    assert witness.kept_waiting(call) == ("result", 1.0)  # a kernel that does not tell


@TOLD
def test_another_process_on_the_core_is_noticed() -> None:
    """Who shares a core with another busy process waits for half of the time, and that is seen."""
    core = min(os.sched_getaffinity(0))
    busy = (
        f"import os, time; os.sched_setaffinity(0, [{core}]); print(flush=True); end = time.monotonic() + 10\n"
        "while time.monotonic() < end: pass"
    )

    def compute() -> None:
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass

    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            with Witness() as witness, bound_to(frozenset({core})):
                assert witness.kept_waiting(compute)[1] > SLOW
        finally:
            other.kill()


@TOLD
def test_the_witness_does_not_wait_for_itself() -> None:
    """Its threads go to sleep while the call begins on the same core; of all others it is told whether they waited."""
    with Witness() as witness:
        own = {thread.native_id for thread in threading.enumerate() if thread.name.startswith("hope-witness")}
        told = witness._waits_ns().keys()
    assert threading.get_native_id() in told
    assert own
    assert not own & told

"""Nobody waits for what will never come: behind a runtime that hangs, a device that closes, or a watchdog."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.turns import Turns
from agent_sdk.errors import DeviceClosedError, ExecutionError, InputError, RunTimeoutError, SegmentFailedError
from agent_sdk.runtimes.base import Segment
from tests.agent.cores import SEVERAL
from tests.agent.engine.conftest import Reference
from tests.agent.engine.generate import dealt_plan, whole_plan
from tests.agent.engine.scene import NATIVE, Scene, held, until

pytestmark = NATIVE


class Caller(threading.Thread):
    """Somebody who calls and keeps what comes of it, be it an error."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.found: list[object] = []
        self.start()

    def run(self) -> None:
        """Call."""
        try:
            self.found.append(self._call())
        except ExecutionError as error:
            self.found.append(error)

    def answer(self) -> object:
        """What came of it, within the time of a test."""
        self.join(20)
        assert self.found, "still waiting"
        return self.found[0]


def whole(scene: Scene, processor: str) -> Executor:
    """A session on one processor."""
    return Executor(
        build_program(whole_plan(scene.model, processor), scene.model, scene.device.processors), scene.device
    )


def queued(scene: Scene, resource: str, callers: int) -> None:
    """Return once somebody holds a resource, and all other callers wait at the arbiter."""
    arbiter = scene.device.arbiter
    until(lambda: resource in arbiter.busy and arbiter.waiting >= callers - 1)


def press_once_queued(session: Executor) -> None:
    """Press Ctrl-C when somebody waits for the session's turn."""
    until(lambda: session._turns.waiting)
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def at_work(scene: Scene, processor: str) -> Iterator[threading.Event]:
    """Let every segment of a processor wait for the event that this gives."""
    release = threading.Event()
    scene.by_id[processor].hook = lambda segment: release.wait(30) and None
    yield release
    release.set()


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("behind", ["ab", "a and b"])
def test_who_waits_behind_a_runtime_that_hangs_is_refused(
    behind: str, watched: bool, scene: Scene, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As are those who come later, so that whoever needs only what works is served; all is well once it is back."""
    monkeypatch.setattr("agent_sdk.engine.run.GRACE_S", 0.1)
    stuck, other = whole(scene, "a"), whole(scene, "b")
    if behind == "a and b":
        plan = dealt_plan(scene.model, ["a", "b"], seed=5)
        second = Executor(build_program(plan, scene.model, scene.device.processors), scene.device)
        assert len(second.program.lanes) == 2
    else:
        second = whole(scene, "ab")
    limit = 30 if watched else None
    with at_work(scene, "a"):
        hanging = Caller(lambda: stuck.run(scene.feeds, timeout_s=1))
        queued(scene, "x", 1)
        waiting = Caller(lambda: second.run(scene.feeds, timeout_s=limit))
        until(lambda: scene.device.arbiter.waiting or waiting.found)  # one that comes too late is refused at once
        assert isinstance(hanging.answer(), RunTimeoutError)
        assert isinstance(waiting.answer(), DeviceClosedError)
        served = Caller(lambda: other.run(scene.feeds, timeout_s=limit)[0])
        outputs = served.answer()
        assert isinstance(outputs, dict)
        for name, expected in reference(scene.model, scene.feeds).items():
            np.testing.assert_array_equal(outputs[name], expected)
    until(lambda: "x" not in scene.device.arbiter.busy)
    scene.works(reference)


def test_runs_of_a_session_that_hangs_are_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that waited for the turn of the one that hangs too, and the session serves again when it is back."""
    monkeypatch.setattr("agent_sdk.engine.run.GRACE_S", 0.1)
    session = whole(scene, "a")
    with at_work(scene, "a"):
        hanging = Caller(lambda: session.run(scene.feeds, timeout_s=1))
        queued(scene, "x", 1)
        waiting = [Caller(lambda: session.run(scene.feeds)) for _ in range(2)]
        until(lambda: session._turns.waiting == 2 or hanging.found)
        assert isinstance(hanging.answer(), RunTimeoutError)
        for caller in waiting:
            assert isinstance(caller.answer(), DeviceClosedError)
    until(lambda: not session._turns.withheld)
    session.run(scene.feeds)


def test_a_closing_device_refuses_what_is_queued(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that have not begun when a device gives up waiting end with its error; nobody is left behind."""
    monkeypatch.setattr("agent_sdk.engine.executor.JOIN_S", 0.1)
    sessions = [whole(scene, "c"), scene.open()]
    with held(scene.device, "z"):
        waiting = [Caller(lambda session=session: session.run(scene.feeds)) for session in sessions]
        queued(scene, "z", 3)
        closing = Caller(scene.device.close)
        for caller in waiting:
            assert isinstance(caller.answer(), DeviceClosedError)
    assert closing.answer() is None


def test_a_run_that_outlasts_closing_frees_its_memory(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a session says that a run is still going on, not that it hangs; the run frees everything at its end."""
    monkeypatch.setattr("agent_sdk.engine.executor.JOIN_S", 0.05)
    open_before = scene.by_id["a"].open_executables
    session = whole(scene, "a")
    with at_work(scene, "a"):
        running = Caller(lambda: session.run(scene.feeds))
        queued(scene, "x", 1)
        with pytest.raises(ExecutionError, match="still going on"):
            session.close()
        assert scene.by_id["a"].open_executables == open_before + 1
    assert isinstance(running.answer(), tuple)
    assert scene.by_id["a"].open_executables == open_before


def test_no_processor_is_closed_under_somebody_at_work(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing gives up with an error instead, and succeeds when tried again after that."""
    for name in ("executor", "device"):
        monkeypatch.setattr(f"agent_sdk.engine.{name}.JOIN_S", 0.1)
    session = whole(scene, "a")
    with at_work(scene, "a"):
        caller = Caller(lambda: session.run(scene.feeds))
        queued(scene, "x", 1)
        with pytest.raises(DeviceClosedError):
            scene.device.close()
        assert not any(processor.closed for processor in scene.processors)
    assert not isinstance(caller.answer(), ExecutionError)
    scene.device.close()
    assert all(processor.closed for processor in scene.processors)


def test_a_device_waits_for_a_session_that_is_being_closed(scene: Scene) -> None:
    """Whoever closes the session meanwhile, its executables are freed before the processors are."""
    session = whole(scene, "a")
    with at_work(scene, "a"):
        running = Caller(lambda: session.run(scene.feeds))
        queued(scene, "x", 1)
        closing = [Caller(session.close), Caller(scene.device.close)]
        until(lambda: session._turns.waiting and session._closing.locked())
        assert not any(processor.closed for processor in scene.processors)
    assert isinstance(running.answer(), tuple)
    assert [caller.answer() for caller in closing] == [None, None]


def test_ctrl_c_while_closing_loses_nothing(scene: Scene) -> None:
    """The run that was waited for frees the session at its end."""
    before = scene.by_id["a"].open_executables
    session = whole(scene, "a")
    with at_work(scene, "a"):
        running = Caller(lambda: session.run(scene.feeds))
        queued(scene, "x", 1)
        threading.Thread(target=press_once_queued, args=(session,)).start()
        with pytest.raises(KeyboardInterrupt):
            session.close()
    running.answer()
    assert scene.by_id["a"].open_executables == before


def test_a_turn_that_comes_too_late_frees_the_session(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that gives up waiting just as its turn comes does for a closed session what the run before it could not."""
    monkeypatch.setattr("agent_sdk.engine.executor.JOIN_S", 0.05)
    before = scene.by_id["a"].open_executables
    session = whole(scene, "a")
    leave = Turns._leave
    with at_work(scene, "a") as release:
        running = Caller(lambda: session.run(scene.feeds))
        queued(scene, "x", 1)

        def late(turns: Turns[Any], mine: Any) -> None:
            if threading.current_thread() is hasty:
                release.set()
                running.answer()
            leave(turns, mine)

        monkeypatch.setattr(Turns, "_leave", late)
        monkeypatch.setattr(Turns, "withhold", lambda turns, why: None)
        hasty = Caller(lambda: session.run(scene.feeds, timeout_s=1))
        until(lambda: session._turns.waiting)
        with pytest.raises(ExecutionError, match="still going on"):
            session.close()
        assert isinstance(hasty.answer(), ExecutionError)
    assert scene.by_id["a"].open_executables == before


def test_signals_do_not_give_a_watchdog_its_time_anew(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program's own timer, or a profiler's, interrupts every wait of the main thread."""
    monkeypatch.setattr("agent_sdk.engine.run.GRACE_S", 0.1)
    over = threading.Event()

    def keep_pressing() -> None:
        while not over.wait(0.02):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    pressing = threading.Thread(target=keep_pressing)
    pressing.start()
    try:
        with at_work(scene, "c"), pytest.raises(RunTimeoutError):
            scene.executor.run(scene.feeds, timeout_s=0.5)
    finally:
        over.set()
        pressing.join()
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("timeout_s", [-1.0, -0.001, float("nan")])
def test_a_time_that_is_none_is_refused(timeout_s: float, scene: Scene) -> None:
    """Before anything runs; endless is as long as threads can wait."""
    with pytest.raises(InputError, match="timeout_s"):
        scene.executor.run(scene.feeds, timeout_s=timeout_s)
    scene.executor.run(scene.feeds, timeout_s=float("inf"))


@SEVERAL
@pytest.mark.parametrize("count", [1, 2])
def test_a_failed_run_leaves_the_callers_thread_where_it_was(
    count: int, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a program would have moved it back by its last segment, which was never reached."""
    allowed = frozenset(os.sched_getaffinity(0))
    kinds = type(scene.processors[0])
    narrow = frozenset({min(allowed)})
    monkeypatch.setattr(kinds, "caller_cores", property(lambda here: narrow if here.id == "a" else allowed))
    failing = "a" if count == 1 else "c"
    names = ["a", "ab"] if count == 1 else ["a", "ab", "c"]
    with Device(processors := type(scene)(scene.model).processors) as device:
        by_id = {processor.id: processor for processor in processors}
        for seed in range(200):
            program = build_program(dealt_plan(scene.model, names, seed=seed), scene.model, device.processors)
            own = program.by_lane[program.segments[0].lane]
            if len(program.lanes) == count and own[0].processor == "a" and own[-1].processor == "ab":
                break
        else:
            pytest.fail("no such plan")

        def die(segment: Segment) -> None:
            raise ValueError("dead")

        by_id[failing].hook = die
        with Executor(program, device) as executor, pytest.raises(SegmentFailedError):
            executor.run(scene.feeds)
        assert os.sched_getaffinity(0) == allowed


@SEVERAL
def test_a_brief_run_is_made_where_its_thread_stands(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound to its CPU or standing there anyway; after a long run the thread is bound again, for it may be moved."""
    allowed = frozenset(os.sched_getaffinity(0))
    narrow = frozenset({min(allowed)})
    monkeypatch.setattr(type(scene.processors[0]), "caller_cores", property(lambda here: narrow))
    standing = ctypes.CDLL(None).sched_getcpu
    seen: list[tuple[frozenset[int], int]] = []
    lasts_s = 0.0

    def look(segment: Segment) -> None:
        seen.append((frozenset(os.sched_getaffinity(0)), standing()))
        time.sleep(lasts_s)

    program = build_program(dealt_plan(scene.model, ["a"]), scene.model, scene.device.processors)
    assert program.seats == (narrow,)
    scene.by_id["a"].hook = look
    with Executor(program, scene.device) as executor:
        for _ in range(50):
            executor.run(scene.feeds)
        lasts_s = 0.002
        executor.run(scene.feeds)
        executor.run(scene.feeds)
    assert sum(core not in narrow for _, core in seen) < 5, "the kernel may move it now and then, between two looks"
    assert seen[0][0] == seen[-1][0] == narrow
    assert os.sched_getaffinity(0) == allowed

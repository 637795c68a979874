"""Ctrl-C at any moment: it reaches the caller, nothing is left half done, and the next run works."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.flight import Flight
from agent_sdk.engine.run import LanesRun
from agent_sdk.errors import DeviceClosedError, RunTimeoutError
from agent_sdk.runtimes.base import Segment
from tests.agent.engine.conftest import Reference
from tests.agent.engine.generate import dealt_plan, whole_plan
from tests.agent.engine.scene import NATIVE, Scene, flight_of, held, until

pytestmark = NATIVE


@pytest.mark.parametrize("victim", ["a", "b", "ab", "c"])
def test_ctrl_c_cancels_the_run(victim: str, scene: Scene, reference: Reference) -> None:
    """KeyboardInterrupt reaches the caller once all threads have left the run; the device stays usable."""
    at_work = threading.Event()

    def slow(segment: Segment) -> None:
        at_work.set()
        time.sleep(0.05)

    scene.by_id[victim].hook = slow

    def press() -> None:
        at_work.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    cores = os.sched_getaffinity(0)

    def run_until_pressed() -> None:
        for _ in range(1000):
            scene.executor.run(scene.feeds)

    with pytest.raises(KeyboardInterrupt):
        run_until_pressed()
    presser.join(30)
    assert os.sched_getaffinity(0) == cores
    counts = [len(p.log) for p in scene.processors]
    time.sleep(0.1)
    assert [len(p.log) for p in scene.processors] == counts
    scene.works(reference)


def test_ctrl_c_is_heard_by_a_caller_that_has_just_begun_to_wait(scene: Scene, reference: Reference) -> None:
    """Whether it still looks around or sleeps already: the lanes stop before they have come to their end."""
    loop = flight_of(scene.executor).loop
    assert loop is not None
    heard: list[bool] = []

    def press_and_wait(segment: Segment) -> None:
        if not heard:
            heard.append(False)
            press()
            deadline = time.monotonic() + 60
            while not loop.stopped and time.monotonic() < deadline:
                time.sleep(0.01)
            heard[0] = loop.stopped

    for _ in range(5):
        heard.clear()
        for processor in scene.processors:
            processor.hook = press_and_wait
        with pytest.raises(KeyboardInterrupt):
            scene.executor.run(scene.feeds, timeout_s=60)
        assert heard == [True]
    scene.works(reference)


def test_ctrl_c_between_the_segments_of_one_lane(scene: Scene, reference: Reference) -> None:
    """A run on the caller's own thread ends after the segment at work, and occupies nothing any more."""
    program = build_program(dealt_plan(scene.model, ["a", "ab"], seed=5), scene.model, scene.device.processors)
    executor = Executor(program, scene.device)
    assert len(program.lanes) == 1
    assert sum(segment.processor == "ab" for segment in program.segments) > 1
    scene.by_id["ab"].hook = lambda segment: press()
    cores = os.sched_getaffinity(0)
    with pytest.raises(KeyboardInterrupt):
        executor.run(scene.feeds)
    assert len(scene.by_id["ab"].log) == 1
    assert os.sched_getaffinity(0) == cores
    assert not scene.device.arbiter.busy
    scene.works(reference)
    assert executor.run(scene.feeds)[1].segments


def press() -> None:
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def occupied(device: Device) -> Iterator[Callable[[], object]]:
    """Occupy what processor ``c`` needs; gives a call that has Ctrl-C pressed once somebody queues up behind that."""

    def press_once_queued() -> None:
        until(lambda: device.arbiter.waiting)
        press()

    with ThreadPoolExecutor(1) as pool, held(device, "z"):
        yield lambda: pool.submit(press_once_queued)


@pytest.mark.parametrize("early", [True, False])
def test_ctrl_c_frees_a_run_that_is_queued(
    early: bool, scene: Scene, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pressed while a run waits for others, or before it does: it ends at once and leaves no ticket behind."""
    alone = Executor(build_program(whole_plan(scene.model, "c"), scene.model, scene.device.processors), scene.device)
    with occupied(scene.device) as press_once_queued:
        if early:
            real = Flight.load
            monkeypatch.setattr(Flight, "load", lambda flight, *given: (press(), real(flight, *given)))
        else:
            press_once_queued()
        with pytest.raises(KeyboardInterrupt):
            alone.run(scene.feeds)
        assert scene.device.arbiter.waiting == 0
    monkeypatch.undo()
    scene.works(reference)


def test_the_first_ctrl_c_counts_while_a_hanging_run_is_given_up(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pressed in the time of grace that follows a timeout it is raised, at once and not in place of nothing."""
    monkeypatch.setattr("agent_sdk.engine.run.GRACE_S", 20.0)
    release = threading.Event()
    scene.by_id["c"].hook = lambda segment: release.wait(30)
    give_up = LanesRun._give_up

    def press_soon(*given: Any) -> None:
        threading.Timer(0.1, press).start()
        give_up(*given)

    monkeypatch.setattr(LanesRun, "_give_up", press_soon)
    with pytest.raises(KeyboardInterrupt) as raised:
        scene.executor.run(scene.feeds, timeout_s=1)
    assert isinstance(raised.value.__cause__, RunTimeoutError)
    with pytest.raises(DeviceClosedError, match="hangs"):
        scene.executor.run(scene.feeds)
    release.set()


def test_a_programs_own_sigint_handler_is_called_and_the_run_goes_on(scene: Scene, reference: Reference) -> None:
    """Who handles SIGINT without raising wants no cancelled run."""
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        pressed = threading.Event()

        def press(segment: Segment) -> None:
            if not pressed.is_set():
                pressed.set()
                os.kill(os.getpid(), signal.SIGINT)

        scene.by_id["b"].hook = press
        outputs, _ = scene.executor.run(scene.feeds)
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [signal.SIGINT]
    for name, expected in reference(scene.model, scene.feeds).items():
        np.testing.assert_array_equal(outputs[name], expected)

"""What goes wrong in one run stays in that run: one clear error, everything settled, the next run works."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from contextlib import nullcontext

import numpy as np
import pytest

from agent_sdk.engine import Executor, build_program
from agent_sdk.engine.turn import Turn
from agent_sdk.errors import (
    DeviceClosedError,
    ExecutionError,
    OutOfMemory,
    ProcessorLost,
    RunTimeoutError,
    SegmentFailedError,
    WrongOutput,
)
from agent_sdk.journey.trial import PLAN, warm
from agent_sdk.model import Model
from agent_sdk.runtimes.base import Segment
from hope_schema import TensorType
from tests.agent.engine.conftest import Reference
from tests.agent.engine.generate import dealt_plan, whole_plan
from tests.agent.engine.scene import NATIVE, Scene, flight_of, until
from tests.agent.engine.simulated import SimulatedProcessor
from tests.agent.models import prepared_of


@pytest.mark.parametrize("victim", ["a", "b", "ab", "c"])
@pytest.mark.parametrize("watched", [False, True])
def test_an_exception_ends_the_run_with_one_error(
    victim: str, watched: bool, scene: Scene, reference: Reference
) -> None:
    """It names processor and segment, chains the cause, and the next run works."""

    def die(segment: Segment) -> None:
        raise ValueError("the device is on fire")

    scene.by_id[victim].hook = die
    with pytest.raises(SegmentFailedError, match=rf"failed on '{victim}': ValueError: .*on fire") as caught:
        scene.executor.run(scene.feeds, timeout_s=30 if watched else None)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.processor == victim
    failed = scene.executor.program.segments[caught.value.segment]
    assert failed.processor == victim
    assert failed.ops == caught.value.ops
    scene.works(reference)


def test_nothing_of_a_failed_run_goes_on(scene: Scene) -> None:
    """Once `run` has raised, no processor of this run is at work or starts again."""
    calls: list[str] = []

    def slow(segment: Segment) -> None:
        time.sleep(0.002)
        calls.append(segment.outputs[0])

    def die(segment: Segment) -> None:
        raise RuntimeError("dead")

    for processor in scene.processors:
        processor.hook = slow
    scene.by_id["b"].hook = die
    with pytest.raises(SegmentFailedError):
        scene.executor.run(scene.feeds)
    settled = len(calls)
    time.sleep(0.05)
    assert len(calls) == settled
    assert settled < len(scene.executor.program.segments)


def test_a_failure_leaves_other_sessions_alone(scene: Scene, reference: Reference) -> None:
    """While one session fails again and again, another one's runs all succeed."""
    other = scene.open()
    theirs = {id(s.segment) for s in scene.executor.program.segments}

    def die_if_theirs(segment: Segment) -> None:
        if id(segment) in theirs:
            raise RuntimeError("dead")

    scene.by_id["ab"].hook = die_if_theirs
    expected = reference(scene.model, scene.feeds)
    failures: list[BaseException] = []

    def fail_often() -> None:
        for _ in range(30):
            try:
                scene.executor.run(scene.feeds)
            except SegmentFailedError as error:
                failures.append(error)

    thread = threading.Thread(target=fail_often)
    thread.start()
    for _ in range(30):
        outputs, _ = other.run(scene.feeds, timeout_s=30)
        for name, want in expected.items():
            np.testing.assert_array_equal(outputs[name], want)
    thread.join(30)
    assert not thread.is_alive()
    assert len(failures) == 30


def test_out_of_memory_while_opening_frees_what_was_opened(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that does not fit leaves no compiled segment behind."""
    open_before = [p.open_executables for p in scene.processors]

    def full(kind: TensorType) -> None:
        raise OutOfMemory(f"c: no room for {kind}")

    monkeypatch.setattr(scene.by_id["c"].place, "allocate", full)
    with pytest.raises(OutOfMemory, match="no room"):
        scene.open()
    assert [p.open_executables for p in scene.processors] == open_before


def test_a_runtime_that_makes_another_shape_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an executable says it makes must be what the graph declares, before anything runs."""
    compile_right = SimulatedProcessor.compile

    def compile_wrong(self: SimulatedProcessor, segment: Segment) -> object:
        executable = compile_right(self, segment)
        executable.output_types = {name: TensorType(shape=(3,), dtype="float32") for name in segment.outputs}
        return executable

    monkeypatch.setattr(SimulatedProcessor, "compile", compile_wrong)
    with pytest.raises(WrongOutput, match=r"float32\[3\]"):
        scene.open()


@NATIVE
def test_the_watchdog_ends_a_run_that_takes_too_long(scene: Scene, reference: Reference) -> None:
    """A slow segment is given up with an error that says who was doing what; later runs work."""
    loop = flight_of(scene.executor).loop
    assert loop is not None
    scene.by_id["ab"].hook = lambda segment: until(lambda: loop.stopped)
    with pytest.raises(RunTimeoutError, match="'ab' is at segment"):
        scene.executor.run(scene.feeds, timeout_s=1)
    scene.works(reference)


@NATIVE
def test_a_runtime_that_hangs_blocks_nobody_else(
    scene: Scene, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that does not come back costs its processor, not the program; when it does come back all is well."""
    monkeypatch.setattr("agent_sdk.engine.run.GRACE_S", 0.5)
    release = threading.Event()
    scene.by_id["c"].hook = lambda segment: release.wait(30)
    with pytest.raises(RunTimeoutError):
        scene.executor.run(scene.feeds, timeout_s=1)
    with pytest.raises(DeviceClosedError, match="hangs on z"):
        scene.executor.run(scene.feeds, timeout_s=1)
    with (
        Executor(
            build_program(whole_plan(scene.model, "c"), scene.model, scene.device.processors), scene.device
        ) as needs_it,
        pytest.raises(DeviceClosedError, match="hangs on z"),
    ):
        needs_it.run(scene.feeds)
    with Executor(
        build_program(whole_plan(scene.model, "ab"), scene.model, scene.device.processors), scene.device
    ) as elsewhere:
        elsewhere.run(scene.feeds, timeout_s=30)
    release.set()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            scene.works(reference)
            break
        except DeviceClosedError:
            time.sleep(0.01)
    else:
        pytest.fail("the session stayed unusable after the runtime had come back")


@NATIVE
def test_a_session_outlives_a_runtime_that_hangs(
    scene: Scene, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the plan hung on one processor, the rival elsewhere answers; what hung is freed once it comes back."""
    monkeypatch.setattr("agent_sdk.engine.run.GRACE_S", 0.1)
    rival = Executor(build_program(whole_plan(scene.model, "ab"), scene.model, scene.device.processors), scene.device)
    serving = prepared_of({PLAN: scene.executor, "ab": rival}, {PLAN: 1.0, "ab": 2.0})
    release = threading.Event()
    scene.by_id["c"].hook = lambda segment: release.wait(30)
    with pytest.raises(RunTimeoutError):
        serving.run(scene.feeds, timeout_s=1)
    outputs, _ = serving.run(scene.feeds, timeout_s=30)
    for name, expected in reference(scene.model, scene.feeds).items():
        np.testing.assert_array_equal(outputs[name], expected)
    assert set(serving.contenders) == {"ab"}
    release.set()


@NATIVE
def test_a_lane_without_a_thread_refuses_the_run(
    scene: Scene, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the process may start no more threads, a run says so before anybody waits for it, and a later one works."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ProcessorLost, match="can't start new thread"):
        scene.executor.run(scene.feeds)
    monkeypatch.undo()
    scene.works(reference)


def test_a_run_that_is_over_has_given_everything_back(scene: Scene) -> None:
    """Whether it went well or failed."""

    def broken(segment: Segment) -> None:
        raise RuntimeError("broken")

    scene.executor.run(scene.feeds)
    assert not scene.device.arbiter.busy
    scene.by_id["a"].hook = broken
    with pytest.raises(SegmentFailedError, match="broken"):
        scene.executor.run(scene.feeds)
    assert not scene.device.arbiter.busy


def test_closing_ends_sessions_and_threads(model: Model) -> None:
    """A closed device refuses runs and new sessions; closing twice is fine."""
    scene = Scene(model)
    scene.executor.run(scene.feeds)
    scene.device.close()
    scene.device.close()
    with pytest.raises(DeviceClosedError):
        scene.executor.run(scene.feeds)
    with pytest.raises(DeviceClosedError):
        scene.open()
    assert all(p.open_executables == 0 for p in scene.processors)


def test_closing_waits_for_runs_in_progress(model: Model, reference: Reference) -> None:
    """A run that another thread is in ends properly before its memory is freed."""
    scene = Scene(model)
    at_work = threading.Event()

    def slow(segment: Segment) -> None:
        at_work.set()
        time.sleep(0.01)

    scene.by_id["a"].hook = slow
    results: list[dict[str, np.ndarray]] = []
    thread = threading.Thread(target=lambda: results.append(scene.executor.run(scene.feeds)[0]))
    thread.start()
    at_work.wait(30)
    scene.device.close()
    thread.join(30)
    for name, expected in reference(model, scene.feeds).items():
        np.testing.assert_array_equal(results[0][name], expected)


def test_a_dropped_session_frees_its_memory(scene: Scene) -> None:
    """Neither threads nor queues keep a session alive that nobody holds any more."""
    other = scene.open()
    other.run(scene.feeds)
    watch = weakref.ref(other)
    buffers = weakref.ref(other.memory)
    del other
    deadline = time.monotonic() + 60
    while watch() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert watch() is None
    assert buffers() is None


@pytest.mark.parametrize("fails", [True, False])
def test_what_a_run_was_given_ends_with_it(fails: bool, scene: Scene) -> None:
    """Neither its inputs on a device nor what it had to do meanwhile is held until the next run, answered or not."""

    class Asked:
        def __call__(self) -> None:
            pass

    def die(segment: Segment) -> None:
        raise ValueError("the device is on fire")

    asked = Asked()
    watch = weakref.ref(asked)
    scene.by_id["a"].hook = die if fails else None
    with pytest.raises(SegmentFailedError) if fails else nullcontext():
        scene.executor.run(scene.feeds, turn=Turn(meanwhile=asked))
    del asked
    gc.collect()  # what an exception's frames held
    assert watch() is None


@pytest.mark.parametrize("closed", [True, False])
def test_a_session_that_never_ran_frees_everything_at_once(closed: bool, scene: Scene) -> None:
    """Dropped or closed, it needs no garbage collector, which may come later than the end of the device."""
    before = [processor.open_executables for processor in scene.processors]
    gc.collect()
    gc.disable()
    try:
        other = scene.open()
        assert all(p.open_executables > count for p, count in zip(scene.processors, before, strict=True))
        held = [*map(weakref.ref, flight_of(other)._buffers.values()), *map(weakref.ref, flight_of(other)._calls)]
        if closed:
            other.close()
        else:
            del other
        assert [processor.open_executables for processor in scene.processors] == before
        assert not any(watch() for watch in held)
    finally:
        gc.enable()


@NATIVE
def test_a_rival_that_hangs_does_not_keep_a_session_from_opening(
    scene: Scene, reference: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told when its first run takes too long, and the others serve."""
    monkeypatch.setattr("agent_sdk.journey.trial.FIRST_RUN_S", 1.0)
    monkeypatch.setattr("agent_sdk.engine.run.GRACE_S", 0.1)
    monkeypatch.setattr("agent_sdk.engine.executor.JOIN_S", 0.05)
    release = threading.Event()
    scene.by_id["c"].hook = lambda segment: release.wait(30)
    plans = {PLAN: dealt_plan(scene.model, ["a", "b"]), "c": whole_plan(scene.model, "c")}
    contenders = {
        name: Executor(build_program(plan, scene.model, scene.device.processors), scene.device)
        for name, plan in plans.items()
    }
    assert warm(contenders, scene.feeds)[1].keys() == {"c"}
    serving = prepared_of(contenders, {PLAN: 1.0, "c": 2.0})
    outputs, _ = serving.run(scene.feeds)
    for name, expected in reference(scene.model, scene.feeds).items():
        np.testing.assert_array_equal(outputs[name], expected)
    release.set()


@NATIVE
def test_a_closed_session_that_hangs_says_so(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing a session whose run hangs is an error, not a wait without end."""
    monkeypatch.setattr("agent_sdk.engine.run.GRACE_S", 0.2)
    monkeypatch.setattr("agent_sdk.engine.executor.JOIN_S", 0.05)
    release = threading.Event()
    scene.by_id["c"].hook = lambda segment: release.wait(30)
    with pytest.raises(RunTimeoutError):
        scene.executor.run(scene.feeds, timeout_s=1)
    with pytest.raises(ExecutionError, match="hangs"):
        scene.executor.close()
    release.set()

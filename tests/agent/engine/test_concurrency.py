"""Several sessions and several callers at once: legal, correct, exclusive, fair, and without deadlock."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise

import numpy as np
import pytest

from agent_sdk.cancel import Cancel
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.interrupt import DeferredInterrupts
from agent_sdk.engine.turn import Turn
from agent_sdk.engine.turns import Turns
from agent_sdk.errors import NotWantedError
from agent_sdk.model import Model
from agent_sdk.runtimes.base import Segment
from tests.agent.engine.conftest import Reference
from tests.agent.engine.generate import (
    chain_model,
    dealt_plan,
    random_inputs,
    random_legal_plan,
    random_model,
    whole_plan,
)
from tests.agent.engine.scene import NATIVE, Scene, held, until
from tests.agent.engine.simulated import Interval, SimulatedProcessor, four_processors

pytestmark = NATIVE

WATCHDOG_S = 60.0


def assert_exclusive(processors: list[SimulatedProcessor]) -> int:
    """No two intervals on a shared resource overlap; returns how many were compared."""
    compared = 0
    resources = {r for p in processors for r in p.spec.resources}
    for resource in resources:
        rows: list[Interval] = [i for p in processors if resource in p.spec.resources for i in p.log]
        rows.sort(key=lambda interval: interval.start)
        for before, after in pairwise(rows):
            assert before.end <= after.start, f"{before} and {after} overlap on {resource}"
            compared += 1
    return compared


def test_concurrent_sessions_exclude_each_other_and_are_right(reference: Reference) -> None:
    """Six callers over three sessions with plans of their own: right outputs, no shared resource used twice."""
    processors = four_processors()
    rng = random.Random(0)
    for processor in processors:
        processor.hook = lambda segment: time.sleep(0.0003)
    with Device(processors) as device:
        sessions: list[tuple[Model, Executor]] = []
        for _ in range(3):
            model = random_model(rng, 12)
            plan = random_legal_plan(model, processors, rng)
            sessions.append((model, Executor(build_program(plan, model, device.processors), device)))

        def call(caller: int) -> None:
            model, executor = sessions[caller % 3]
            for repeat in range(8):
                feeds = random_inputs(model, 100 * caller + repeat)
                outputs, _ = executor.run(feeds, timeout_s=WATCHDOG_S if repeat % 2 else None)
                for name, expected in reference(model, feeds).items():
                    np.testing.assert_array_equal(outputs[name], expected)

        with ThreadPoolExecutor(6) as pool:
            for future in [pool.submit(call, caller) for caller in range(6)]:
                future.result(WATCHDOG_S)
    assert assert_exclusive(processors) > 100


def test_concurrent_sessions_on_real_processors(device: Device, reference: Reference) -> None:
    """Cores and their gang under four callers and four sessions: every output bit-exact."""
    rng = random.Random(1)
    sessions = []
    for _ in range(4):
        model = random_model(rng, 15)
        plan = random_legal_plan(model, list(device.processors.values()), rng)
        feeds = random_inputs(model, 7)
        executor = Executor(build_program(plan, model, device.processors), device)
        sessions.append((executor, feeds, reference(model, feeds)))

    def call(caller: int) -> None:
        order = random.Random(caller)
        for _ in range(25):
            executor, feeds, expected = order.choice(sessions)
            outputs, _ = executor.run(feeds, timeout_s=WATCHDOG_S if order.random() < 0.5 else None)
            for name, want in expected.items():
                np.testing.assert_array_equal(outputs[name], want)

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(call, caller) for caller in range(4)]:
            future.result(WATCHDOG_S)


def test_runs_on_disjoint_resources_overlap() -> None:
    """One session per core: each waits inside its segment for the other, which works only if both run at once."""
    meeting = threading.Barrier(2, timeout=30)

    def meet(segment: Segment) -> None:
        meeting.wait()

    processors = [SimulatedProcessor("a", ("x",), meet), SimulatedProcessor("b", ("y",), meet)]
    model = random_model(random.Random(2), 5)
    feeds = random_inputs(model, 0)
    with Device(processors) as device:
        sessions = [
            Executor(build_program(whole_plan(model, name), model, device.processors), device) for name in ("a", "b")
        ]
        with ThreadPoolExecutor(2) as pool:
            for future in [pool.submit(session.run, feeds) for session in sessions]:
                future.result(30)


def test_a_divided_processor_computes_several_runs_at_once(reference: Reference) -> None:
    """As many as it says and no more, each answer right; who holds all of it is alone; runs know whether they were."""
    meeting, now, most = threading.Barrier(2), 0, 0
    lock = threading.Lock()

    def at_work(_: Segment) -> None:
        nonlocal now, most
        with lock:
            now, most = now + 1, max(most, now + 1)
        meeting.wait(WATCHDOG_S)  # nobody gets on whom nobody joins
        with lock:
            now -= 1

    processor = SimulatedProcessor("x", ("x",))
    processor.at_once = 2
    model = chain_model(1)
    with Device([processor]) as device:
        program = build_program(whole_plan(model, processor.id), model, device.processors)
        with Executor(program, device, in_flight=4) as executor:
            feeds = [random_inputs(model, seed) for seed in range(4)]
            assert executor.run(feeds[0])[1].alone
            processor.hook = at_work
            with ThreadPoolExecutor(4) as threads:
                found = list(threads.map(executor.run, feeds))
            processor.hook = None
            assert most == 2
            assert not all(trace.alone for _, trace in found)
            for (outputs, _), feed in zip(found, feeds, strict=True):
                for name, right in reference(model, feed).items():
                    np.testing.assert_array_equal(outputs[name], right)
            with ThreadPoolExecutor(1) as threads:
                with device.held(processor):
                    waiting = threads.submit(executor.run, feeds[0])
                    until(lambda: device.arbiter.waiting == 1)
                assert not waiting.result()[1].alone


@pytest.mark.parametrize("watched", [False, True])
def test_a_core_that_a_run_no_longer_needs_is_passed_on(watched: bool) -> None:
    """While a run still computes on one core, the next one gets the core it is done with, also the caller's own."""
    model = random_model(random.Random(2), 8)
    feeds = random_inputs(model, 0)
    passed_on = threading.Event()
    ended: list[bool] = []
    processors = [
        SimulatedProcessor("a", ("x",)),
        SimulatedProcessor("b", ("y",), lambda segment: ended.append(passed_on.wait(30))),
    ]
    with Device(processors) as device:
        plans = (dealt_plan(model, ["a", *["b"] * len(model.graph.ops)]), whole_plan(model, "a"))
        first, second = (Executor(build_program(plan, model, device.processors), device) for plan in plans)

        def follow() -> None:
            second.run(feeds)
            passed_on.set()

        follower = threading.Thread(target=follow)

        def call_the_next(segment: Segment) -> None:
            processors[0].hook = None
            follower.start()
            until(lambda: device.arbiter.waiting)

        processors[0].hook = call_the_next
        first.run(feeds, timeout_s=WATCHDOG_S if watched else None)
        follower.join(30)
    assert ended
    assert all(ended)


def test_runs_are_served_in_the_order_of_their_calls() -> None:
    """Sessions that want the same resource get it first come, first served."""
    go = threading.Event()
    served: list[str] = []
    names: dict[int, str] = {}

    def note(segment: Segment) -> None:
        go.wait(30)
        served.append(names[id(segment.model)])

    processor = SimulatedProcessor("a", ("x",), note)
    with Device([processor]) as device:
        threads = []
        for index in range(6):
            model = random_model(random.Random(2), 5)
            names[id(model)] = str(index)
            executor = Executor(build_program(whole_plan(model, "a"), model, device.processors), device)
            threads.append(threading.Thread(target=executor.run, args=(random_inputs(model, 0),)))
            threads[-1].start()
            until(lambda index=index: "x" in device.arbiter.busy and device.arbiter.waiting == index)
        go.set()
        for thread in threads:
            thread.join(30)
    assert served == [str(index) for index in range(6)]


@pytest.mark.parametrize("alone", [True, False])
def test_a_run_says_how_long_others_held_it_up(alone: bool, scene: Scene) -> None:
    """On one lane and on several: what took long for that reason says nothing about the plan."""
    plan = whole_plan(scene.model, "c") if alone else dealt_plan(scene.model, list(scene.by_id), seed=5)
    executor = Executor(build_program(plan, scene.model, scene.device.processors), scene.device)
    executor.run(scene.feeds)
    with ThreadPoolExecutor(1) as others, ExitStack() as occupied:
        for resource in "xyz":
            occupied.enter_context(held(scene.device, resource))
        asked = time.perf_counter_ns()
        begun = others.submit(executor.run, scene.feeds)
        until(lambda: scene.device.arbiter.waiting)
        time.sleep(0.1)
        occupied.close()
        trace = begun.result(30)[1]
        took_us = (time.perf_counter_ns() - asked) / 1e3
    assert trace.waited_us >= 100_000
    assert trace.total_us <= took_us
    assert executor.run(scene.feeds)[1].waited_us == 0


def test_lanes_of_one_run_that_wait_for_one_another_leave_it_alone() -> None:
    """What both take is kept over a border where nobody wants it: the other lane may come before it is left."""
    model = chain_model(40)
    processors = [SimulatedProcessor(name, (name, "z")) for name in "ab"]
    with Device(processors) as device:
        plan = dealt_plan(model, ["a", "b"])
        with Executor(build_program(plan, model, device.processors), device) as executor:
            feeds = random_inputs(model, 0)
            assert all(executor.run(feeds, timeout_s=WATCHDOG_S)[1].alone for _ in range(20))


def test_a_cancel_that_comes_late_ends_no_other_run(scene: Scene) -> None:
    """Who cancels a run may still be on the way to its flight when the next run has that."""
    cancel, late = Cancel(), []
    scene.by_id["a"].hook = lambda segment: late.extend(step.stop for step in cancel._steps)
    scene.executor.run(scene.feeds, turn=Turn(cancel=cancel))
    assert late
    scene.by_id["a"].hook = lambda segment: [stop() for stop in late]
    scene.executor.run(scene.feeds)


@pytest.mark.parametrize("alone", [True, False])
def test_a_run_that_was_cancelled_before_it_began_does_not_begin(alone: bool, scene: Scene) -> None:
    """On one lane and on several: it may have waited long for its flight, and nobody wants it by then."""
    plan = whole_plan(scene.model, "c") if alone else dealt_plan(scene.model, list(scene.by_id), seed=5)
    cancel = Cancel()
    cancel.cancel()
    with Executor(build_program(plan, scene.model, scene.device.processors), scene.device) as executor:
        with pytest.raises(NotWantedError):
            executor.run(scene.feeds, turn=Turn(cancel=cancel))
        assert not any(processor.log for processor in scene.processors)
        executor.run(scene.feeds)


def test_no_wake_up_is_lost() -> None:
    """Two lanes that hand over to each other at every op, awake or after such a while that the other one sleeps."""
    model = chain_model(400)
    processors = [SimulatedProcessor("a", ("x",)), SimulatedProcessor("b", ("y",))]
    rng = random.Random(0)
    for processor in processors:
        processor.hook = lambda segment: time.sleep(0.003) if rng.random() < 0.02 else None
    feeds = random_inputs(model, 0)
    with Device(processors) as device:
        plan = dealt_plan(model, ["a", "b"])
        with Executor(build_program(plan, model, device.processors), device) as executor:
            assert len(executor.program.segments) == 400
            for _ in range(3):
                executor.run(feeds, timeout_s=WATCHDOG_S)


def test_turns_are_passed_on_in_order_and_can_be_given_up() -> None:
    """First come, first served, with two to lend; whoever stops waiting is skipped."""
    turns = Turns("ab")
    order: list[int] = []
    held_now = [turns.take(DeferredInterrupts()) for _ in range(2)]
    assert sorted(map(str, held_now)) == ["a", "b"]
    assert turns.take(DeferredInterrupts(), 0) is None
    threads = []
    for index in range(5):
        timeout = 0.01 if index == 2 else 30

        def take(index: int = index, timeout: float = timeout) -> None:
            if item := turns.take(DeferredInterrupts(), timeout):
                order.append(index)
                turns.give(item)

        threads.append(threading.Thread(target=take))
        threads[-1].start()
        if index == 2:
            threads[-1].join(30)
        until(lambda expected=index + 1 if index < 2 else index: turns.waiting == expected)
    turns.give("a")
    for thread in threads:
        thread.join(30)
    assert order == [0, 1, 3, 4]


def test_a_turn_that_arrives_with_ctrl_c_is_passed_on() -> None:
    """Whoever is interrupted at the moment at which the turn becomes theirs leaves it to the next one."""
    turns = Turns("a")

    class Late(DeferredInterrupts):
        def listen(self) -> None:
            turns.give("a")
            raise KeyboardInterrupt

    assert turns.take(DeferredInterrupts())
    with pytest.raises(KeyboardInterrupt):
        turns.take(Late())
    assert turns.take(DeferredInterrupts(), 0)

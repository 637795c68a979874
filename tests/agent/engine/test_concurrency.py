"""Several sessions and several callers at once: legal, correct, exclusive, fair, and without deadlock."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.device import Ticket
from agent_sdk.engine.interrupt import DeferredInterrupts
from agent_sdk.engine.wait import Turn
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
from tests.agent.engine.scene import Scene, held
from tests.agent.engine.simulated import Interval, SimulatedProcessor, four_processors

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
            while len(device._queues["x"]) < 2:
                time.sleep(0.001)

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
            while len(device._queues["x"]) <= index:
                time.sleep(0.001)
        go.set()
        for thread in threads:
            thread.join(30)
    assert served == [str(index) for index in range(6)]


def test_the_arbiter_never_grants_a_resource_twice() -> None:
    """Random tickets from several threads: exclusion, arrival order per resource, and everybody is served."""
    processors = [SimulatedProcessor(f"p{i}", (f"r{i}",)) for i in range(4)]
    device = Device(processors)
    holder: dict[str, Ticket | None] = {f"r{i}": None for i in range(4)}
    served = []

    def use(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            lanes = [tuple(rng.sample(sorted(holder), rng.randint(1, 3))) for _ in range(rng.randint(1, 3))]
            started = [threading.Event() for _ in lanes]
            ticket = Ticket(lanes)
            ticket.start += [event.set for event in started]
            for lane in device.enter(ticket):
                started[lane].set()
            for lane, event in rng.sample(list(enumerate(started)), len(lanes)):
                assert event.wait(30)
                for resource in lanes[lane]:
                    assert holder[resource] in (None, ticket)
                    holder[resource] = ticket
            for lane in rng.sample(range(len(lanes)), len(lanes)):
                kept = {r for other, held in enumerate(ticket.resources) if held and other != lane for r in held}
                for resource in set(lanes[lane]) - kept:
                    holder[resource] = None
                device.leave(ticket, lane)
            served.append(ticket)

    with ThreadPoolExecutor(5) as pool:
        for future in [pool.submit(use, seed) for seed in range(5)]:
            future.result(60)
    assert len(served) == 300
    assert all(not queue for queue in device._queues.values())


def test_who_withdraws_lets_the_next_one_start() -> None:
    """A run that gives up waiting for two resources stands in nobody's way on the one that was free."""
    device = Device([SimulatedProcessor("p", ("x", "z"))])
    started: list[str] = []
    first, second, third = tickets = [Ticket([resources]) for resources in (("z",), ("x", "z"), ("x",))]
    for ticket, name in zip(tickets, ("first", "second", "third"), strict=True):
        ticket.start.append(partial(started.append, name))
    assert [device.enter(ticket) for ticket in (first, second, third)] == [[0], [], []]
    assert not started
    assert device.withdraw(second) == []
    assert started == ["third"]
    assert device.withdraw(first) == [0]
    assert not device.leave(first, 0)
    assert not device.leave(third, 0)
    assert all(not queue for queue in device._queues.values())


@pytest.mark.parametrize("alone", [True, False])
def test_a_run_says_how_long_it_was_queued(alone: bool, scene: Scene) -> None:
    """What it waited for other work is not part of what it took, on one lane and on several."""
    plan = whole_plan(scene.model, "c") if alone else dealt_plan(scene.model, list(scene.by_id), seed=5)
    executor = Executor(build_program(plan, scene.model, scene.device.processors), scene.device)
    executor.run(scene.feeds)
    with ExitStack() as occupied:
        for resource in "xyz":
            occupied.enter_context(held(scene.device, resource))
        timer = threading.Timer(0.2, occupied.pop_all().close)
        asked = time.perf_counter_ns()
        timer.start()
        trace = executor.run(scene.feeds)[1]
        took_us = (time.perf_counter_ns() - asked) / 1e3
    assert trace.queued_us > 100_000
    assert trace.total_us <= took_us - trace.queued_us


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


def test_a_turn_is_passed_on_in_order_and_can_be_given_up() -> None:
    """First come, first served; whoever stops waiting is skipped."""
    turn = Turn()
    order: list[int] = []
    calm = DeferredInterrupts()
    assert turn.acquire(calm)
    threads = []
    for index in range(5):
        timeout = 0.01 if index == 2 else 30

        def take(index: int = index, timeout: float = timeout) -> None:
            if turn.acquire(DeferredInterrupts(), timeout):
                order.append(index)
                turn.release()

        threads.append(threading.Thread(target=take))
        threads[-1].start()
        if index == 2:
            threads[-1].join(30)
        expected = index + 1 if index < 2 else index
        while len(turn._queue) < expected:
            time.sleep(0.001)
    turn.release()
    for thread in threads:
        thread.join(30)
    assert order == [0, 1, 3, 4]


def test_a_turn_that_arrives_with_ctrl_c_is_passed_on() -> None:
    """Whoever is interrupted at the moment at which the turn becomes theirs leaves it to the next one."""
    turn = Turn()

    class Late(DeferredInterrupts):
        def listen(self) -> None:
            turn.release()
            raise KeyboardInterrupt

    assert turn.acquire(DeferredInterrupts())
    with pytest.raises(KeyboardInterrupt):
        turn.acquire(Late())
    assert turn.acquire(DeferredInterrupts(), 0)

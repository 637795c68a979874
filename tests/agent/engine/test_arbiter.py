"""Who holds a core, and when: exclusive, in the order of keys, and nobody waits for ever."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise

import numpy as np
import pytest

from agent_sdk import native
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.arbiter import Arbiter
from agent_sdk.engine.turn import Turn
from agent_sdk.errors import DeviceClosedError, InputError, RunTimeoutError
from agent_sdk.runtimes.base import Segment
from tests import CAMPAIGN
from tests.agent.engine.conftest import Reference
from tests.agent.engine.generate import chain_model, dealt_plan, random_inputs, random_model
from tests.agent.engine.scene import NATIVE, Scene, until
from tests.agent.engine.simulated import SimulatedProcessor

pytestmark = NATIVE

ROUNDS = 3000 if CAMPAIGN else 60


@pytest.fixture
def arbiter() -> Arbiter:
    """Of a device that nobody else uses."""
    return Arbiter(native.library())


@contextmanager
def asking(arbiter: Arbiter, served: list[str], **claims: tuple[str, int]) -> Iterator[None]:
    """Claims that wait one after the other while the body runs: a name, its resources and its key each."""
    threads = []

    def ask(name: str, resources: str, key: int) -> None:
        with arbiter.held(resources, key=key, timeout_s=20):
            served.append(name)

    for count, (name, (resources, key)) in enumerate(claims.items(), 1):
        threads.append(threading.Thread(target=ask, args=(name, resources, key)))
        threads[-1].start()
        until(lambda count=count: arbiter.waiting == count)
    yield
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_threads_that_name_a_resource_first_mean_the_same() -> None:
    """Programs are compiled by several threads: what one of them holds the others are kept from."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(60):
            arbiter, barrier = Arbiter(native.library()), threading.Barrier(4)

            def masks(arbiter: Arbiter = arbiter, barrier: threading.Barrier = barrier) -> tuple[int, ...]:
                barrier.wait()
                return tuple(arbiter.mask([f"r{index}"]) for index in range(40))

            with ThreadPoolExecutor(4) as pool:
                [found] = {thread.result() for thread in [pool.submit(masks) for _ in range(4)]}
            assert len({*found}) == len(found)
    finally:
        sys.setswitchinterval(before)


def test_a_resource_is_never_granted_twice_and_everybody_is_served(arbiter: Arbiter) -> None:
    """Random sets of resources and keys from several threads, some of which give up."""
    holder: dict[str, int | None] = dict.fromkeys("abcd")

    def use(caller: int) -> int:
        rng = random.Random(caller)
        served = 0
        for _ in range(ROUNDS):
            wanted = rng.sample("abcd", rng.randint(1, 4))
            try:
                with arbiter.held(wanted, key=rng.randint(0, 9), timeout_s=rng.choice((0.0, 0.001, 20, 20))):
                    assert [holder[one] for one in wanted] == [None] * len(wanted)
                    holder.update(dict.fromkeys(wanted, caller))
                    time.sleep(0)
                    holder.update(dict.fromkeys(wanted))
                    served += 1
            except RunTimeoutError:
                pass
        return served

    with ThreadPoolExecutor(6) as pool:
        served = [future.result(60) for future in [pool.submit(use, caller) for caller in range(6)]]
    assert min(served) >= ROUNDS // 4
    assert arbiter.busy == ()
    assert arbiter.waiting == 0


def test_the_smallest_key_goes_first_and_equal_ones_in_the_order_of_arrival(arbiter: Arbiter) -> None:
    """Whoever came first."""
    served: list[str] = []
    with ExitStack() as held:
        held.enter_context(arbiter.held("x"))
        with asking(arbiter, served, late=("x", 7), first=("x", 5), second=("x", 5), urgent=("x", -1)):
            held.close()
    assert served == ["urgent", "first", "second", "late"]


def test_what_does_not_fit_reserves_what_it_needs(arbiter: Arbiter) -> None:
    """A gang is not starved by single cores that come later; who wants nothing of that passes."""
    served: list[str] = []
    with ExitStack() as held:
        held.enter_context(arbiter.held("x"))
        with asking(arbiter, served, gang=("xy", 1)):
            with pytest.raises(RunTimeoutError), arbiter.held("y", key=2, timeout_s=0.01):
                pass
            with arbiter.held("z", key=2, timeout_s=0):
                pass
            with arbiter.held("y", key=0, timeout_s=0):
                pass
            held.close()
    assert served == ["gang"]


def test_who_gives_up_lets_those_behind_in(arbiter: Arbiter) -> None:
    """A wait that ends takes its reservation with it."""
    served: list[str] = []
    with arbiter.held("x"):

        def give_up() -> None:
            with suppress(RunTimeoutError), arbiter.held("xy", key=1, timeout_s=0.2):
                served.append("gang")

        gang = threading.Thread(target=give_up)
        gang.start()
        until(lambda: arbiter.waiting or not gang.is_alive())
        with arbiter.held("y", key=2, timeout_s=20):
            served.append("behind")
        gang.join(20)
    assert served == ["behind"]
    assert arbiter.waiting == 0


def test_closing_turns_away_who_waits_and_who_comes(arbiter: Arbiter) -> None:
    """With the reason."""
    told: list[str] = []

    def ask() -> None:
        with pytest.raises(DeviceClosedError) as raised, arbiter.held("x"):
            pass
        told.append(str(raised.value))

    with arbiter.held("x"):
        waiting = threading.Thread(target=ask)
        waiting.start()
        until(lambda: arbiter.waiting)
        arbiter.close()
        waiting.join(20)
    ask()
    assert told == ["the device is closed; open a new one"] * 2


@pytest.mark.parametrize("key", [2**62, -(2**62) - 1, 1.5, True])
def test_a_key_that_the_arbiter_cannot_hold_is_refused(key: int, scene: Scene) -> None:
    """Before anything runs."""
    with pytest.raises(InputError, match="a key is"):
        scene.executor.run(scene.feeds, turn=Turn(key))


@pytest.mark.parametrize("count", [0, -1, 1000])
def test_runs_in_flight_are_bounded(count: int, scene: Scene) -> None:
    """Each takes memory of its own, which the refusal says."""
    with pytest.raises(InputError, match=f"in_flight is {count}; from 1 to 64 .* each in buffers of its own"):
        Executor(scene.executor.program, scene.device, in_flight=count)


def test_an_urgent_run_takes_a_core_at_the_next_border() -> None:
    """The run at work goes on behind it; one that is less urgent waits until that has ended."""
    model, short = chain_model(40), random_model(random.Random(2), 5)
    log: list[str] = []
    names: dict[int, str] = {}
    at_work, go = threading.Event(), threading.Event()

    def note(segment: Segment) -> None:
        name = names[id(segment.model)]
        if name == "long" and not at_work.is_set():
            at_work.set()
            go.wait(20)
        log.append(name)

    processors = [SimulatedProcessor("a", ("x",), note), SimulatedProcessor("b", ("x",), note)]
    feeds = random_inputs(model, 0)
    with Device(processors) as device, ThreadPoolExecutor(3) as pool:
        long = Executor(build_program(dealt_plan(model, ["a", "b"]), model, device.processors), device)
        assert len(long.program.segments) == 40
        names[id(model)] = "long"
        runs = [pool.submit(long.run, feeds, turn=Turn(10))]
        assert at_work.wait(20)
        for name, key in (("later", 20), ("urgent", 1)):
            other = random_model(random.Random(2), 5)
            names[id(other)] = name
            session = Executor(build_program(dealt_plan(other, ["a"]), other, device.processors), device)
            runs.append(pool.submit(session.run, random_inputs(short, 0), turn=Turn(key)))
            until(lambda: device.arbiter.waiting == len(runs) - 1)
        go.set()
        for run in runs:
            run.result(30)
    assert log.index("urgent") == 1
    assert log.count("long") == 40
    assert log[-1] == "later"
    assert "long" not in log[log.index("later") :]


def test_keys_belong_to_segments() -> None:
    """What a segment adds to its run's key decides between two runs at each border."""
    model = chain_model(6)
    log: list[int] = []
    who: dict[int, int] = {}
    gate = threading.Event()

    def note(segment: Segment) -> None:
        gate.wait(20)
        log.append(who[threading.get_ident()])

    processors = [SimulatedProcessor("a", ("x",), note), SimulatedProcessor("b", ("x",), note)]
    feeds = random_inputs(model, 0)
    with Device(processors) as device, ThreadPoolExecutor(2) as pool:
        program = build_program(dealt_plan(model, ["a", "b"]), model, device.processors)
        vars(program)["starts_ns"] = (np.arange(0, 20, 2, dtype=np.int64),)
        executor = Executor(program, device, in_flight=2)

        def run(number: int) -> None:
            who[threading.get_ident()] = number
            executor.run(feeds, turn=Turn(number, by_start=True))

        runs = [pool.submit(run, number) for number in (0, 1)]
        until(lambda: device.arbiter.waiting == 1)
        gate.set()
        for one in runs:
            one.result(30)
    in_turn = sum(here != after for here, after in pairwise(log))
    assert in_turn >= len(log) - 2


def test_several_runs_of_one_session_are_in_flight(reference: Reference) -> None:
    """One waits inside a segment until the other one has begun, and both are right."""
    begun, model = threading.Semaphore(0), random_model(random.Random(2), 8)
    processors = [
        SimulatedProcessor("a", ("x",), lambda segment: begun.release()),
        SimulatedProcessor("b", ("y",)),
    ]
    with Device(processors) as device, ThreadPoolExecutor(2) as pool:
        plan = dealt_plan(model, ["a", *["b"] * len(model.graph.ops)])
        executor = Executor(build_program(plan, model, device.processors), device, in_flight=2)
        segments = sum(segment.processor == "a" for segment in executor.program.segments)

        def wait_for_both(segment: Segment) -> None:
            processors[1].hook = None
            assert all(begun.acquire(timeout=20) for _ in range(segments + 1))

        processors[1].hook = wait_for_both
        drawn = [random_inputs(model, seed) for seed in range(2)]
        for feeds, call in [(feeds, pool.submit(executor.run, feeds)) for feeds in drawn]:
            outputs = call.result(30)[0]
            for name, expected in reference(model, feeds).items():
                np.testing.assert_array_equal(outputs[name], expected)

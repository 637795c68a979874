"""The stress test: random legal plans over random graphs and real networks, on one to four mixed processors.

`make campaign` runs 10 000 of them, `make test` a sample. Each plan is held
against two oracles: the whole model run by ONNX Runtime on one thread, and the plan's own segments run one after
another on memory that nothing else touches. The second shares no buffers, threads or waits with the engine, so it must
agree to the last bit whatever the runtimes are. Each plan runs four times, two at once, with keys of all kinds.
"""

from __future__ import annotations

import ctypes
import gc
import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import cache

import numpy as np
import psutil
import pytest

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.program import memory_of
from agent_sdk.engine.turn import Turn
from agent_sdk.model import Model, read_model
from agent_sdk.native import LANES_VARIABLE
from agent_sdk.runtimes.alone import bound
from agent_sdk.runtimes.base import Buffer, Processor, segment_of
from agent_sdk.runtimes.offered import discover
from hope_schema import HOST, merge
from tests import CAMPAIGN
from tests.agent.engine.conftest import Reference
from tests.agent.engine.generate import carried, random_inputs, random_legal_plan, random_model
from tests.agent.engine.simulated import SimulatedProcessor
from tests.agent.runtimes.blocks import blocked, plain
from tests.agent.runtimes.networks import run_once

PLANS, BLOCK = (10_000, 250) if CAMPAIGN else (12, 6)
REAL_EVERY = 50 if CAMPAIGN else 12
"""One plan in so many is of a real network."""
REAL = ("squeezenet", "inception_v1", "shufflenet", "lstm", "inception_v2", "nasnet_mobile", "densenet121")
SETTLED_AFTER = 2_000 // BLOCK
"""Blocks after which memory has settled: OpenVINO keeps compiled kernels, up to a number, for ever."""
LEAK_BYTES = 64 * 2**20
ACROSS_RUNTIMES = 1e-4


@pytest.fixture(autouse=True)
def lanes(first: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every other block of plans runs in lanes outside the interpreter, every other in sequence."""
    way = ("native", "sequence")[first // BLOCK % 2]
    monkeypatch.setenv(LANES_VARIABLE, way)
    return way


@pytest.fixture(scope="module")
def watchdog_s(pytestconfig: pytest.Config) -> float:
    """Less than a test may take, which is longer under an emulator."""
    return 0.8 * float(pytestconfig.getoption("timeout") or pytestconfig.getini("timeout"))


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> list[Processor]:
    """The real processors of this machine: single cores and gangs of every runtime installed."""
    return discover(cache=tmp_path_factory.mktemp("frozen"))


@pytest.fixture(scope="module")
def resident(pool: list[Processor]) -> list[int]:
    """Resident bytes after each block of plans.

    OpenVINO keeps two threads for ever for every network that was compiled beside others. No plan compiles more than
    one per super-op, so in the campaign that many are compiled at once before anything is counted.
    """
    if CAMPAIGN:
        largest = max((real_model(name) for name in REAL), key=lambda model: len(merge(model.graph)))
        for processor in {p.spec.kind: p for p in pool if p.spec.runtime == "ov"}.values():
            with ExitStack() as opened:
                for super_op in merge(largest.graph):
                    executable = opened.enter_context(closing(processor.compile(segment_of(super_op, largest))))
                    bound(executable)()
    return []


def live_bytes() -> int:
    """Resident bytes, without what the allocator keeps of memory that was freed."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    return int(psutil.Process().memory_info().rss)


@cache
def real_model(name: str) -> Model:
    """A network of the zoo, read once."""
    return read_model(name)


def case(seed: int, pool: list[Processor]) -> tuple[Model, list[Processor]]:
    """A model and one to four processors, among them perhaps one that shares no memory with the others."""
    rng = random.Random(seed)
    model = random_model(rng, rng.randint(1, 30))
    if seed % REAL_EVERY == REAL_EVERY - 1:
        model = real_model(REAL[seed // REAL_EVERY % len(REAL)])
    candidates = [*pool, SimulatedProcessor("apart", ("elsewhere",))]
    return model, rng.sample(candidates, rng.randint(1, min(4, len(candidates))))


def one_after_another(executor: Executor, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a program whose segments run in order, in one thread, every tensor in memory of its own.

    What moves between places is not the engine's: it is brought to the plain layout on the host, and from there.
    """
    program = executor.program
    made: dict[tuple[str, str], Buffer] = {(name, HOST): feed.copy() for name, feed in feeds.items()}
    home: dict[str, str] = dict.fromkeys(feeds, HOST)

    def on_host(name: str) -> np.ndarray:
        """What was made, plain."""
        place, maker = home[name], program.home[name]
        array = program.places[memory_of(place)].to_host(made[name, place]) if maker != HOST else made[name, place]
        in_blocks = place != memory_of(place) and program.processors[maker].block(program.model, name) > 1
        return plain(array, program.graph.tensor[name].shape[1]) if in_blocks else array.copy()

    for segment, executable in zip(program.segments, executor.executables, strict=True):
        here = program.processors[segment.processor].place
        read = {}
        for name in segment.segment.inputs:
            place = program.place_of(segment, name)
            if place == home[name]:
                read[name] = made[name, place]
            elif place == here.memory:
                read[name] = here.from_host(on_host(name))
            else:
                read[name] = blocked(on_host(name))
        for name, buffer in run_once(executable, read).items():
            home[name] = program.place_of(segment, name)
            made[name, home[name]] = buffer
    return {name: on_host(name) for name in program.model.held}


@pytest.mark.parametrize("first", range(0, PLANS, BLOCK))
def test_random_legal_plans(
    first: int, pool: list[Processor], resident: list[int], reference: Reference, watchdog_s: float
) -> None:
    """Right bits, no deadlock within the watchdog's time, and memory that does not grow."""
    for seed in range(first, first + BLOCK):
        model, chosen = case(seed, pool)
        real = model.graph.name in REAL
        one_runtime = all(processor.spec.runtime in ("ort", "sim") for processor in chosen)
        with Device(chosen) as device:
            rng = random.Random(seed)
            plan = random_legal_plan(model, chosen, rng)
            if seed % 2:
                plan = carried(plan, model, chosen, rng, ["copier"])
            with (
                Executor(build_program(plan, model, device.processors), device, in_flight=2) as executor,
                ThreadPoolExecutor(3) as callers,
            ):
                drawn = [random_inputs(model, turn if real else 2 * seed + turn) for turn in range(2)]
                right = [(reference(model, feeds), one_after_another(executor, feeds)) for feeds in drawn]
                keys = random.Random(seed)
                asked = [
                    callers.submit(
                        executor.run, drawn[turn % 2], timeout_s=limit_s, turn=Turn(keys.choice((None, 0, turn)))
                    )
                    for turn, limit_s in enumerate((None, watchdog_s, None, watchdog_s))
                ]
                for turn, call in enumerate(asked):
                    whole, alone = right[turn % 2]
                    outputs, _ = call.result(watchdog_s)
                    for name, expected in alone.items():
                        np.testing.assert_array_equal(outputs[name], expected, err_msg=f"plan {seed}: {name}")
                    for name, expected in whole.items():
                        if one_runtime and not real:
                            np.testing.assert_array_equal(outputs[name], expected, err_msg=f"plan {seed}: {name}")
                        # Cutting a real network moves the borders of the runtime's fusions, and so the last bits.
                        off, scale = np.abs(outputs[name] - expected).max(), np.abs(expected).max()
                        assert off <= ACROSS_RUNTIMES * scale, f"plan {seed}: {name} is off by {off} of {scale}"
    resident.append(live_bytes())
    if len(resident) > SETTLED_AFTER:
        assert resident[-1] < resident[SETTLED_AFTER - 1] + LEAK_BYTES

"""A memory whose own device carries tensors from and to the host, beside lanes that go on."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agent_sdk.engine import Copy, Device, Executor, build_program
from agent_sdk.errors import ProcessorError, ProcessorLost, SegmentFailedError
from agent_sdk.measure.moves import channels
from agent_sdk.model import Model
from agent_sdk.native import address
from agent_sdk.runtimes.base import Bound, NativeCall
from agent_sdk.runtimes.offered import discover
from hope_schema import HOST, Channel, Plan, TensorType, Transfer
from tests.agent.engine.conftest import Reference
from tests.agent.engine.generate import dealt_plan, random_inputs, random_model
from tests.agent.engine.simulated import Box, SimulatedPlace, SimulatedProcessor
from tests.agent.engine.test_executor import sane

PENDING = 600


class EngineCopy(Bound):
    """A copy that is begun by one call, and asked for by others until it is done."""

    def __init__(self, source: np.ndarray, target: np.ndarray, place: EnginePlace) -> None:
        self.source, self.target, self.place = source, target, place
        self.left = 0
        self.keep = [ctypes.CFUNCTYPE(ctypes.c_int)(call) for call in (self.begin, self.ask)]
        begin, ask = (address(function) for function in self.keep)
        self.native = (NativeCall(begin, ()), NativeCall(ask, (), again=PENDING))

    def begin(self) -> int:
        """Three questions too early."""
        self.left = 3
        return 0

    def ask(self) -> int:
        """Not yet, or the status."""
        if self.left:
            self.left -= 1
            return PENDING
        if self.place.broken:
            return 700
        np.copyto(self.target, self.source, casting="no")
        self.place.carried += 1
        return 0

    def __call__(self) -> None:
        """All of it."""
        self.begin()
        while (status := self.ask()) == PENDING:
            pass
        if status:
            raise self.failure(1, status)

    def failure(self, place: int, status: int) -> ProcessorError:
        """Which call said what."""
        return ProcessorLost(f"call {place} of an engine said {status}")


class EnginePlace(SimulatedPlace):
    """A memory with engines, which reach only arrays that it has made itself."""

    broken = False
    carried = 0

    def host_array(self, kind: TensorType) -> np.ndarray:
        """An array that the engines reach."""
        array = np.full(kind.elements, np.nan, kind.dtype).reshape(kind.shape)
        self.reached = [*getattr(self, "reached", []), array]
        return array

    def _reaches(self, array: np.ndarray) -> bool:
        return any(np.shares_memory(array, own) for own in getattr(self, "reached", []))

    def copy_in(self, array: np.ndarray, into: Box) -> Bound | None:
        """By an engine, if it reaches the array."""
        return EngineCopy(array, into.array, self) if self._reaches(array) else None

    def copy_out(self, buffer: Box, array: np.ndarray) -> Bound | None:
        """By an engine, if it reaches the array."""
        return EngineCopy(buffer.array, array, self) if self._reaches(array) else None


class EngineProcessor(SimulatedProcessor):
    """Computes in a memory with engines; somebody on core 0 sets them to work."""

    copy_engines = ("dev-in", "dev-out")
    caller_cores = frozenset({0})

    def __init__(self) -> None:
        super().__init__("dev", ("chip",))
        self.place = EnginePlace(self)


@pytest.fixture
def device(frozen: Path) -> Iterator[Device]:
    """A core, and a device beside it."""
    with Device([*discover("ort@0", cache=frozen), EngineProcessor()]) as opened:
        yield opened


def carried(plan: Plan, model: Model, device: Device) -> Plan:
    """The plan with every tensor that another processor reads carried by an engine."""
    at = {op: device.processors[step.processor].place.name for step in plan.steps for op in step.ops}
    moves = {}
    for op, here in at.items():
        for name in model.graph.op[op].inputs:
            source = at.get(model.graph.producer.get(name, ""), HOST)
            over = "dev-in" if here == "dev" else "dev-out"
            if source != here:
                moves[name, here] = Transfer(
                    tensor=name, source=source, target=here, over=over, start_us=0, finish_us=0
                )
    return plan.model_copy(update={"transfers": tuple(moves.values())})


@pytest.mark.parametrize("seed", range(6))
def test_engines_carry_what_lanes_need(seed: int, device: Device, reference: Reference) -> None:
    """Every tensor between the two goes by an engine's own calls, from and to arrays that it reaches, and is right."""
    model = random_model(random.Random(seed), 16)
    program = build_program(carried(dealt_plan(model, ["ort@0", "dev"]), model, device), model, device.processors)
    moves = [work.move for work in program.work if isinstance(work, Copy) and not work.move.changes_layout]
    place = device.processors["dev"].place
    assert isinstance(place, EnginePlace)
    assert moves
    with Executor(program, device) as executor:
        for repeat in range(1, 3):
            feeds = random_inputs(model, repeat)
            outputs, trace = executor.run(feeds)
            for name, expected in reference(model, feeds).items():
                np.testing.assert_allclose(outputs[name], expected, rtol=1e-5, atol=1e-6)
            sane(executor, trace)
            assert place.carried == repeat * len(moves)
            assert {span.lane for span in trace.spans if span.kind == "transfer"} <= {"dev-in", "dev-out"}


def test_engines_are_served_on_their_processors_cores(device: Device) -> None:
    """Whoever sets a copy engine to work must not run where others compute."""
    model = random_model(random.Random(1), 16)
    program = build_program(carried(dealt_plan(model, ["ort@0", "dev"]), model, device), model, device.processors)
    seats = dict(zip(program.lanes, program.seats, strict=True))
    assert {seats[name] for name in ("dev-in", "dev-out") if name in seats} == {frozenset({0})}


def test_an_engine_that_fails_ends_the_run_with_one_error(device: Device, reference: Reference) -> None:
    """It says what was copied where, and what the device said of it; the next run works."""
    model = random_model(random.Random(2), 16)
    program = build_program(carried(dealt_plan(model, ["ort@0", "dev"]), model, device), model, device.processors)
    place = device.processors["dev"].place
    assert isinstance(place, EnginePlace)
    feeds = random_inputs(model, 0)
    with Executor(program, device) as executor:
        place.broken = True
        with pytest.raises(SegmentFailedError, match=r"^copying .* failed: .*call 1 of an engine said 700"):
            executor.run(feeds)
        place.broken = False
        outputs, _ = executor.run(feeds)
    for name, expected in reference(model, feeds).items():
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-5, atol=1e-6)


def test_engines_are_told_to_the_planner(device: Device) -> None:
    """A channel to and from every other place, and the host, each kept busy by the engine of its direction."""
    assert set(channels(list(device.processors.values()))) == {
        Channel(source="host", target="dev", busy="dev-in"),
        Channel(source="host/ort", target="dev", busy="dev-in"),
        Channel(source="dev", target="host", busy="dev-out"),
        Channel(source="dev", target="host/ort", busy="dev-out"),
    }

"""Float32 that crosses the way to a host as float16: said in the plan, allowed by the owner, never in silence."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from agent_sdk import native
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.program import Program
from agent_sdk.engine.single import single_processor_plan
from agent_sdk.errors import SegmentFailedError, WrongOutput
from agent_sdk.model import Model, read_model
from agent_sdk.runtimes.remote.halved import narrow, widen
from agent_sdk.runtimes.remote.processor import RemoteExecutable
from hope_schema import Plan, Transfer
from tests import CAMPAIGN
from tests.agent.engine.generate import random_legal_plan, random_model
from tests.agent.engine.test_executor import Reference, random_inputs
from tests.agent.models import chain_model
from tests.agent.runtimes.remote.conftest import Reached, device_with
from tests.agent.server.running import Running

FAR = "edge1:host"
BEYOND = np.float32(65520)
"""The least float32 that is rounded to an infinite float16."""


@pytest.fixture
def allowed(edge: Running) -> Iterator[Device]:
    """The first core of this machine, and that of a host whose owner lets float16 cross."""
    with Reached(edge.http, precision="fp16") as host, device_with(host) as device:
        yield device


def all_halved(plan: Plan, program: Program) -> Plan:
    """The plan, with every float32 tensor that crosses the way said to cross as float16."""
    moves: dict[tuple[str, str], Transfer] = {}
    for one in program.segments:
        far = one.processor.startswith("edge1:")
        for name in one.segment.inputs:
            source, target = program.memory_of(name), FAR if far else "host"
            if source != target:
                moves[name, target] = Transfer(
                    tensor=name, source=source, target=target, dtype="float16", start_us=0, finish_us=0
                )
        for name in set(one.segment.outputs) & set(program.model.graph.outputs) if far else ():
            moves[name, "host"] = Transfer(
                tensor=name, source=FAR, target="host", dtype="float16", start_us=0, finish_us=0
            )
    return plan.model_copy(update={"transfers": tuple(moves.values())})


def on_the_edge(model: Model, device: Device) -> Executor:
    """A whole network on the host, whose input and output cross as float16."""
    plan = single_processor_plan(model.graph, "edge1:ort@0", soc="here", frequency="now")
    plan = all_halved(plan, build_program(plan, model, device.processors))
    return Executor(build_program(plan, model, device.processors), device)


def halved(value: np.ndarray) -> np.ndarray:
    """What float16 leaves of a tensor."""
    return value.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("how", ["native", "sequence"])
def test_float16_is_what_numpy_makes_of_it(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every float16 is the same float32, and floats of all kinds are rounded to the same float16, at any length.

    What float16 does not hold is refused: a finite float that would be infinite, an infinity that comes back.
    """
    monkeypatch.setenv(native.LANES_VARIABLE, how)
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    every = every[~np.isinf(every)]
    wide = np.empty(every.size, np.float32)
    widen(wide, every, "every")
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    with np.errstate(all="ignore"):
        near = np.concatenate([wide, np.nextafter(wide, np.float32(np.inf)), np.nextafter(wide, np.float32(-np.inf))])
        between = (wide[:-1] + wide[1:]) / 2
        bits = np.random.default_rng(0).integers(0, 2**32, 2**16, dtype=np.uint32).view(np.float32)
        given = np.concatenate([near, between, np.nextafter(between, np.float32(0)), bits, [np.inf, -np.inf]])
        given = given[(np.abs(given) < BEYOND) | ~np.isfinite(given)].astype(np.float32)
        expected = given.astype(np.float16)
    for size in (given.size, *range(1, 10)):
        half = np.empty(size, np.float16)
        narrow(half, given[-size:], "given")
        np.testing.assert_array_equal(half, expected[-size:])
        np.testing.assert_array_equal(np.signbit(half), np.signbit(expected[-size:]))
        given[-1] = BEYOND
        with pytest.raises(WrongOutput, match="given"):
            narrow(half, given[-size:], "given")
        given[-1] = -np.inf
    with pytest.raises(WrongOutput, match="back"):
        widen(np.empty(9, np.float32), half, "back")


def test_what_does_not_stand_in_one_piece_is_held_while_it_is_rounded() -> None:
    """So large that the system takes its memory back at once where it is let go."""
    given = np.ones((3, 3 << 20), np.float32).T
    half = np.empty(given.shape, np.float16)
    narrow(half, given, "given")
    assert (half == 1).all()


def test_what_crosses_is_rounded_once_each_way_and_half_as_long(allowed: Device, reference: Reference) -> None:
    """The answer is bit for bit that of the rounded input, rounded; a value beyond float16 fails its run alone."""
    model = read_model(chain_model(8, 8, size=12))
    with on_the_edge(model, allowed) as executor:
        (one,) = (own for own in executor.executables if isinstance(own, RemoteExecutable))
        assert {kind.dtype for kind in one.types.values()} == {"float16"}
        assert executor.program.precisions == {"model", "float16"}
        for seed in range(2):
            feed = random_inputs(model, seed)
            (name, right) = next(iter(reference(model, {key: halved(value) for key, value in feed.items()}).items()))
            np.testing.assert_array_equal(executor.run(feed)[0][name], halved(right))
            with pytest.raises(SegmentFailedError, match="beyond 65504"):
                executor.run({key: np.full_like(value, 7e4) for key, value in feed.items()})
            with pytest.raises(SegmentFailedError, match="beyond 65504"):  # what comes back
                executor.run({key: np.full_like(value, 6e4) for key, value in feed.items()})


@pytest.mark.parametrize("seed", range(60 if CAMPAIGN else 4))
def test_random_plans_are_right_within_what_float16_rounds(seed: int, allowed: Device, reference: Reference) -> None:
    """Whatever crosses so, and is held there for other segments, any plan's answers differ by rounding alone."""
    rng = random.Random(seed)
    model = random_model(rng, rng.randint(2, 12))
    plan = random_legal_plan(model, list(allowed.processors.values()), rng)
    plan = all_halved(plan, build_program(plan, model, allowed.processors))
    with Executor(build_program(plan, model, allowed.processors), allowed) as executor:
        for repeat in range(2):
            feeds = random_inputs(model, seed + repeat)
            outputs, _ = executor.run(feeds)
            for name, expected in reference(model, feeds).items():
                most = 0.02 * max(1.0, np.abs(expected).max())
                np.testing.assert_allclose(outputs[name], expected, rtol=0.0, atol=most, err_msg=name)


def test_a_plan_does_not_narrow_what_the_owner_does_not_allow(both: Device, reference: Reference) -> None:
    """Where the host's entry says nothing of precision a plan's float16 changes no answer."""
    model = read_model(chain_model(8, 8, size=12))
    with on_the_edge(model, both) as executor:
        feed = random_inputs(model, 3)
        (name, right) = next(iter(reference(model, feed).items()))
        np.testing.assert_array_equal(executor.run(feed)[0][name], right)

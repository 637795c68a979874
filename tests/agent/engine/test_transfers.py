"""The plan's transfers: what a resource of its own carries is work in a queue; what cannot be executed is refused."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from agent_sdk.engine import Copy, Device, Executor, build_program
from agent_sdk.errors import IllegalPlanError, SegmentFailedError
from agent_sdk.explain import to_perfetto
from agent_sdk.model import read_model
from hope_schema import HOST, Transfer, merge
from tests import CAMPAIGN
from tests.agent.engine.conftest import Reference
from tests.agent.engine.generate import carried, dealt_plan, plan_of, random_inputs, random_legal_plan, random_model
from tests.agent.engine.scene import NATIVE
from tests.agent.engine.simulated import Box, SimulatedPlace, SimulatedProcessor, four_processors
from tests.agent.engine.test_executor import sane


@pytest.mark.parametrize("seed", range(1000 if CAMPAIGN else 20))
def test_tensors_are_carried_once_each_and_right(seed: int, reference: Reference) -> None:
    """Whatever carries them: bits, order, one copy per tensor and memory, every carrier's copies in its own queue."""
    rng = random.Random(seed)
    model = random_model(rng, rng.randint(1, 25))
    processors = four_processors()
    plan = carried(random_legal_plan(model, processors, rng), model, processors, rng, ["copier", "link"])
    feeds = random_inputs(model, seed)
    with Device(processors) as device:
        program = build_program(plan, model, device.processors)
        asked = {(move.tensor, move.target): move.over for move in plan.transfers if move.source != HOST}
        moves = [work.move for work in program.work if isinstance(work, Copy)]
        made = {(move.tensor, move.target): move.over for move in moves}
        assert len(made) == len(moves)
        assert made.items() <= asked.items()
        read = {(name, s.processor) for s in program.segments for name in s.segment.inputs}
        assert made.keys() >= {(name, here) for name, here in read if program.home[name] not in (HOST, here)}
        for row, queue in zip(program.by_lane, program.lanes, strict=True):
            over = {work.move.over for work in row if isinstance(work, Copy)}
            assert over <= ({queue} if queue in ("copier", "link") else {None})
        with Executor(program, device) as executor:
            for repeat in range(2):
                outputs, trace = executor.run(feeds, timeout_s=30 if repeat else None)
                for name, expected in reference(model, feeds).items():
                    np.testing.assert_array_equal(outputs[name], expected)
                sane(executor, trace)
                assert len([s for s in trace.spans if s.segment < 0 and s.kind == "transfer"]) == len(
                    program.work
                ) - len(program.segments)
        assert sum(p.transfers for p in processors) == 2 * len(made)
        assert to_perfetto(trace)["traceEvents"]


@NATIVE
def test_a_copy_goes_on_beside_computing(reference: Reference) -> None:
    """While a tensor is carried its maker computes on: each waits for the other, which works only if both go on."""
    nodes = [helper.make_node(kind, [read], [kind]) for kind, read in (("Sin", "x"), ("Cos", "Sin"), ("Tanh", "Sin"))]
    ends = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 8)) for name in ("x", "Cos", "Tanh")}
    graph = helper.make_graph(nodes, "fork", [ends["x"]], [ends["Cos"], ends["Tanh"]])
    model = read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    where = {"Sin": "a", "Cos": "b", "Tanh": "a"}
    super_ops = merge(model.graph)
    placed = {index: where[super_op.outputs[-1]] for index, super_op in enumerate(super_ops)}
    plan = plan_of(model, super_ops, range(len(super_ops)), placed, ["a", "b"])
    move = Transfer(tensor="Sin", source="a", target="b", over="copier", start_us=0, finish_us=0)
    plan = plan.model_copy(update={"transfers": (move,)})
    meeting = threading.Barrier(2, timeout=20)
    a, b = SimulatedProcessor("a", ("x",)), SimulatedProcessor("b", ("y",))
    a.hook = lambda segment: meeting.wait() and None if segment.outputs == ("Tanh",) else None
    bring = b.place.bring
    b.place.bring = lambda *given: meeting.wait() * 0 or bring(*given)
    with Device([a, b]) as device, Executor(build_program(plan, model, device.processors), device) as executor:
        feeds = random_inputs(model, 0)
        outputs, _ = executor.run(feeds)
    for name, expected in reference(model, feeds).items():
        np.testing.assert_array_equal(outputs[name], expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor": "nowhere"}, "which model .* does not have"),
        ({"target": "moon"}, "where none of its processors computes"),
        ({"source": "c"}, "but it is not there"),
    ],
)
def test_what_cannot_be_executed_is_refused(change: dict[str, Any], message: str) -> None:
    """A transfer of nothing, to nowhere, or from where the tensor is not: one error, and nothing runs."""
    rng = random.Random(3)
    model = random_model(rng, 14)
    plan = carried(dealt_plan(model, ["a", "b", "c"]), model, four_processors(), rng, ["copier"])
    own = next(move for move in plan.transfers if "c" not in (move.source, move.target) and move.source != HOST)
    wrong = Transfer.model_validate(own.model_dump() | {"over": "copier", "reader": None} | change)
    plan = plan.model_copy(update={"transfers": (wrong,)})
    with pytest.raises(IllegalPlanError, match=message):
        build_program(plan, model, {p.id: p for p in four_processors()})


def test_several_networks_at_once_are_refused() -> None:
    """A plan for two jobs is not taken for one of the first."""
    model = random_model(random.Random(3), 5)
    plan = dealt_plan(model, ["a"])
    plan = plan.model_copy(update={"jobs": plan.jobs * 2})
    with pytest.raises(IllegalPlanError, match="2 networks"):
        build_program(plan, model, {p.id: p for p in four_processors()})


@NATIVE
def test_a_copy_that_fails_ends_the_run_with_one_error(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what was copied where, and the next run works."""
    model = random_model(random.Random(5), 14)
    processors = [SimulatedProcessor("a", ("x",)), SimulatedProcessor("b", ("y",))]
    plan = carried(dealt_plan(model, ["a", "b"]), model, processors, random.Random(1), ["copier"])
    assert any(move.over and move.source != HOST for move in plan.transfers)
    feeds = random_inputs(model, 0)
    with Device(processors) as device, Executor(build_program(plan, model, device.processors), device) as executor:
        right = SimulatedPlace.to_host

        def fail(place: SimulatedPlace, buffer: Box) -> np.ndarray:
            if threading.current_thread().name == "hope-copier":
                raise ZeroDivisionError
            return right(place, buffer)

        monkeypatch.setattr(SimulatedPlace, "to_host", fail)
        with pytest.raises(SegmentFailedError, match=r"^copying .* to [ab] failed: ZeroDivisionError"):
            executor.run(feeds)
        monkeypatch.undo()
        outputs, _ = executor.run(feeds)
        for name, expected in reference(model, feeds).items():
            np.testing.assert_array_equal(outputs[name], expected)

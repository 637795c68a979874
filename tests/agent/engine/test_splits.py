"""Plans with cuts: parts run where the plan says, and what stands side by side in memory is not joined by an op."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.memory import plan_memory
from agent_sdk.explain.reasons import _rows
from agent_sdk.model import Model, read_model
from agent_sdk.runtimes.base import Processor
from agent_sdk.runtimes.offered import discover
from hope_schema import Cut, Plan, SuperOp, merge
from hope_schema.cutgraph import cut_graph
from tests import CAMPAIGN
from tests.agent.engine.conftest import Reference
from tests.agent.engine.generate import plan_of, random_cuts, random_inputs, random_legal_plan, random_model
from tests.agent.engine.occupancy import allocated_bytes, peak_bytes
from tests.agent.engine.simulated import SimulatedProcessor, four_processors
from tests.agent.engine.test_program import Where, at, happens_before, touched

ROUNDING = 1e-4
"""A part's kernel may add up in another order than the whole's."""


@pytest.fixture
def pool(frozen: Path) -> Iterator[list[Processor]]:
    """Two lanes, a gang, and a processor with memory of its own."""
    device = Device(discover("ort@0,ort@1,ort@0-1", cache=frozen))
    yield [*device.processors.values(), SimulatedProcessor("apart", ("elsewhere",))]
    device.close()


def chain(channels: int, size: int, ops: int) -> Model:
    """Convolutions of 3x3 in a row, each with a Relu behind it."""
    rng, nodes, weights = np.random.default_rng(5), [], []
    for index in range(ops):
        weight = rng.standard_normal((channels, channels, 3, 3)).astype(np.float32) / 10
        weights.append(numpy_helper.from_array(weight, f"w{index}"))
        nodes.append(helper.make_node("Conv", [f"t{index}", f"w{index}"], [f"c{index}"], pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"t{index + 1}"]))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, channels, size, size)) for name in ("t0", f"t{ops}")
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    return read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


def split(model: Model, cuts: list[Cut], lanes: tuple[str, str] = ("ort@0", "ort@1")) -> Plan:
    """First parts on one processor, second ones on the other, whatever is whole on the first."""
    super_ops = merge(cut_graph(model.graph, cuts))

    def place(super_op: SuperOp) -> str:
        return lanes[1] if "[" in super_op.id and ":0:" not in super_op.id.rsplit("[", 1)[1] else lanes[0]

    where = {index: place(super_op) for index, super_op in enumerate(super_ops)}
    return plan_of(model, super_ops, range(len(super_ops)), where, lanes, cuts)


@pytest.mark.parametrize("seed", range(100 if CAMPAIGN else 10))
def test_plans_with_cuts_compute_what_the_whole_does(seed: int, pool: list[Processor], reference: Reference) -> None:
    """Any cuts, any placement, any order, run after run in the same memory."""
    rng = random.Random(seed)
    model = random_model(rng, rng.randint(2, 14))
    chosen = rng.sample(pool, rng.randint(1, len(pool)))
    plan = random_legal_plan(model, chosen, rng, random_cuts(model, rng))
    with Device(chosen) as device, Executor(build_program(plan, model, device.processors), device) as executor:
        for turn in range(3):
            feeds = random_inputs(model, turn)
            outputs, trace = executor.run(feeds, timeout_s=60.0)
            for name, expected in reference(model, feeds).items():
                assert np.abs(outputs[name] - expected).max() <= ROUNDING * max(1.0, np.abs(expected).max())
            held = allocated_bytes(executor)
            assert all(size <= held.get(processor, 0) for processor, size in peak_bytes(executor, trace).items())


@pytest.mark.parametrize("seed", range(300 if CAMPAIGN else 25))
def test_shared_memory_holds_one_tensor_at_a_time(seed: int) -> None:
    """Everyone who touches a tensor, or a part of it, comes before everyone who makes the next one in that memory."""
    rng = random.Random(seed)
    model = random_model(rng, rng.randint(2, 20))
    processors = four_processors()
    plan = random_legal_plan(model, processors, rng, random_cuts(model, rng))
    program = build_program(plan, model, {processor.id: processor for processor in processors})
    order = happens_before(program)
    makers = {name: at(work) for work in program.segments for name in work.segment.outputs}
    for work in program.segments:
        for name in (part for read in work.segment.inputs for part in program.parts(read)):
            assert name in model.graph.inputs or order.has_edge(makers[name], at(work))
    types = [{name: program.graph.tensor[name].type for names in touched(program, w) for name, _ in names}
             for w in program.work]  # fmt: skip
    memory = plan_memory(program, types)
    readers: dict[tuple[int, str], set[Where]] = {}
    written: dict[tuple[int, str], set[Where]] = {}
    for work in program.work:
        for users, names in zip((readers, written), touched(program, work), strict=True):
            for name, place in names:
                spot = memory.spot[name, place]
                assert spot.offset + spot.kind.bytes <= spot.slot.kind.bytes
                users.setdefault((id(spot.slot), program.storage(name)), set()).add(at(work))
    for slot in memory.slots:
        for first, second in pairwise(slot.tensors):
            before = readers.get((id(slot), first), set()) | written.get((id(slot), first), set())
            for late in written[id(slot), second]:
                assert all(order.has_edge(early, late) for early in before)


@pytest.mark.parametrize("channels", [24, 32, 64])
def test_channels_are_joined_by_where_they_are_written(channels: int, device: Device, reference: Reference) -> None:
    """Parts of channels, whole blocks or not, stand in the whole's memory: no join is run, no bit is lost."""
    model = chain(channels, 12, 3)
    cuts = [Cut(op=op.id, axes=(1,), at=((channels // 2,),)) for op in merge(model.graph)]
    program = build_program(split(model, cuts), model, device.processors)
    assert all(op.type in ("Conv", "Relu") for s in program.segments for op in map(program.graph.op.get, s.ops) if op)
    assert any(op.type == "Concat" for op in program.graph.ops)
    with Executor(program, device) as executor:
        feeds = random_inputs(model, 3)
        outputs, _ = executor.run(feeds)
        [expected] = reference(model, feeds).values()
        np.testing.assert_allclose(outputs["t3"], expected, atol=ROUNDING)
        assert len(program.segments) == 6


@pytest.mark.parametrize("given", [False, True])
def test_an_output_is_put_together_where_it_is_stored(given: bool, device: Device, reference: Reference) -> None:
    """A chain cut along height is one segment on each of two lanes: no op joins what it leaves, wherever that goes."""
    model = chain(16, 24, 4)
    ops = [op.id for op in merge(model.graph)]
    cuts = [Cut(op=op, axes=(2,), at=((12,),), chained=op != ops[0]) for op in ops]
    with Executor(build_program(split(model, cuts), model, device.processors), device) as executor:
        feeds = random_inputs(model, 3)
        expected = reference(model, feeds)["t4"]
        into = {"t4": np.empty_like(expected)} if given else {}
        outputs, trace = executor.run(feeds, into=into)
        np.testing.assert_array_equal(outputs["t4"], expected)
        assert not given or outputs["t4"] is into["t4"]
        assert [span.processor for span in trace.segments] == ["ort@0", "ort@1"]
        assert [kind for kind, _, _ in trace.deliveries()] == [model.graph.tensor["t4"].type]
        (joined,) = (row for row in _rows(trace, model.graph) if row.segment is None)
        assert (joined.op, joined.why) == ("t4", "is an output: it is stored part by part")


@pytest.mark.parametrize("chained", [False, True])
def test_boxes_are_computed_by_ordinary_ops(chained: bool, device: Device, reference: Reference) -> None:
    """Four tiles along both axes, which exchange halos or compute them twice, leave what the whole network leaves."""
    model = chain(16, 24, 3)
    ops = [op.id for op in merge(model.graph)]
    cuts = [Cut(op=op, axes=(2, 3), at=((12,), (10,)), chained=chained and op != ops[0]) for op in ops]
    with Executor(build_program(split(model, cuts), model, device.processors), device) as executor:
        feeds = random_inputs(model, 3)
        outputs, _ = executor.run(feeds)
        np.testing.assert_array_equal(outputs["t3"], reference(model, feeds)["t3"])

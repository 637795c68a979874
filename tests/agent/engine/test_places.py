"""Tensors stand in places: a change of layout is made once for all who read it there, apart from the ops around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from agent_sdk.engine import Copy, Device, Executor, Program, build_program
from agent_sdk.engine.places import hops
from agent_sdk.model import Model, read_model
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.ort.cut import block_size
from hope_schema import Transfer, merge
from tests.agent.engine.conftest import Reference
from tests.agent.engine.generate import plan_of, random_inputs
from tests.agent.engine.simulated import SimulatedProcessor

pytestmark = pytest.mark.skipif(block_size() == 1, reason="this machine's kernels know no blocked layout")

SHAPE = (1, 32, 12, 12)


def fan(readers: int) -> Model:
    """A convolution whose result as many others read; theirs are read by nobody."""
    generator = np.random.default_rng(0)
    names = ["made", *(f"read{index}" for index in range(readers))]
    weights = [
        numpy_helper.from_array(generator.standard_normal((32, 32, 3, 3)).astype(np.float32) / 16, f"w{name}")
        for name in ("in", *names)
    ]
    sources = {"in": "x", "made": "in"} | dict.fromkeys(names[1:], "made")
    nodes = [
        helper.make_node("Conv", [source, f"w{name}"], [name], name=name, pads=[1, 1, 1, 1])
        for name, source in sources.items()
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in names[1:]]
    graph = helper.make_graph(nodes, "fan", [given], outputs, weights)
    return read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


def placed(model: Model, where: Sequence[str], device: Device, source: str = "host/ort", **carried: str) -> Program:
    """The ops in their order on these processors; ``made`` is carried from ``source`` by queues, named by target."""
    super_ops = merge(model.graph)
    plan = plan_of(model, super_ops, range(len(super_ops)), dict(enumerate(where)), list(dict.fromkeys(where)))
    moves = [Transfer(tensor="made", target=target, source=source, over=over, start_us=0, finish_us=0)
             for target, over in carried.items()]  # fmt: skip
    return build_program(plan.model_copy(update={"transfers": tuple(moves)}), model, device.processors)


def right(program: Program, device: Device, reference: Reference) -> None:
    """Run after run."""
    with Executor(program, device, in_flight=2) as executor:
        for seed in range(3):
            feeds = random_inputs(program.model, seed)
            outputs, trace = executor.run(feeds)
            expected: Mapping[str, np.ndarray] = reference(program.model, feeds)
            for name, array in expected.items():
                np.testing.assert_allclose(outputs[name], array, rtol=1e-4, atol=1e-5)
            copies = [span for span in trace.spans if span.kind == "transfer"]
            assert len(copies) == sum(isinstance(work, Copy) for work in program.work)


@pytest.mark.parametrize(
    ("where", "changes"),
    [
        (["ort@0", "ov@1", "ort@0", "ort@1", "ort@0-1"], [("host/ort", "host"), ("host", "host/ort")]),
        (["ov@0", "ort@0", "ov@1", "ov@0", "ort@1"], [("host", "host/ort"), ("host/ort", "host")]),
        (["ort@0", "ort@0", "ort@1", "ort@0-1", "ort@1"], []),
        (["ov@0", "ov@1", "ov@0", "ov@1", "ov@0-1"], []),
    ],
)
def test_a_layout_is_changed_once_for_all_its_readers(
    where: list[str], changes: list[tuple[str, str]], frozen: Path, reference: Reference
) -> None:
    """Whoever reads first in a place brings it there; in the place where it was made nobody changes anything."""
    model = fan(3)
    with Device(discover("ort,ov", cache=frozen)) as device:
        program = placed(model, where, device)
        moves = [work.move for work in program.work if isinstance(work, Copy)]
        assert [(move.source, move.target) for move in moves] == changes
        assert all(move.changes_layout for move in moves)
        right(program, device, reference)


def test_a_copy_queue_changes_the_layout_too(frozen: Path, reference: Reference) -> None:
    """What a queue carries is made plain there, not by who made it or reads it."""
    model = fan(2)
    with Device([*discover("ort", cache=frozen), SimulatedProcessor("apart", ("elsewhere",))]) as device:
        program = placed(model, ["ort@0", "ort@1", "apart", "ort@0"], device, apart="copier")
        queue = [work for work in program.work if program.lanes[work.lane] == "copier"]
        ends = [(work.move.source, work.move.target) for work in queue if isinstance(work, Copy)]
        assert ends == [("host/ort", "host"), ("host", "apart")]
        right(program, device, reference)


def test_a_gang_changes_itself_what_a_queue_brought(frozen: Path, reference: Reference) -> None:
    """No thread of a queue can change a layout where there are no single cores: its first reader does."""
    model = fan(2)
    with Device([*discover("ort@0-1", cache=frozen), SimulatedProcessor("apart", ("elsewhere",))]) as device:
        program = placed(model, ["apart", "apart", "ort@0-1", "ort@0-1"], device, "apart", **{"host/ort": "copier"})
        ends = [(work.move.source, work.move.target, work.move.over) for work in program.work if isinstance(work, Copy)]
        assert ends == [("apart", "host", "copier"), ("host", "host/ort", None)]
        right(program, device, reference)


def test_ways_go_over_the_plain_layout() -> None:
    """Between layouts and memories, and nowhere where a tensor is already."""
    assert list(hops("host/ort", "cuda:0")) == [("host/ort", "host"), ("host", "cuda:0")]
    assert list(hops("cuda:0", "host/ort")) == [("cuda:0", "host"), ("host", "host/ort")]
    assert list(hops("host/ort", "host/ort")) == list(hops("host", "host")) == []

"""Networks of a joint plan as one program; torch's CPU stands in for a GPU that takes several as one launch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from agent_sdk import Agent, Session
from agent_sdk.engine import Executor
from agent_sdk.errors import FeedError, InputError, ProcessorError, ProcessorLost
from agent_sdk.model import read_model
from agent_sdk.model.united import united
from agent_sdk.runtimes.base import Segment
from agent_sdk.runtimes.torch.executable import TorchCall
from agent_sdk.scheduling.member import Member
from agent_sdk.scheduling.parts import plan_of_all
from agent_sdk.scheduling.together import Together
from hope_schema import merge
from tests.agent.models import branching_model
from tests.agent.scheduling.answers import right


@pytest.fixture
def sessions(agent_apart: Agent, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Session]]:
    """Two networks whose tensors have the same names, with plans, on a processor that computes both as one."""
    monkeypatch.setattr(Together, "faster", True)
    for own in agent_apart.device.processors.values():
        own.joins = True
    loaded = [agent_apart.load(branching_model(size).SerializeToString(), background=False) for size in (4, 8)]
    yield loaded
    for session in loaded:
        session.close()


def test_a_round_is_one_launch_that_answers_each_network(
    agent_apart: Agent, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One program has a single segment for all, whose answers are each network's own; one may stand in it twice."""
    launched: list[TorchCall] = []
    launch = TorchCall.launch

    def counted(call: TorchCall) -> None:
        launched.append(call)
        launch(call)

    monkeypatch.setattr(TorchCall, "launch", counted)
    three = [*sessions, sessions[0]]
    with agent_apart.together(*three) as together:
        assert len(together.whole.program.segments) == 1
        launched.clear()
        for seed in range(3):
            feeds = [dict(session.draw(seed)) for session in three]
            assert all(map(right, three, feeds, together.run(*feeds)))
        assert len(launched) == 3
        assert len(set(launched)) == 1
        whole = together.whole
    assert whole._freed


def test_a_plan_of_all_has_every_step_where_it_was(agent_apart: Agent, sessions: list[Session]) -> None:
    """As one plan the networks keep processors, times and order; their super-ops are those that each has alone."""
    with agent_apart.together(*sessions) as together:
        model = united([parts[0].executor.program.model for parts in together.runs])
        plan = plan_of_all(together.plan, [0, 1], model)
        assert plan.order == together.plan.order
        for step, before in zip(plan.steps, together.plan.steps, strict=True):
            assert step.model_copy(update={"job": before.job, "ops": before.ops}) == before
            assert step.ops == tuple(f"{before.job}/{op}" for op in before.ops)
        for super_op in merge(model.graph):
            place, own = model.source(super_op)
            assert own.signature == super_op.signature
            assert own.ops in [alone.ops for alone in merge(model.members[place].graph)]


def test_networks_that_cannot_run_as_one_are_refused(
    agent_apart: Agent, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set that does not compile, or answers otherwise than its networks, is refused, and nothing of it stays open; a
    round that fails later is answered by the sessions.
    """
    feeds = [dict(session.draw()) for session in sessions]
    [own] = agent_apart.device.processors.values()
    compiled, run = own.compile, Executor.run
    opened: list[Executor] = []

    def alone(segment: Segment) -> object:
        if segment.model.name.count("+"):
            raise ProcessorLost("only one at a time")
        return compiled(segment)

    def wrong(executor: Executor, *given: Any, **named: Any) -> Any:
        outputs, trace = run(executor, *given, **named)
        opened.append(executor)
        if executor.program.model.name.count("+"):
            outputs = {name: value + 1 for name, value in outputs.items()}
        return outputs, trace

    with monkeypatch.context() as patched:
        patched.setattr(own, "compile", alone)
        with pytest.raises(ProcessorError, match="only one at a time"):
            agent_apart.together(*sessions)
    with monkeypatch.context() as patched:
        patched.setattr(Executor, "run", wrong)
        with pytest.raises(ProcessorError, match="otherwise"):
            agent_apart.together(*sessions)
    assert opened
    assert all(executor._freed for executor in opened)
    with agent_apart.together(*sessions, every_ms=(2000, 1000)) as together:  # the first run of each
        assert all(map(right, sessions, feeds, together.run(*feeds)))
        together.whole.close()
        assert all(map(right, sessions, feeds, together.run(*feeds)))
        assert any("failed" in note for note in together.notes)


def one_op(kind: str, inputs: Mapping[str, tuple[int, list[int | str]]], table: Mapping[str, np.ndarray]) -> bytes:
    """An op and a Relu behind it; inputs by name, each with its type and shape."""
    nodes = [helper.make_node(kind, [*table, *inputs], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    given = [helper.make_tensor_value_info(name, dtype, shape) for name, (dtype, shape) in inputs.items()]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    weights = [numpy_helper.from_array(array, name) for name, array in table.items()]
    graph = helper.make_graph(nodes, "small", given, made, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def test_what_a_session_refuses_a_round_refuses_in_its_words(agent_apart: Agent, sessions: list[Session]) -> None:
    """Names, shapes and types are told by the network that they are of, not by where it stands among others."""
    feed, other = (dict(session.draw()) for session in sessions)
    with agent_apart.together(*sessions) as together:
        for wrong in ({}, {**feed, "z": feed["x"]}, {"x": feed["x"].astype(np.float64)}, {"x": feed["x"][0]}):
            with pytest.raises(FeedError) as alone:
                sessions[0].run(wrong)
            with pytest.raises(FeedError) as jointly:
                together.run(wrong, other)
            assert str(jointly.value) == str(alone.value)


def test_a_feed_that_a_joint_plan_is_not_for_is_the_sessions(
    agent_apart: Agent, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other shapes that a session is ready for, and numbers that only its own runtime takes, the sessions answer."""
    opened = one_op("Elu", {"x": (TensorProto.FLOAT, ["n", 4])}, {})
    picked = one_op("Gather", {"x": (TensorProto.INT64, [3])}, {"t": np.arange(20, dtype=np.float32).reshape(5, 4)})
    with (
        agent_apart.load(opened, shapes={"x": (2, 4)}, background=False) as open_one,
        agent_apart.load(picked, background=False) as picking,
        agent_apart.together(open_one, picking) as together,
    ):
        planned, run = list[bool](), together._planned
        monkeypatch.setattr(together, "_planned", lambda feeds: planned.append(True) or run(feeds))
        feeds = [{"x": np.full((2, 4), -1, np.float32)}, {"x": np.array([0, 1, -5])}]
        assert all(map(right, (open_one, picking), feeds, together.run(*feeds)))
        assert planned.pop()
        open_one.prepare(shapes={"x": (3, 4)})
        other = {"x": np.full((3, 4), -1, np.float32)}
        assert together.run(other, feeds[1])[0]["y"].shape == (3, 4)
        for plans in (open_one.plans, picking.plans):
            assert plans.last is not None
            monkeypatch.setattr(plans.last, "trusting", False)  # ONNX Runtime answers it
        with pytest.raises(InputError, match="out of data bounds"):
            together.run(feeds[0], {"x": np.array([0, 1, 9])})
        member = Member(open_one.plans, agent_apart.jobs.where, parts=together.runs[0])
        assert member.fits(feeds[0])
        assert not member.fits(other)
        assert not planned


def test_names_of_networks_do_not_meet() -> None:
    """The whole has the inputs, outputs and guards of each, told apart, and gives each its own back."""
    members = [read_model(branching_model(size).SerializeToString()) for size in (4, 8)]
    model = united(members)
    feeds = [dict.fromkeys(one.graph.inputs, place) for place, one in enumerate(members)]
    assert list(model.feed(feeds)) == list(model.graph.inputs)
    assert len(model.graph.ops) == sum(len(one.graph.ops) for one in members)
    assert len(model.guard.floats) == sum(len(one.guard.floats) for one in members)
    outputs = {name: name for name in model.graph.outputs}
    assert model.answers(outputs) == [
        {name: f"{place}/{name}" for name in one.graph.outputs} for place, one in enumerate(members)
    ]
    assert model.content_digest != united(members[::-1]).content_digest

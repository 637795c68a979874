"""The check of ``hope-agent run``: it is of what answers, and of what is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from agent_sdk import Agent
from agent_sdk.cli.examine import examine
from agent_sdk.engine import Executor
from agent_sdk.engine.trace import Trace
from agent_sdk.journey.trial import PLAN
from tests.agent.models import BRANCHING, one_op_model

Answer = tuple[dict[str, np.ndarray], Trace]


def test_what_wins_the_timing_is_what_is_checked(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single processor that takes over while the plan is timed cannot hide behind the plan's right answer."""
    right = Executor.run

    with agent.load(BRANCHING, all_rivals=True, background=False) as session:
        plan, rivals = (
            session.latest.plan_executor,
            set(session.latest.contenders.values()) - {session.latest.plan_executor},
        )

        def run(self: Executor, inputs: Mapping[str, np.ndarray], **given: Any) -> Answer:
            outputs, trace = right(self, inputs, **given)
            if self is plan:
                trace.total_us += 1e6
            if self in rivals:
                outputs = {name: np.full_like(value, 9.0) for name, value in outputs.items()}
            return outputs, trace

        monkeypatch.setattr(Executor, "run", run)
        report, _ = examine(agent, session, session.draw(), runs=3, compare=False)
    assert report.executed != PLAN
    assert not report.verdict.correct


@pytest.mark.parametrize("beside", [(), ("logits",)])
def test_the_outputs_that_are_served_are_compared(
    beside: tuple[str, ...], agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What enters a final softmax may be right and what leaves it wrong, also where a network gives both."""
    model = onnx.load_from_string(BRANCHING)
    for name in beside:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 10]))
    right = Executor.run

    def run(self: Executor, inputs: Mapping[str, np.ndarray], **given: Any) -> Answer:
        outputs, trace = right(self, inputs, **given)
        return outputs | {"y": np.full_like(outputs["y"], 7.0)}, trace

    with agent.load(model, background=False) as session:
        assert examine(agent, session, session.draw(), runs=1, compare=False)[0].verdict.correct
        monkeypatch.setattr(Executor, "run", run)
        assert not examine(agent, session, session.draw(), runs=1, compare=False)[0].verdict.correct


def test_an_output_that_is_not_served_is_wrong(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor that shows what enters the softmax does not stand in for the one that answers."""
    right = Executor.run

    with agent.load(BRANCHING, background=False) as session:
        outputs = session.latest.model.graph.outputs

        def run(self: Executor, inputs: Mapping[str, np.ndarray], **given: Any) -> Answer:
            answer, trace = right(self, inputs, **given)
            return ({} if self.program.graph.outputs == outputs else answer), trace

        monkeypatch.setattr(Executor, "run", run)
        assert examine(agent, session, session.draw(), runs=1, compare=False)[0].verdict.error == float("inf")


def test_a_lone_softmax_can_be_checked(agent: Agent) -> None:
    """Where a model's input enters its final softmax, only the output is there to be compared."""
    with agent.load(one_op_model("Softmax").SerializeToString(), background=False) as session:
        assert examine(agent, session, session.draw(), runs=1, compare=False)[0].verdict.correct

"""A network that nobody has measured has its plan at once, and a better one without anybody asking."""

from __future__ import annotations

import time
from pathlib import Path

from agent_sdk import Agent
from agent_sdk.journey.verify import relative_error
from agent_sdk.model import read_model
from hope_schema import merge
from tests.agent.models import chain_model, expected
from tests.e2e.test_remote_planner import served

LATEST_S = 60.0
"""By when what happens by itself has happened, on a busy machine."""
KNOWN = read_model(chain_model(*(4 * k for k in range(1, 21))).SerializeToString())
UNSEEN = chain_model(18, 50, 26, 42).SerializeToString()


def test_the_first_plan_rests_on_predictions(cache: Path, tmp_path: Path) -> None:
    """The planner knows another network of the SoC: a device plans before it measures, and measures behind its runs."""
    inputs, right = expected(UNSEEN, seed=3)
    model = read_model(UNSEEN)
    with served(tmp_path) as url:
        with Agent(url, processors="ort@0") as other:
            assert other.obtain(KNOWN).profiled_signatures == len({op.signature for op in merge(KNOWN.graph)})
        with Agent(url, processors="ort@0", cache=tmp_path / "second") as agent:
            first = agent.obtain(model, at_once=True)
            assert first.profiled_signatures == 0
            assert first.plan is not None
            assert all(step.predicted_spread for step in first.plan.steps)
            question = agent._services._question(model)
            assert {
                row.signature for row in agent._supplier.lacking(question.graph, question.measurable).latencies
            } == {op.signature for op in merge(model.graph)}
            with agent.load(UNSEEN) as session:
                end = time.monotonic() + LATEST_S
                while agent._supplier.lacking(question.graph, question.measurable).latencies:
                    assert time.monotonic() < end, session.notes
                    assert relative_error(session.run(inputs), right) <= 1e-4
                    time.sleep(0.1)


def test_the_planner_inside_predicts_too(cache: Path) -> None:
    """In one process: the first network is measured before it is planned, the second once its plan is to be renewed."""
    inputs, right = expected(UNSEEN, seed=4)
    with Agent(processors="ort@0") as agent:
        assert agent.obtain(read_model(UNSEEN), at_once=True).profiled_signatures > 0  # nothing to predict from
    with Agent(processors="ort@0", cache=cache / "again") as agent:
        agent.obtain(KNOWN)
        first = agent.obtain(read_model(UNSEEN), at_once=True)
        assert (first.profiled_signatures, first.preliminary) == (0, True)
        with agent.load(UNSEEN, background=False) as session:
            assert session.latest.obtained.profiled_signatures == 0
            agent.refresh(session)
            assert not session.latest.obtained.plan.filled
            assert relative_error(session.run(inputs), right) <= 1e-4

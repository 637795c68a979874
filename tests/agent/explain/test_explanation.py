"""An explanation says of every op what the plan and a run of it say, and nothing else."""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from agent_sdk import Agent
from agent_sdk.engine import Executor, build_program
from agent_sdk.explain import Explanation, explain
from agent_sdk.journey.trial import PLAN
from agent_sdk.model import read_model
from agent_sdk.model.feeds import draw
from agent_sdk.session import Session
from hope_schema import Cut, merge
from hope_schema.cutgraph import cut_graph
from tests.agent.engine.generate import plan_of
from tests.agent.models import BRANCHING, one_op_model, prepared_of


@pytest.fixture
def explained(returning_agent: Agent) -> tuple[Session, Explanation]:
    """A session and what it says of itself."""
    session = returning_agent.load(BRANCHING, background=False)
    return session, session.explain(runs=3)


def test_every_op_stands_where_the_plan_puts_it(explained: tuple[Session, Explanation]) -> None:
    """One row per op, on the plan's processor, in the segment that carries it, for the plan's cause."""
    session, explanation = explained
    program = session.latest.plan_executor.program
    step = {op: step for step in program.plan.steps for op in step.ops}
    segment = {op: segment.index for segment in program.segments for op in segment.ops}
    assert sorted(row.op for row in explanation.ops) == sorted(op.id for op in program.graph.ops)
    for row in explanation.ops:
        assert row.type == program.graph.op[row.op].type
        assert row.super_op == step[row.op].ops[-1]
        assert row.processor == step[row.op].processor
        assert row.segment == segment[row.op]
        assert row.cause == step[row.op].cause.value
        other = step[row.op].next_best
        assert row.next_best == (other.processor if other else None)


def test_times_of_ops_add_up_to_what_was_predicted_and_measured(explained: tuple[Session, Explanation]) -> None:
    """Ops share their step's predicted interval and their segment's measured time without rest."""
    session, explanation = explained
    predicted: dict[str, float] = defaultdict(float)
    measured: dict[int | None, float] = defaultdict(float)
    for row in explanation.ops:
        predicted[row.super_op] += row.predicted_us
        measured[row.segment] += row.measured_us or 0.0
    for step in session.latest.plan_executor.program.plan.steps:
        assert predicted[step.ops[-1]] == pytest.approx(step.finish_us - step.start_us)
    took = sum(bar.finish_us - bar.start_us for bar in explanation.measured if bar.kind == "compute")
    assert sum(measured.values()) == pytest.approx(took)
    assert took <= explanation.measured_us * len(explanation.processors)


def test_an_explanation_is_plain_data(explained: tuple[Session, Explanation]) -> None:
    """It becomes JSON and loses nothing."""
    _, explanation = explained
    read = json.loads(json.dumps(explanation.as_json(), allow_nan=False))
    assert [row["op"] for row in read["ops"]] == [row.op for row in explanation.ops]
    assert read["planned_us"] == explanation.planned_us


def test_printed_it_is_the_table(explained: tuple[Session, Explanation]) -> None:
    """``print`` shows a line for every op, the reason for each super-op, who answers, and every note."""
    _, explanation = explained
    lines = str(explanation).splitlines()
    assert [line.split()[0] for line in lines[1:] if not line.startswith(("    ", "note: "))][
        : len(explanation.ops)
    ] == [row.op for row in explanation.ops]
    assert sum(line.startswith("    ") for line in lines) == len({row.super_op for row in explanation.ops})
    assert f"{explanation.model}: {explanation.why}" in lines
    assert all(f"note: {note}" in lines for note in explanation.notes)


def test_a_session_says_in_short_what_runs_where(explained: tuple[Session, Explanation]) -> None:
    """``repr`` names who answers and every processor that is used."""
    session, explanation = explained
    assert all(name in repr(session) for name in session.get_providers())
    assert ("the plan: " in repr(session)) == (session.latest.current == PLAN)
    assert explanation.why.startswith("the plan" if explanation.answers == PLAN else explanation.answers)


def test_without_a_planner_nothing_is_made_up(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan made on the device has no causes, no bound and no alternatives; the explanation says so."""
    monkeypatch.setitem(__import__("sys").modules, "planner_api.embedded", None)
    explanation = agent.load(BRANCHING, background=False).explain(runs=1)
    assert explanation.lower_bound_us is None
    assert {row.cause for row in explanation.ops} == {"single"}
    assert all(row.next_best is None and "no planner" in row.why for row in explanation.ops)
    assert explanation.planned_us is None
    assert not explanation.planned


def test_a_network_that_runs_whole_says_why(agent: Agent) -> None:
    """Where nothing can be planned there are no rows, and the reason stands in their place."""
    nonzero = one_op_model("NonZero", shape=(1, 4))
    nonzero.graph.output[0].type.tensor_type.elem_type = 7
    nonzero.graph.output[0].type.tensor_type.ClearField("shape")
    session = agent.load(nonzero, background=False)
    explanation = session.explain(runs=1)
    assert explanation.answers == "whole:onnxruntime"
    assert explanation.ops == ()
    assert explanation.measured_us > 0
    assert "NonZero" in explanation.why
    assert "the whole network on onnxruntime" in repr(session)


def test_what_is_computed_in_parts_says_so(agent: Agent) -> None:
    """Parts of a cut op name their interval; what cuts out and puts together for them says that."""
    model = read_model(BRANCHING)
    cuts = [Cut(op="stem_r", axes=(1,), at=((3,),))]
    super_ops = merge(cut_graph(model.graph, cuts))
    where = ["ort@0"] * len(super_ops)
    plan = plan_of(model, super_ops, range(len(super_ops)), where, ("ort@0",), cuts)
    device = agent.device
    with Executor(build_program(plan, model, device.processors), device) as executor:
        explanation = explain(prepared_of({PLAN: executor}, {}, model), draw(model, 0), runs=1, notes=())
    said = {row.op: row.why for row in explanation.ops}
    assert "part 0 to 3 of 'stem_r' along axis 1" in said["stem_r[1:0:3]"]
    assert "part 3 to 8 of 'stem_r' along axis 1" in said["stem_r[1:3:8]"]
    assert "part 3 to 8" in said["stem[1:3:8]"]
    assert "one piece of memory" in said["stem_r"]
    assert not any(" of 'stem" in why for op, why in said.items() if not op.startswith("stem"))


def test_what_stays_whole_says_why(agent: Agent) -> None:
    """In a plan that splits others: the rule that forbids it, or that no split of it was worth its cost."""
    model = read_model(BRANCHING)
    cuts = [Cut(op="stem_r", axes=(1,), at=((3,),))]
    super_ops = merge(cut_graph(model.graph, cuts))
    plan = plan_of(model, super_ops, range(len(super_ops)), ["ort@0"] * len(super_ops), ("ort@0",), cuts)
    with Executor(build_program(plan, model, agent.device.processors), agent.device) as executor:
        explanation = explain(prepared_of({PLAN: executor}, {}, model), draw(model, 0), runs=1, notes=())
    whole = [row for row in explanation.ops if row.super_op in {op.id for op in merge(model.graph)} - {"stem_r"}]
    assert whole
    for row in whole:
        assert f"not split: {row.whole or 'no worthwhile split'}" in row.why

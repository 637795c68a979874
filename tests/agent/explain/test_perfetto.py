"""The trace: a slice per op within its segment, and the plan beside what was measured."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from agent_sdk import Agent
from agent_sdk.engine import Executor, build_program
from agent_sdk.engine.single import single_processor_plan
from agent_sdk.explain import to_perfetto
from agent_sdk.explain.perfetto import MEASURED, PLANNED
from agent_sdk.model.feeds import draw
from tests.agent.models import BRANCHING

Event = dict[str, Any]


@pytest.fixture
def made(returning_agent: Agent) -> tuple[Executor, list[Event]]:
    """The plan's executor, and a trace of it."""
    executor = returning_agent.load(BRANCHING, background=False).latest.plan_executor
    _, trace = executor.run(draw(executor.program.model, 0))
    return executor, to_perfetto(trace)["traceEvents"]


@pytest.mark.parametrize(("category", "track"), [("op", MEASURED), ("predicted op", PLANNED)])
def test_every_op_has_a_slice_of_its_name(category: str, track: int, made: tuple[Executor, list[Event]]) -> None:
    """Measured and planned, each op that is carried out stands once, by type and name, on its own track."""
    executor, events = made
    graph = executor.program.graph
    found = [event for event in events if event.get("cat") == category]
    carried = [op for segment in executor.program.segments for op in segment.ops]
    assert sorted(event["name"] for event in found) == sorted(f"{graph.op[op].type} {op}" for op in carried)
    assert {event["tid"] for event in found} == {track}


@pytest.mark.parametrize(("inner", "outer"), [("op", "segment"), ("predicted op", "predicted")])
def test_ops_fill_their_segment_and_never_leave_it(inner: str, outer: str, made: tuple[Executor, list[Event]]) -> None:
    """Slices nest, to the last digit that is written: viewers drop what overlaps."""
    _, events = made
    around: dict[tuple[int, int], Event] = {}
    filled: dict[tuple[int, int], float] = defaultdict(float)
    for event in events:
        track = (event["pid"], event["tid"])
        if event.get("cat") == outer:
            around[track] = event
        elif event.get("cat") == inner:
            # An op that rounds to nothing may stand where two slices meet: its own is the one written before it.
            home = around[track]
            assert home["ts"] <= event["ts"]
            assert round(event["ts"] + event["dur"], 3) <= round(home["ts"] + home["dur"], 3)
            filled[event["pid"], home["args"]["segment"]] += event["dur"]
    assert filled
    if inner == "op":
        whole = {(at["pid"], at["args"]["segment"]): at["dur"] for at in events if at.get("cat") == outer}
        assert filled == pytest.approx(whole, abs=0.01)


def test_the_plan_is_there_whatever_was_run(agent: Agent) -> None:
    """Where a single processor is faster, its run stands beside the plan and not beside itself."""
    session = agent.load(BRANCHING, background=False)
    plan, device = session.latest.plan_executor.program, session.latest.plan_executor.device
    model = session.latest.model
    single = single_processor_plan(model.graph, "ort@0", soc="here", frequency="now")
    with Executor(build_program(single, model, device.processors), device) as executor:
        _, trace = executor.run(draw(plan.model, 0))
    events = to_perfetto(trace, plan)["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    planned = {names[event["pid"]] for event in events if event.get("cat") == "predicted"}
    assert planned == set(plan.processors_used)
    assert {names[event["pid"]] for event in events if event.get("cat") == "segment"} == {"ort@0"}
    assert any("not the plan" in str(event["args"]) for event in events if event["name"] == "thread_name")

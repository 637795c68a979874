"""What sessions' own runs tell the planner: small, now and then, and behind the runs."""

from __future__ import annotations

import gc
import math
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from agent_sdk.agent import Agent
from agent_sdk.errors import WrongOutput
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.trial import PLAN
from agent_sdk.planner.client import PlannerClient
from agent_sdk.planner.field import SAMPLE, Field, Sample
from hope_schema import Job, MeasuredRun, PlanReply, PlanRequest
from tests.agent.journey.scripted import Scripted
from tests.agent.models import prepared_of
from tests.agent.planner.planner_double import ScriptedTransport, plan_answer, small_graph, small_plan
from tests.agent.threads import no_thread_left


def reply(version: int = 3) -> PlanReply:
    """A plan as it was served."""
    graph = small_graph()
    return PlanReply(
        plan_id="p-1", version=version, provisional=False, created_at=datetime.now(UTC), solve_us=1.0,
        plan=small_plan(graph),
    )  # fmt: skip


class Told:
    """Keeps what was sent."""

    def __init__(self) -> None:
        self.messages: list[list[MeasuredRun]] = []

    def __call__(self, measured: Sequence[MeasuredRun]) -> str:
        """Take a message."""
        self.messages.append(list(measured))
        return ""


def serving(sample: Sample, **own: Any) -> Prepared:
    """Contenders of which the plan is the fastest."""
    return prepared_of(own, {name: each.us for name, each in own.items()}, sample=sample)


def test_a_sample_is_the_median_of_the_plan_s_own_runs() -> None:
    """Nothing before there are enough of them, then one small message, and nothing again until it is time."""
    told = Told()
    field = Field(told)
    ours = serving(field.follow(reply()), plan=Scripted(100.0), a=Scripted(120.0))
    for _ in range(SAMPLE - 1):
        ours.run({})
    field.tell()
    assert told.messages == []
    ours.run({})
    field.tell()
    assert told.messages == [[MeasuredRun(plan_id="p-1", plan_version=3, measured_us=100.0, p99_us=100.0, runs=SAMPLE)]]
    for _ in range(3 * SAMPLE):
        ours.run({})
    field.tell()
    assert len(told.messages) == 1
    field.stop()


def test_runs_of_others_are_not_the_plan_s() -> None:
    """While a single processor answers, there is nothing to be said of the plan."""
    told = Told()
    field = Field(told)
    ours = serving(field.follow(reply()), plan=Scripted(500.0), a=Scripted(100.0))
    for _ in range(SAMPLE // 2):
        ours.run({})
    field.tell()
    assert told.messages == []
    field.stop()


def test_a_plan_that_fails_is_told_at_once() -> None:
    """Where another one answers what the plan could not; and where it cannot even be compiled, or is wrong."""
    told = Told()
    field = Field(told)
    ours = serving(field.follow(reply()), plan=Scripted(100.0, fails=True), a=Scripted(120.0))
    ours.run({})
    field.tell()
    assert told.messages.pop() == [MeasuredRun(plan_id="p-1", plan_version=3, measured_us=None, runs=0, failures=1)]
    assert ours.current != PLAN
    field.refuse(reply(4), MemoryError())
    field.refuse(reply(5), WrongOutput("far off"))
    field.tell()
    assert [(run.plan_version, run.failures, run.wrong) for run in told.messages.pop()] == [(4, 1, 0), (5, 0, 1)]
    field.tell()
    assert told.messages == []
    field.stop()


def test_a_closed_session_is_forgotten() -> None:
    """Nobody keeps the queue of a session that is gone."""
    told = Told()
    field = Field(told)
    sample = field.follow(reply())
    sample.extend([1.0] * SAMPLE)
    del sample
    gc.collect()
    field.tell()
    assert told.messages == []
    field.stop()


def test_a_run_never_waits_for_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a planner does not answer, runs go on, and closing does not wait for it either."""
    sending, answer = threading.Event(), threading.Event()

    def send(_measured: Sequence[MeasuredRun]) -> str:
        sending.set()
        assert answer.wait(30)
        return "no answer"

    monkeypatch.setattr("agent_sdk.planner.field.LOOK_S", 0.01)
    field = Field(send)
    sample = field.follow(reply())
    ours = serving(sample, plan=Scripted(100.0), a=Scripted(120.0))
    for _ in range(SAMPLE):
        ours.run({})
    assert sending.wait(10)
    for _ in range(SAMPLE):
        ours.run({})
    assert len(sample) == SAMPLE
    field.stop()
    answer.set()


def test_runs_that_timed_out_count_as_failures() -> None:
    """They have no time, and are not in the median."""
    sample = Sample(("p-1", 1))
    sample.extend([2.0, 4.0, math.inf, 6.0])
    taken = sample.taken(1.0)
    assert taken is not None
    assert (taken.measured_us, taken.runs, taken.failures) == (4.0, 3, 1)


def test_a_sample_says_its_longest_runs_and_its_missed_deadlines() -> None:
    """The 99th percentile is a run that was; a sample of deadlines alone is told too, for dropped runs have no time."""
    sample = Sample(("p-1", 1))
    sample.extend(float(us) for us in range(SAMPLE, 0, -1))
    sample.missed.extend([True, False, False])
    taken = sample.taken(1.0)
    assert taken is not None
    assert (taken.measured_us, taken.p99_us, taken.deadlines, taken.missed) == ((SAMPLE + 1) / 2, SAMPLE, 3, 1)
    dropped = Sample(("p-1", 1))
    dropped.missed.extend([True] * SAMPLE)
    dropped.append(1.0)  # the median of so few is no sample, and waits for the others
    taken = dropped.taken(1.0)
    assert taken is not None
    assert (taken.measured_us, taken.p99_us, taken.runs, taken.deadlines, taken.missed) == (
        None,
        None,
        0,
        SAMPLE,
        SAMPLE,
    )
    dropped.extend([2.0] * (SAMPLE - 1))
    taken = dropped.taken(dropped.due)
    assert taken is not None
    assert (taken.runs, taken.deadlines) == (SAMPLE, 0)


def test_all_who_run_a_version_are_told_of_together() -> None:
    """Two sessions of one plan: nothing of either is lost, and there is one report in its time; another has its own."""
    told = Told()
    field = Field(told)
    one, two, newer = field.follow(reply()), field.follow(reply()), field.follow(reply(version=4))
    one.missed.extend([True] * (SAMPLE // 2))
    two.missed.extend([False] * (SAMPLE // 2))
    newer.missed.append(True)
    field.tell()
    [[run]] = told.messages
    assert (run.plan_version, run.deadlines, run.missed) == (3, SAMPLE, SAMPLE // 2)


def test_without_a_planner_there_is_nobody_to_tell(tmp_path: Any) -> None:
    """An agent with the planner inside follows nothing."""
    with Agent(cache=tmp_path, processors="ort@0") as agent:
        assert agent._services.field is None


def test_requests_say_which_device_asks() -> None:
    """A planner that takes no tokens knows by that who belongs to a release."""
    transport = ScriptedTransport(plan_answer(small_plan()))
    request = PlanRequest(jobs=(Job(model_hash="0" * 64),), soc="soc", frequency="any")
    with PlannerClient("http://planner", device_id="device-7", transport=transport) as planner:
        planner.plan(request)
    assert transport.requests[0].headers["Hope-Device"] == "device-7"


def test_without_a_thread_left_plans_are_followed_all_the_same() -> None:
    """Nobody loses a plan for it; the next one that is followed has it told."""
    field = Field(Told())
    with no_thread_left("hope-field"):
        assert field.follow(reply()).version == ("p-1", 3)
    assert field._thread is None
    field.follow(reply(4))
    assert field._thread is not None
    field.stop()

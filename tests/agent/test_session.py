"""What a session does with plans and their rivals, at its start and while it serves."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent_sdk import Agent
from agent_sdk.cli.examine import examine
from agent_sdk.engine import Executor, Program, build_program
from agent_sdk.errors import (
    DeviceClosedError,
    InputError,
    OutOfMemory,
    RunTimeoutError,
    SegmentFailedError,
)
from agent_sdk.journey.opening import Opening
from agent_sdk.journey.rivals import compiled_singles, likeliest
from agent_sdk.journey.services import Services
from agent_sdk.journey.trial import PLAN, Trial, first_choice, hold_trial, plainest
from agent_sdk.journey.verify import Verdict, relative_error
from agent_sdk.machine.soc import read_soc
from agent_sdk.machine.witness import Witness
from agent_sdk.planner.client import ServedPlan
from hope_schema import Plan
from tests.agent.cores import GONE
from tests.agent.haste import measure_hastily
from tests.agent.models import BRANCHING, branching_model, expected, newer_plan


def test_a_new_start_neither_measures_nor_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first start found out about a plan serves the second one."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)
    with Agent(processors="ort", cache=tmp_path) as agent, agent.load(BRANCHING, background=False) as first:
        plan, chosen = first.plan, first.latest.current

    def never(*args: object, **kwargs: object) -> None:
        pytest.fail("the second start measured again")

    monkeypatch.setattr("agent_sdk.journey.opening.hold_trial", never)
    with Agent(processors="ort", cache=tmp_path) as agent, agent.load(BRANCHING, background=False) as second:
        assert (second.plan, second.latest.current) == (plan, chosen)
        assert second.latest.obtained.profiled_signatures == 0
        inputs, right = expected(BRANCHING, seed=2)
        assert relative_error(second.run(inputs), right) <= 1e-5


def test_what_was_found_while_disturbed_serves_until_it_is_calm(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial on a disturbed machine is not repeated while that is disturbed, and once it is calm it is."""
    trials: list[Trial] = []

    def counted(*given: Any) -> Trial:
        trials.append(hold_trial(*given))
        return trials[-1]

    monkeypatch.setattr("agent_sdk.journey.opening.hold_trial", counted)
    monkeypatch.setattr(Witness, "slowness", lambda self, *, rest=False: 2.0)
    for _ in range(2):
        with agent.load(BRANCHING, background=False) as disturbed:
            assert disturbed.latest.quiet_us == trials[0].us
    assert [trial.calm for trial in trials] == [False]
    measure_hastily(monkeypatch)
    for _ in range(2):
        with agent.load(BRANCHING, background=False) as steady:
            assert steady.latest.quiet_us == trials[1].us
    assert [trial.calm for trial in trials] == [False, True]


def test_a_plan_becomes_a_program_once(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cold or warm, waited for or behind, a load builds its plan's program once; asking for a newer one does not."""
    monkeypatch.setattr(Opening, "_asked_again", lambda *_: None)  # a plan that is far off is replaced at load
    built: list[int] = []

    def counted(plan: Plan, *given: Any) -> Program:
        built.append(plan.profile_version)
        return build_program(plan, *given)

    for place in ("journey.services", "journey.opening", "engine.single"):
        monkeypatch.setattr(f"agent_sdk.{place}.build_program", counted)
    for background in (False, False, True):
        built.clear()
        with agent.load(BRANCHING, background=background) as session:
            session.run(session.draw())
            assert session.wait(60)
            assert session.plan is not None
            taken_up = agent.refresh(session)
            assert sum(version > 0 for version in built) == 1 + taken_up


@pytest.mark.parametrize("better", [0, 1])
def test_of_the_plans_tried_the_best_stays(better: int, agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is asked for again with what was measured has to be faster beside the same rivals."""
    measure_hastily(monkeypatch)
    with agent.load(BRANCHING, background=False) as session:
        first = session.latest.obtained
        assert first.settled is None
        second = newer_plan(agent, session, "ort@0")
    replies = iter([second])
    hold = hold_trial

    def trial_of(contenders: Mapping[str, Executor], inputs: Mapping[str, np.ndarray]) -> Trial:
        found = hold(contenders, inputs)
        place = int(contenders[PLAN].program.plan == second.plan)
        return replace(found, us=dict.fromkeys(found.us, 100.0) | {PLAN: 50.0 if place == better else 70.0})

    monkeypatch.setattr(Services, "obtain", lambda *_, **__: first)
    monkeypatch.setattr(Opening, "_asked_again", lambda self, trial: next(replies, None))
    monkeypatch.setattr("agent_sdk.journey.opening.hold_trial", trial_of)
    with agent.load(BRANCHING, background=False) as session:
        assert session.latest.obtained.plan == (first, second)[better].plan
        assert session.latest.plan_executor.program.plan == session.latest.obtained.plan
        assert session.latest.quiet_us[PLAN] == 50.0


def test_a_plan_does_not_compete_with_its_copy(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan on one processor is compiled once, and is what ``--compare`` reports for that processor."""
    with agent.load(BRANCHING, background=False) as session:
        newer = newer_plan(agent, session, "ort@0")
    monkeypatch.setattr(Services, "obtain", lambda *_, **__: newer)
    with agent.load(BRANCHING, all_rivals=True, background=False) as session:
        rivals = session.latest.contenders.keys() - {PLAN}
        assert PLAN in session.latest.contenders
        assert "ort@0" not in rivals
        report, _ = examine(agent, session, session.draw(), runs=3, compare=True)
    assert report.baselines_us["ort@0"] == report.plan_measured_us
    assert report.baselines_us.keys() == rivals | {"ort@0"}


def test_a_plan_that_fails_while_it_is_timed_is_not_reported_as_executed(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names what answered instead, and says why."""

    def fail(*args: object, **kwargs: object) -> None:
        raise SegmentFailedError("ort@1", 0, ("op",), MemoryError("no room"))

    with agent.load(BRANCHING, all_rivals=True, background=False) as session:
        monkeypatch.setattr(session.latest.plan_executor, "run", fail)
        monkeypatch.setattr("agent_sdk.journey.prepared.Judge.verdict", lambda *given: Verdict(0.0, 1e-3, "nothing"))
        report, _ = examine(agent, session, session.draw(), runs=3, compare=False)
        assert report.executed != PLAN
    assert any(note.startswith("the plan failed") for note in report.notes)


def test_few_rivals_stay_after_the_first_trial(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the plan only the fastest and plain runtimes are kept, unless all are to be compared."""
    with agent.load(BRANCHING, all_rivals=True, background=False) as session:
        newer = newer_plan(agent, session, "ort@0")
        assert "onnxruntime" in session.latest.contenders
    monkeypatch.setattr("agent_sdk.journey.opening.RIVALS", 1)
    monkeypatch.setattr(Services, "obtain", lambda *_, **__: newer)
    with agent.load(BRANCHING, background=False) as session:
        kept, us = session.latest.contenders.keys(), session.latest.quiet_us
        assert kept == {PLAN, first_choice(us), *plainest(us)}
        assert "onnxruntime" in kept


def test_rivals_are_chosen_within_the_memory_there_is(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one model fits beside the plan, one rival is compiled: the likeliest."""
    compiled = []
    monkeypatch.setattr("agent_sdk.journey.opening.copies_at_once", lambda model: 2)

    def noted(names: list[str], *rest: Any) -> Any:
        compiled.append(names)
        return compiled_singles(names, *rest)

    monkeypatch.setattr("agent_sdk.journey.opening.compiled_singles", noted)
    agent.load(BRANCHING, background=False).close()
    assert [len(names) for names in compiled] == [1]


def test_a_whole_network_holds_the_cores(returning_agent: Agent) -> None:
    """It runs when nobody else computes on them, and meanwhile nobody else does."""
    inputs, right = expected(BRANCHING, seed=1)
    device = returning_agent.device
    with returning_agent.load(BRANCHING) as session, ThreadPoolExecutor(1) as pool:
        session.run(inputs)
        whole = session.plans.whole.get()
        with device.held(device.processors["ort@0"]):
            waiting = pool.submit(whole.run, inputs)
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
        assert relative_error(waiting.result(60.0), right) < 1e-4
        busy: list[tuple[str, ...]] = []
        own = whole.session
        whole._session = SimpleNamespace(run=lambda *given: busy.append(device.arbiter.busy) or own.run(*given))
        whole.run(inputs)
    assert set(busy[0]) >= set(device.processors["ort@0"].spec.resources)


def test_several_runs_of_a_session_are_under_way_at_once(returning_agent: Agent) -> None:
    """As many as are asked for, by everybody who may answer; no number is one that cannot be had."""
    for wrong in (0, 1000, 1.5):
        with pytest.raises(InputError, match=f"in_flight is {wrong}; from 1 to"):
            returning_agent.load(BRANCHING, in_flight=wrong)  # type: ignore[arg-type]
    inputs, right = expected(BRANCHING, seed=1)
    with returning_agent.load(BRANCHING, background=False, in_flight=3) as session, ThreadPoolExecutor(6) as pool:
        assert {each.in_flight for each in session.latest.contenders.values()} == {3}
        for found in pool.map(lambda _: session.run(inputs), range(60)):
            assert relative_error(found, right) < 1e-4


@pytest.mark.parametrize("calm", [True, False])
def test_a_disturbed_trial_asks_for_nothing(agent: Agent, monkeypatch: pytest.MonkeyPatch, calm: bool) -> None:
    """However far a plan was off: what a disturbed machine shows is neither fed back nor kept, and asks for nothing."""
    sent: list[Any] = []
    monkeypatch.setattr("agent_sdk.journey.opening.is_outdated", lambda *_: True)
    monkeypatch.setattr("agent_sdk.journey.opening.RUNS", 1)
    monkeypatch.setattr("agent_sdk.journey.opening.hold_trial", lambda *given: replace(hold_trial(*given), calm=calm))
    monkeypatch.setattr(agent._supplier, "upload", lambda measured: sent.append(measured) or "not now")
    agent.load(BRANCHING, background=False).close()
    assert bool(sent) is calm
    assert bool(agent._services.trials.of_others()) is calm


def test_a_session_answers_in_both_forms_without_blocking(returning_agent: Agent) -> None:
    """``arun(feed)`` by name, ``arun(None, feed)`` as a list, as ``run`` does."""
    inputs, right = expected(BRANCHING, seed=1)
    with returning_agent.load(BRANCHING) as session:
        named = asyncio.run(session.arun(inputs))
        listed = asyncio.run(session.arun(None, inputs))
    assert relative_error(named, right) < 1e-4
    assert relative_error(dict(zip(named, listed, strict=True)), right) < 1e-4


def test_a_rival_that_lacks_memory_costs_no_plan(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan answers without it."""
    lacking = []

    def refuse(model: Any, processor: Any, *_: Any) -> Any:
        lacking.append(processor.id)
        raise MemoryError

    monkeypatch.setattr("agent_sdk.journey.rivals.whole_run", refuse)
    with agent.load(BRANCHING, background=False) as session:
        assert lacking
        assert list(session.latest.contenders) == [PLAN]
        assert session.run(session.draw())


def test_a_load_that_fails_frees_what_was_compiled(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the failure comes while rivals are compiled, beside a plan that is ready."""
    opened = []

    def fail(*_: Any) -> Any:
        opened.extend(one for one in gc.get_objects() if isinstance(one, Executor))
        raise RuntimeError("in the middle")

    monkeypatch.setattr("agent_sdk.journey.opening.compiled_singles", fail)
    before = {id(one) for one in gc.get_objects() if isinstance(one, Executor)}
    with agent.load(BRANCHING, background=False) as session:
        (note,) = session.notes
        assert "in the middle" in note
    ours = [one for one in opened if id(one) not in before]
    assert ours
    assert all(executor._closed for executor in ours)


def test_one_of_few_rivals_leaves_a_core_to_others(agent: Agent) -> None:
    """Beside other work one core may be best, however slow it was on its own: the fastest of them is kept."""
    found = {"plan": 1.0, "ov@0-1": 2.0, "ort@0-1": 3.0, "ov@0": 5.0, "ort@0": 4.0}
    cores = ["ort@0", "ov@0"]
    spec = agent.device.processors["ort@0"].spec
    wide = spec.model_copy(update={"resources": (*spec.resources, "another")})
    processors: dict[str, Any] = {name: SimpleNamespace(spec=spec if name in cores else wide) for name in found}
    del processors["plan"]
    assert likeliest(found, processors, 3) == ["ov@0-1", "ort@0-1", "ort@0"]
    assert likeliest(found, processors, 2) == ["ov@0-1", "ort@0"]
    assert likeliest(found, processors, 1) == ["ov@0-1"]
    assert likeliest(found | {"ort@0": 2.5}, processors, 2) == ["ov@0-1", "ort@0"]
    assert likeliest(found, {"ov@0-1": processors["ov@0-1"]}, 2) == ["ov@0-1"]


NO_ROOM: tuple[Exception, ...] = (
    OutOfMemory("ort@1: no room"),
    SegmentFailedError("ort@1", 0, ("op",), MemoryError("no room")),
    DeviceClosedError("a runtime still hangs, no room"),
    RunTimeoutError("the run took longer than allowed, no room"),
)
"""What a run raises; compiling may also fail with what Python raises."""


@pytest.mark.parametrize(
    ("step", "failure"),
    [
        *(("run", failure) for failure in NO_ROOM),
        *(("compile", failure) for failure in (*NO_ROOM, MemoryError("no room"))),
    ],
)
def test_a_plan_that_cannot_run_falls_back(
    step: str, failure: Exception, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a plan's processor fails while compiling or as soon as it runs, the best single one answers, and says so."""
    real = Executor.run

    def fail(*args: object, **kwargs: object) -> Any:
        raise failure

    def run(self: Executor, *args: Any, **kwargs: Any) -> Any:
        return fail() if self.program.plan.profile_version else real(self, *args, **kwargs)

    if step == "compile":
        monkeypatch.setattr("agent_sdk.journey.opening.Executor", fail)
    else:
        monkeypatch.setattr(Executor, "run", run)
    inputs, right = expected(BRANCHING, seed=4)
    with agent.load(BRANCHING, background=False) as session:
        assert PLAN not in session.latest.contenders
        assert any("no room" in note for note in session.notes)
        assert relative_error(session.run(inputs), right) <= 1e-5


def test_who_answers_otherwise_than_onnx_runtime_does_not_answer(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast it is: a hundredth off is no rounding of float32. The note says how far off; the others answer."""
    real = Executor.run

    def run(self: Executor, *args: Any, **kwargs: Any) -> Any:
        outputs, trace = real(self, *args, **kwargs)
        off = 1.01 if self.program.plan.profile_version else 1.0
        return {name: value * off for name, value in outputs.items()}, trace

    monkeypatch.setattr(Executor, "run", run)
    inputs, right = expected(BRANCHING, seed=4)
    with agent.load(BRANCHING, background=False) as session:
        assert PLAN not in session.latest.contenders
        assert any("away from ONNX Runtime's" in note for note in session.notes)
        assert relative_error(session.run(inputs), right) <= 1e-5


def test_answers_too_far_apart_for_a_switch_are_kept_to(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right in float32, yet more than 1e-4 from another runtime's: the plan does not take over, nor anybody from it."""
    real = Executor.run

    def run(self: Executor, *args: Any, **kwargs: Any) -> Any:
        outputs, trace = real(self, *args, **kwargs)
        off = 1 + 3e-4 if self.program.plan.profile_version else 1.0
        return {name: value * off for name, value in outputs.items()}, trace

    monkeypatch.setattr(Executor, "run", run)
    with agent.load(BRANCHING, background=False) as session:
        assert session.latest.pinned
        assert any("lie between the runtimes' answers" in note for note in session.notes)
    with agent.load(branching_model(channels=4).SerializeToString()) as session:
        session.run(session.draw())
        assert session.wait(120)
        assert "goes on answering, because others would round differently" in session.notes[0]
        assert not session.plans.ready()


def test_a_core_that_goes_offline_costs_no_request(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the kernel takes a core away, the request that needs it is answered elsewhere, as are all later ones."""
    inputs, right = expected(BRANCHING, seed=4)
    with agent.load(BRANCHING, background=False) as session:
        newer = newer_plan(agent, session, "ort@1")
    assert newer.served is not None
    reply = newer.served.reply
    steps = [
        step.model_copy(update={"processor": f"ort@{int(step.id == reply.plan.order[0])}"}) for step in reply.plan.steps
    ]
    both = reply.plan.model_copy(update={"steps": tuple(steps), "processors": ("ort@0", "ort@1")})
    reply = reply.model_copy(update={"plan": both})  # bound to its cores: on a single one it may move away
    newer = replace(newer, served=ServedPlan(reply=reply, etag='"2"'))
    monkeypatch.setattr(Services, "obtain", lambda *_, **__: newer)
    bind = os.sched_setaffinity
    monkeypatch.setattr(agent.device, "cores", frozenset())  # beside others' work threads would not be bound to theirs

    def refuse(thread: int, cores: Iterable[int]) -> None:
        if set(cores) == {1}:
            raise OSError(errno.EINVAL, "Invalid argument")
        bind(thread, cores)

    with agent.load(BRANCHING, background=False) as session:
        prepared = session.latest
        prepared.current = PLAN
        monkeypatch.setattr(os, "sched_setaffinity", refuse)
        for _ in range(3):
            assert relative_error(session.run(inputs), right) <= 1e-5
        assert PLAN not in prepared.contenders
        assert "cpu1: this process may not run there" in prepared.changes[-1]


def test_a_core_that_is_gone_when_loading_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can neither be profiled nor tried: what is there answers, and why the other one does not is said."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)
    here = read_soc()
    monkeypatch.setattr(
        "agent_sdk.agent.read_soc", lambda: replace(here, core_class={**here.core_class, GONE: "other"})
    )
    inputs, right = expected(BRANCHING, seed=4)
    with (
        Agent(processors=f"ort@0,ort@{GONE}", cache=tmp_path) as agent,
        agent.load(BRANCHING, background=False) as session,
    ):
        assert session.latest.executor.program.processors_used == ("ort@0",)
        assert any(f"cpu{GONE}: " in text for text in session.notes)
        assert relative_error(session.run(inputs), right) <= 1e-5

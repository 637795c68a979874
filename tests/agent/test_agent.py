"""The façade in Python: load, run from many threads, refresh, and leave nothing behind."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import agent_sdk
from agent_sdk import Agent, Session, errors
from agent_sdk.client import ServedPlan
from agent_sdk.contest import PLAN, Contest
from agent_sdk.embedded import embedded_client
from agent_sdk.engine import Executor, SegmentFailedError
from agent_sdk.errors import ExecutionError
from agent_sdk.examine import examine
from agent_sdk.identity import device_id, store_token, stored_token
from agent_sdk.obtain import Obtained
from agent_sdk.processors import OutOfMemory
from agent_sdk.reader import read_model
from agent_sdk.session import likeliest
from agent_sdk.single import single_processor_plan
from agent_sdk.soc import read_soc
from agent_sdk.steady import Witness
from agent_sdk.verify import random_inputs, reference, relative_error
from hope_schema import MissingRequest, PlanReply, PlanRequest
from tests.agent.cores import GONE
from tests.agent.haste import measure_hastily
from tests.agent.models import branching_model

MODEL = branching_model().SerializeToString()
OTHER = branching_model(channels=4).SerializeToString()


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """An agent on ONNX Runtime's processors with an embedded planner and an empty cache."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path))
    measure_hastily(monkeypatch)
    with Agent(processors="ort") as made:
        yield made


def expected(source: bytes, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return inputs and what the whole model makes of them."""
    model = read_model(source)
    inputs = random_inputs(model.graph, seed)
    return inputs, reference(model, inputs, model.graph.outputs)


def test_the_public_names_are_these() -> None:
    """What the package offers is listed, importable, and nothing else."""
    assert set(agent_sdk.__all__) == {"Agent", "PlannerClient", "Session"}
    assert all(getattr(agent_sdk, name).__name__ == name for name in agent_sdk.__all__)
    with pytest.raises(AttributeError, match="Nothing"):
        agent_sdk.Nothing  # noqa: B018


@pytest.mark.parametrize("kind", ["path", "text", "bytes", "proto"])
def test_a_model_may_come_in_any_form(kind: str, agent: Agent, tmp_path: Path) -> None:
    """A path, its text, the bytes and the proto of one model give one answer."""
    path = tmp_path / "model.onnx"
    path.write_bytes(MODEL)
    source = {"path": path, "text": str(path), "bytes": MODEL, "proto": onnx.load_from_string(MODEL)}[kind]
    inputs, right = expected(MODEL, seed=1)
    with agent.load(source) as session:
        assert relative_error(session.run(inputs), right) <= 1e-5


def test_sessions_run_at_once_from_many_threads(agent: Agent) -> None:
    """Two sessions of one agent, run from eight threads with different inputs, each answer right every time."""
    cases = [(source, *expected(source, seed)) for source in (MODEL, OTHER) for seed in range(4)]
    with agent.load(MODEL) as one, agent.load(OTHER) as two, ThreadPoolExecutor(8) as pool:
        sessions = {MODEL: one, OTHER: two}

        def check(index: int) -> float:
            source, inputs, right = cases[index % len(cases)]
            return relative_error(sessions[source].run(inputs), right)

        assert max(pool.map(check, range(64))) <= 1e-5


def test_a_new_start_neither_measures_nor_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the first start found out about a plan serves the second one."""
    from agent_sdk import session as session_module

    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)
    with Agent(processors="ort", cache=tmp_path) as agent, agent.load(MODEL) as first:
        plan, chosen = first.plan, first.contest.current

    def never(*args: object, **kwargs: object) -> None:
        pytest.fail("the second start measured again")

    monkeypatch.setattr(session_module, "remeasure", never)
    monkeypatch.setattr(session_module.Contest, "trial", never)
    with Agent(processors="ort", cache=tmp_path) as agent, agent.load(MODEL) as second:
        assert (second.plan, second.contest.current) == (plan, chosen)
        assert second.obtained.profiled_signatures == 0
        inputs, right = expected(MODEL, seed=2)
        assert relative_error(second.run(inputs), right) <= 1e-5


def test_memory_is_settled_before_the_first_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Huge pages are made once a network has run, before it is timed, and at a new start before it serves."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)
    events: list[object] = []
    run, trial = Executor.run, Contest.trial

    def noted_run(executor: Executor, *args: Any, **kwargs: Any) -> Any:
        events.append(executor)
        return run(executor, *args, **kwargs)

    def noted_trial(contest: Contest, *args: Any) -> Any:
        events.append(set(contest.contenders.values()))
        return trial(contest, *args)

    monkeypatch.setattr(Executor, "run", noted_run)
    monkeypatch.setattr(Contest, "trial", noted_trial)
    for module in ("agent_sdk.truth", "agent_sdk.contest"):
        monkeypatch.setattr(f"{module}.collapse", lambda: events.append("collapse"))
    with Agent(processors="ort", cache=tmp_path) as agent, agent.load(MODEL):
        at = next(index for index, event in enumerate(events) if isinstance(event, set))
        tried = events[at + 1 :]
        first = tried.index("collapse")
        assert "collapse" in events[:at]
        assert set(tried[:first]) == events[at]
        assert len(tried) > first + 7
    events.clear()
    with Agent(processors="ort", cache=tmp_path) as agent, agent.load(MODEL) as session:
        assert set(events[:-1]) == set(session.contest.contenders.values())
        assert events[-1] == "collapse"


def test_what_was_found_while_disturbed_is_not_kept(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial during which the cores were not steady is held again at the next start."""
    monkeypatch.setattr(Witness, "steadily", lambda self, call, deadline: (call(), False))
    with agent.load(MODEL):
        pass
    measure_hastily(monkeypatch)
    with agent.load(MODEL) as disturbed:
        assert disturbed.obtained.settled is None
    with agent.load(MODEL) as steady:
        assert steady.obtained.settled is not None


def newer_plan(agent: Agent, session: Session, processor: str) -> Obtained:
    """What the planner would answer if it now thought everything best on one processor."""
    served = session.obtained.served
    assert served is not None
    soc = agent.soc
    moved = single_processor_plan(
        session.model.graph, processor, soc=soc.name, frequency=soc.frequency, latency_us=10.0
    )
    reply = PlanReply(**{**dict(served.reply), "version": served.reply.version + 1, "plan": moved})
    return replace(session.obtained, plan=moved, served=ServedPlan(reply, '"2"', "hit"), settled=None)


def test_a_plan_does_not_compete_with_its_copy(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan on one processor is compiled once, and is what ``--compare`` reports for that processor."""
    with agent.load(MODEL) as session:
        newer = newer_plan(agent, session, "ort@0")
    monkeypatch.setattr(agent, "obtain", lambda model, renew=False: newer)
    with agent.load(MODEL, all_rivals=True) as session:
        rivals = session.contest.contenders.keys() - {PLAN}
        assert PLAN in session.contest.contenders
        assert "ort@0" not in rivals
        report, _ = examine(session, runs=3, compare=True, seed=0)
    assert report.baselines_us["ort@0"] == report.plan_measured_us
    assert report.baselines_us.keys() == rivals | {"ort@0"}


def test_a_plan_that_fails_while_it_is_timed_is_not_reported_as_executed(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The report names what answered instead, and says why."""

    def fail(*args: object, **kwargs: object) -> None:
        raise SegmentFailedError("ort@1", 0, ("op",), MemoryError("no room"))

    with agent.load(MODEL, all_rivals=True) as session:
        monkeypatch.setattr(session.plan_executor, "run", fail)
        monkeypatch.setattr("agent_sdk.examine.answer_error", lambda *given: 0.0)
        report, _ = examine(session, runs=3, compare=False, seed=0)
        assert report.executed == session.contest.current != PLAN
    assert any(note.startswith("the plan failed") for note in report.notes)


def test_few_rivals_stay_after_the_first_trial(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the plan only the fastest single processors are kept, unless all are to be compared."""
    from agent_sdk import session as session_module

    monkeypatch.setattr(session_module, "RIVALS", 1)
    with agent.load(MODEL, all_rivals=True) as session:
        newer = newer_plan(agent, session, "ort@0")
        everyone = session.contest.contenders
    monkeypatch.setattr(agent, "obtain", lambda model, renew=False: newer)
    with agent.load(MODEL) as session:
        assert len(session.contest.contenders) == min(2, len(everyone))


def test_rivals_are_chosen_within_the_memory_there_is(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two models fit beside the plan, two rivals are chosen at the next start: not three, and one left out."""
    from agent_sdk import session as session_module

    agent.load(MODEL).close()
    asked = []
    monkeypatch.setattr(session_module, "copies_at_once", lambda model: 3)
    monkeypatch.setattr(
        session_module, "likeliest", lambda found, there, most: asked.append(most) or likeliest(found, there, most)
    )
    agent.load(MODEL).close()
    assert asked == [2]


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


def test_a_refresh_takes_up_a_newer_plan_while_runs_go_on(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A better plan replaces the old one under running requests, none of which fails or answers wrongly."""
    inputs, right = expected(MODEL, seed=3)
    with agent.load(MODEL) as session:
        assert session.refresh() is False
        newer = newer_plan(agent, session, "ort@0")
        monkeypatch.setattr(agent, "obtain", lambda model, renew=False: newer)
        stop = threading.Event()
        worst: list[float] = []

        def keep_running() -> None:
            while not stop.is_set():
                worst.append(relative_error(session.run(inputs), right))

        threads = [threading.Thread(target=keep_running) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            assert session.refresh() is True
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert session.plan == newer.plan
        assert max(worst) <= 1e-5
        assert relative_error(session.run(inputs), right) <= 1e-5


@pytest.mark.parametrize(
    ("step", "failure"),
    [
        ("Session._compiled", OutOfMemory("ort@1: no room")),
        ("remeasure", SegmentFailedError("ort@1", 0, ("op",), MemoryError("no room"))),
        ("Session._compiled", MemoryError("no room")),
    ],
)
def test_a_plan_that_cannot_run_falls_back(
    step: str, failure: Exception, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a plan's processor fails while compiling or as soon as it runs, the best single one answers, and says so."""

    def fail(*args: object, **kwargs: object) -> None:
        raise failure

    monkeypatch.setattr(f"agent_sdk.session.{step}", fail)
    inputs, right = expected(MODEL, seed=4)
    with agent.load(MODEL) as session:
        assert PLAN not in session.contest.contenders
        assert any("no room" in note for note in session.notes)
        assert relative_error(session.run(inputs), right) <= 1e-5


def test_a_core_that_goes_offline_costs_no_request(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the kernel takes a core away, the request that needs it is answered elsewhere, as are all later ones."""
    inputs, right = expected(MODEL, seed=4)
    with agent.load(MODEL) as session:
        newer = newer_plan(agent, session, "ort@1")
    assert newer.plan is not None
    steps = [
        step.model_copy(update={"processor": f"ort@{int(step.id == newer.plan.order[0])}"}) for step in newer.plan.steps
    ]
    both = newer.plan.model_copy(update={"steps": tuple(steps), "processors": ("ort@0", "ort@1")})
    newer = replace(newer, plan=both)  # one that is bound to its cores: on a single one it may move away
    monkeypatch.setattr(agent, "obtain", lambda model, renew=False: newer)
    bind = os.sched_setaffinity

    def refuse(thread: int, cores: Iterable[int]) -> None:
        if set(cores) == {1}:
            raise OSError(errno.EINVAL, "Invalid argument")
        bind(thread, cores)

    with agent.load(MODEL) as session:
        contest = session.contest
        contest.recall({name: 1.0 if name == PLAN else 2.0 for name in contest.contenders})
        monkeypatch.setattr(os, "sched_setaffinity", refuse)
        for _ in range(3):
            assert relative_error(session.run(inputs), right) <= 1e-5
        assert PLAN not in contest.contenders
        assert "cpu1: this process may not run there" in contest.changes[-1]


def test_a_core_that_is_gone_when_loading_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can neither be profiled nor tried: what is there answers, and why the other one does not is said."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)
    here = read_soc()
    monkeypatch.setattr(
        "agent_sdk.agent.read_soc", lambda: replace(here, core_class={**here.core_class, GONE: "other"})
    )
    inputs, right = expected(MODEL, seed=4)
    with Agent(processors=f"ort@0,ort@{GONE}", cache=tmp_path) as agent, agent.load(MODEL) as session:
        assert session.executor.program.processors_used == ("ort@0",)
        assert any(f"cpu{GONE}: " in text for text in (*session.notes, *session.contest.changes))
        assert relative_error(session.run(inputs), right) <= 1e-5


def test_a_failed_refresh_changes_nothing_and_is_repeated(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a newer plan needs may be missing for a moment: the old one answers on, and the next refresh tries again."""
    inputs, right = expected(MODEL, seed=4)
    with agent.load(MODEL) as session:
        before = (session.obtained, session.plan, session.contest, session.notes)
        newer = newer_plan(agent, session, "ort@0")
        monkeypatch.setattr(agent, "obtain", lambda model, renew=False: newer)
        compiled = session._compiled
        monkeypatch.setattr(session, "_compiled", lambda plan: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            session.refresh()
        assert (session.obtained, session.plan, session.contest, session.notes) == before
        assert relative_error(session.run(inputs), right) <= 1e-5
        monkeypatch.setattr(session, "_compiled", compiled)
        assert session.refresh() is True
        assert session.plan == newer.plan


def test_an_old_plan_that_hangs_keeps_no_new_one_away(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh has succeeded once the new plan is in place, also where the old one cannot be freed."""
    inputs, right = expected(MODEL, seed=4)
    with agent.load(MODEL) as session:
        newer = newer_plan(agent, session, "ort@0")
        monkeypatch.setattr(agent, "obtain", lambda model, renew=False: newer)
        old = session.contest
        close = old.close

        def hang() -> None:
            raise ExecutionError("a run of this session hangs")

        monkeypatch.setattr(old, "close", hang)
        assert session.refresh() is True
        assert session.plan == newer.plan
        assert any("hangs" in note for note in session.notes)
        assert relative_error(session.run(inputs), right) <= 1e-5
        close()


def test_a_table_of_two_rows_can_be_loaded(agent: Agent) -> None:
    """The rehearsal's own indices fit the smallest tables in use, e.g. of token types."""
    infos = [
        helper.make_tensor_value_info("i", TensorProto.INT64, [1, 64]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    table = numpy_helper.from_array(np.arange(8, dtype=np.float32).reshape(2, 4), "table")
    nodes = [helper.make_node("Gather", ["table", "i"], ["g"], axis=0), helper.make_node("Relu", ["g"], ["y"])]
    graph = helper.make_graph(nodes, "tokens", infos[:1], infos[1:], [table])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with agent.load(proto) as session:
        assert session.run({"i": np.ones((1, 64), np.int64)})["y"].shape == (1, 64, 4)


def test_wrong_inputs_are_refused_and_the_next_run_works(agent: Agent) -> None:
    """A missing, misshapen or unknown input is one clear error, and the session goes on."""
    inputs, right = expected(MODEL, seed=5)
    with agent.load(MODEL) as session:
        for bad in ({}, {"x": inputs["x"][:, :2]}, {"x": inputs["x"].astype(np.float64)}, {**inputs, "z": inputs["x"]}):
            with pytest.raises(errors.InputError):
                session.run(bad)
        assert relative_error(session.run(inputs), right) <= 1e-5


def test_closing_ends_every_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ``close`` no thread of ours is left, a second close is harmless, and a run says that it is closed."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)
    before = set(threading.enumerate())
    agent = Agent(processors="ort", cache=tmp_path)
    session = agent.load(MODEL)
    inputs, _ = expected(MODEL, seed=0)
    session.run(inputs)
    agent.close()
    agent.close()
    with pytest.raises(errors.ExecutionError, match="closed"):
        session.run(inputs)
    left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("hope-")]
    assert left == []


def test_a_planner_that_cannot_start_is_a_stated_fallback(tmp_path: Path) -> None:
    """A damaged planner database costs the plan, not the run."""
    (tmp_path / "planner.sqlite").write_bytes(b"this is no database" * 1000)
    with Agent(processors="ort@0", cache=tmp_path) as agent, agent.load(MODEL) as session:
        assert session.obtained.source == "single"
        assert "planner.sqlite" in session.notes[0]
        assert "best single processor" in session.notes[0]
        inputs, right = expected(MODEL, seed=6)
        assert relative_error(session.run(inputs), right) <= 1e-5


def test_the_async_client_speaks_to_the_real_app(tmp_path: Path) -> None:
    """The client's verbs and the planner's app agree over ASGI: submit, ask what is missing, be refused."""
    graph = read_model(MODEL).graph
    with Agent(processors="ort@0", cache=tmp_path) as agent:
        specs = tuple(processor.spec for processor in agent.device.processors.values())
    request = MissingRequest(
        model_hash=graph.model_hash, soc="test-soc", frequency="any", device_id="test", processors=specs
    )

    async def talk() -> None:
        async with embedded_client(tmp_path / "other.sqlite") as client:
            with pytest.raises(errors.ModelUnknownError):
                await client.missing(request)
            receipt = await client.submit_model(graph)
            assert (receipt.model_hash, receipt.created) == (graph.model_hash, True)
            assert (await client.submit_model(graph)).created is False
            assert await client.model(graph.model_hash) == graph
            missing = await client.missing(request)
            assert len(missing.latencies) > 0
            wanted = PlanRequest(model_hash=graph.model_hash, soc="test-soc", frequency="any")
            with pytest.raises(errors.NotFoundError, match="test-soc") as caught:
                await client.plan(wanted)
            assert caught.value.request_id

    asyncio.run(talk())


def test_the_device_keeps_its_name_and_tokens(tmp_path: Path) -> None:
    """The id is made once; a damaged one is replaced; tokens are per planner and readable by their owner alone."""
    first = device_id(tmp_path)
    assert device_id(tmp_path) == first
    (tmp_path / "device-id").write_text("../../etc/passwd")
    assert device_id(tmp_path) not in (first, "../../etc/passwd")
    path = store_token(tmp_path, "http://one:8000/", "secret")
    assert stored_token(tmp_path, "http://one:8000") == "secret"
    assert stored_token(tmp_path, "http://two:8000") is None
    if sys.platform != "win32":
        assert path.stat().st_mode & 0o077 == 0

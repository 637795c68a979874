"""A network cut into pieces on a core group: where it is cut, what it answers, and who steps in at its borders."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from agent_sdk import Agent
from agent_sdk.engine import Device, Executor
from agent_sdk.engine.arbiter import Hold
from agent_sdk.engine.single import whole_run
from agent_sdk.engine.turn import Turn
from agent_sdk.errors import ExecutionError, FeedError, HostLate, ProcessorLost, RunTimeoutError, SegmentFailedError
from agent_sdk.journey import prepared
from agent_sdk.model import read_model
from agent_sdk.model.feeds import draw
from agent_sdk.scheduling import groups
from agent_sdk.scheduling.groups import MOST_FINE, PIECE_US, borders, pieces
from agent_sdk.scheduling.network import Network
from agent_sdk.scheduling.policies import policy
from agent_sdk.scheduling.scheduler import Scheduler
from hope_schema import merge
from tests.agent.models import chain_model
from tests.agent.test_session_shapes import until

MS = 1_000_000
CHAIN = chain_model(4, 8, 4, 8, 4).SerializeToString()


@pytest.mark.parametrize("name", ["squeezenet", "inception_v1", "resnet50"])
def test_a_network_is_cut_where_one_tensor_crosses(name: str) -> None:
    """At every border one tensor is made before it and read behind it."""
    graph = read_model(name).graph
    super_ops = merge(graph)
    cut = borders(graph)
    assert 0 < len(cut) <= MOST_FINE
    for border in cut:
        made = {out for each in super_ops[:border] for out in each.outputs}
        assert len(made & {read for each in super_ops[border:] for read in each.inputs}) == 1


def test_pieces_are_as_long_as_was_measured() -> None:
    """However a network's time is spread over its fine pieces, each that is kept lasts as long as one should."""
    fine = [3, 5, 8, 9]
    for took, kept in (
        ([1, 1, 1, 1, 1], [5, 9]),
        ([9, 1, 1, 1, 1], [3, 8]),
        ([1, 1, 1, 1, 9], [5, 9]),
        ([1, 0, 0, 0, 9], []),
    ):
        assert pieces(fine, took, sum(took) * PIECE_US / 2) == kept
    assert pieces(fine, [1, 1, 1, 1, 1], 1.9 * PIECE_US) == []
    assert pieces([], [], 50 * PIECE_US) == []


def test_pieces_compute_what_the_whole_computes(core: Device) -> None:
    """A run in pieces is a segment for each, in order of the planned times, and its answer is the whole's."""
    model = read_model("squeezenet")
    feed = draw(model, 0)
    name = next(iter(core.processors))
    cut = borders(model.graph)[::5]
    with (
        whole_run(model, core.processors[name], core) as whole,
        whole_run(model, core.processors[name], core, borders=cut, latency_us=5 * PIECE_US) as pieces,
    ):
        segments = pieces.program.segments
        assert len(whole.program.segments) == 1
        assert [segment.steps[0] for segment in segments] == [0, *cut]
        assert all(one.finish_us == other.start_us for one, other in pairwise(segments))
        assert segments[-1].finish_us == pytest.approx(5 * PIECE_US)
        wanted = whole.run(feed)[0]
        for out, value in pieces.run(feed)[0].items():
            assert np.allclose(value, wanted[out], atol=1e-4)


def test_who_is_more_urgent_steps_in_at_a_border() -> None:
    """A run in pieces gives way to an earlier deadline, on as many cores as it has, and ends later; not to a later."""
    short = Network("short", 1, 3, {(0, 0, 0): 9 * MS, (0, 0, 1): 9 * MS, (0, 0, 2): 6 * MS})
    long = Network("long", 1, 3, {(0, 0, 2): 50 * MS})
    for border, deadline, starts in ((2, 20, True), (2, 400, False), (0, 20, False), (2, 6, False)):
        long.border_ns = {2: border * MS}
        scheduler = Scheduler(policy("earliest_deadline"), [1, 2, 3])
        scheduler.submit(long, 0, deadline_ns=200 * MS)
        running = scheduler.decide(0)[0][0]
        scheduler.submit(short, MS, deadline_ns=(deadline + 1) * MS, on_late="drop")
        started, dropped = scheduler.decide(MS)
        assert bool(started) is starts
        assert bool(dropped) is (deadline == 6)
        if starts:
            assert (started[0].processor, started[0].end_ns) == (2, (1 + 1 + 6) * MS)
            assert running.end_ns == 56 * MS


def test_an_urgent_job_is_answered_while_a_long_one_is_under_way(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both stand at the arbiter at once for the same cores, the urgent one by the smaller key, and both are right."""
    monkeypatch.setattr(groups, "PIECE_US", 0.0)
    monkeypatch.setattr(groups, "CUT", float("inf"))
    with (
        agent.load(CHAIN, background=False) as long,
        agent.load(CHAIN, background=False) as urgent,
    ):
        for session in (long, urgent):
            agent.spread(session)
            assert all(agent.jobs._members[session.plans].network.border_ns.values())
        member = agent.jobs._members[long.plans]
        cores = [len(own.spec.resources) for own in agent.device.processors.values()]
        widest = max(member.executors, key=lambda index: cores[index])
        for index in set(member.executors) - {widest}:
            member.executors.pop(index).close()
            member.network.forget(index)
        feed = dict(long.draw())
        with agent.device.held(*agent.device.processors.values()):
            first = agent.submit(long, feed, deadline_ms=120_000)
            second = agent.submit(urgent, feed, deadline_ms=60_000)
            until(lambda: agent.device.arbiter.waiting >= 2)
            keys = [one.key for one in agent.jobs._scheduler.running]
        answers = [job.result(60) for job in (first, second)]
        assert len(keys) == 2
        assert keys[1] < keys[0]
        for name, value in long.reference.outputs(feed).items():
            assert all(np.allclose(answer[name], value, atol=1e-4) for answer in answers)


@pytest.mark.parametrize(("cause", "kept"), [(HostLate("late"), True), (ProcessorLost("gone"), False)])
def test_a_group_that_was_late_once_is_kept(
    cause: ProcessorLost, kept: bool, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session answers a job whose group failed; the group goes on only where a host was but late."""
    with agent.load(CHAIN, background=False) as session:
        agent.spread(session)
        executors = agent.jobs._members[session.plans].executors
        failing, groups_before = set(executors.values()), len(executors)
        real = Executor.run

        def run(executor: Executor, *given: Any, **named: Any) -> Any:
            if executor in failing:
                failing.clear()
                raise SegmentFailedError("p", 0, ("op",), cause) from cause
            return real(executor, *given, **named)

        monkeypatch.setattr(Executor, "run", run)
        feed = dict(session.draw())
        found = agent.submit(session, feed).result(60)
        assert not failing
        assert all(
            np.allclose(found[name], value, atol=1e-4) for name, value in session.reference.outputs(feed).items()
        )
        assert (len(executors) == groups_before) == kept


def test_a_run_on_one_core_is_on_whichever_is_free(agent: Agent) -> None:
    """Where one core is held, a run that would be on it takes another of its kind, and says so."""
    single = {name: own for name, own in agent.device.processors.items() if own.on_caller_thread}
    name = next(iter(single))
    kin = [other for other, own in single.items() if own.spec.kind == single[name].spec.kind]
    with agent.load(CHAIN, background=False) as session:
        agent.spread(session)
        member = agent.jobs._members[session.plans]
        number = agent.jobs.where.names.index
        assert len({member.executors[number(one)] for one in kin}) == 1
        for index in set(member.executors) - {number(one) for one in kin}:
            member.executors.pop(index).close()
            member.network.forget(index)
        for taken in kin:
            with agent.device.held(*(single[other] for other in kin if other != taken)):
                job = agent.submit(session, dict(session.draw()))
                job.result(60)
            assert job.where == taken


def test_a_runtime_that_hangs_costs_its_own_group_alone(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group whose first run never ends cannot be closed, and is left out; the network is spread over others."""
    first: list[Executor] = []
    real, closes = prepared.warm, Executor.close

    def warm(executors: Any, feed: Any) -> Any:
        answers, failures = real(executors, feed)
        if not first:
            name, hanging = next(iter(executors.items()))
            first.append(hanging)
            failures[name] = RunTimeoutError("it hangs")
        return answers, failures

    def close(executor: Executor) -> None:
        closes(executor)
        if executor in first:
            raise ExecutionError("a run of this session hangs")

    with agent.load(CHAIN, background=False) as session:
        monkeypatch.setattr(prepared, "warm", warm)
        monkeypatch.setattr(Executor, "close", close)
        assert agent.spread(session)
        assert first.pop() not in agent.jobs._members[session.plans].executors.values()


def test_a_planner_in_this_process_rests_while_groups_are_timed(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """As beside the trial of a plan: what it computed meanwhile would be taken for a group's own time."""
    told: list[bool] = []
    rested: list[bool] = []
    own = groups.hold_trial

    def timed(*given: Any) -> Any:
        rested.append(told[-1:] == [True])
        return own(*given)

    with agent.load(CHAIN, background=False) as session, monkeypatch.context() as patch:
        patch.setattr(agent._services.supplier, "_planner", SimpleNamespace(rest=told.append))
        patch.setattr(groups, "hold_trial", timed)
        agent.spread(session)
    assert rested
    assert all(rested)
    assert told == [True, False]


@pytest.mark.parametrize("processors", ["ov", "ort,ov"])
def test_the_fastest_runtime_of_each_set_of_cores_answers(
    processors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: None
) -> None:
    """On no cores do two runtimes stand ready; what OpenVINO is not trusted with is answered as the file says."""
    pytest.importorskip("openvino")
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path))
    with Agent(processors=processors) as agent, agent.load(CHAIN, background=False) as session:
        ready = agent.spread(session, in_flight=2)
        cores = [agent.device.processors[name].spec.resources for name in ready]
        assert len(set(cores)) == len(cores) > 1
        feed = dict(session.draw())
        odd = {name: np.full_like(value, 1e30) for name, value in feed.items()}
        jobs = [(one, agent.submit(session, one)) for one in (feed, odd, feed)]
        for given, job in jobs:
            for name, value in session.reference.outputs(given).items():
                assert np.allclose(job.result(60)[name], value, atol=1e-4)
        assert jobs[0][1].where in ready
        assert jobs[1][1].where == "" or processors != "ov"


def test_runtimes_that_are_slower_take_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: None) -> None:
    """Where memory has room for one more copy, a second core gets it, although a slower runtime was timed as well."""
    pytest.importorskip("openvino")
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(
        groups, "_fastest", lambda us, _: {name: took for name, took in us.items() if name.startswith("ov@")}
    )
    with Agent(processors="ort,ov") as agent, agent.load(CHAIN, background=False) as session:
        faster = [own.spec.kind for name, own in agent.device.processors.items() if name.startswith("ov@")]
        kinds = len(set(faster))
        for copies in {0, min(1, len(faster) - kinds)}:
            monkeypatch.setattr(groups, "copies_at_once", lambda _, room=kinds + copies: 1 + room)
            assert len(agent.spread(session, in_flight=2)) == kinds + copies


def test_a_thread_holds_a_core_from_one_run_to_the_next(core: Device) -> None:
    """What a run's last segment held is its thread's, nobody else gets it, and the next run begins with it."""
    model = read_model("squeezenet")
    feed = draw(model, 0)
    name = next(iter(core.processors))
    with whole_run(model, core.processors[name], core) as run:
        hold = Hold(core.arbiter)
        for _ in range(2):
            run.run(feed, turn=Turn(hold=hold))
            assert core.arbiter.busy == core.processors[name].spec.resources
            assert hold.mask.value == core.arbiter.mask(core.arbiter.busy)
            with pytest.raises(RunTimeoutError), core.held(core.processors[name], timeout_s=0.01):
                pass
        hold.give_back()
        assert core.arbiter.busy == ()
        assert hold.mask.value == 0
        with pytest.raises(FeedError):
            run.run({}, turn=Turn(hold=hold))
        assert core.arbiter.busy == ()

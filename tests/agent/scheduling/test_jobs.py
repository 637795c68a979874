"""Jobs of an agent: answers, order, deadlines, cancelling, admission, and what goes wrong with one of many."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, wait
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

from agent_sdk import Agent, Session
from agent_sdk.engine.arbiter import Hold
from agent_sdk.errors import (
    DeviceClosedError,
    DroppedError,
    FeedError,
    InputError,
    ProcessorError,
    ProcessorLost,
    QueueFullError,
)
from agent_sdk.journey.plans import Plans
from agent_sdk.journey.trial import PLAN
from agent_sdk.planner.field import Sample
from agent_sdk.scheduling import request
from agent_sdk.scheduling.job import Job, Terms
from agent_sdk.scheduling.member import Member
from agent_sdk.scheduling.parts import Part
from agent_sdk.scheduling.policies import POLICIES, Fifo, Planned, policy
from agent_sdk.scheduling.request import Late, Request
from agent_sdk.scheduling.scheduler import Scheduler
from tests.agent.models import BRANCHING, chain_model
from tests.agent.scheduling.answers import occupied, right
from tests.agent.test_session_shapes import until
from tests.agent.threads import no_thread_left


@pytest.mark.parametrize("spread", [False, True])
def test_every_job_gets_its_own_answer(agent: Agent, session: Session, spread: bool) -> None:
    """Jobs of one session from several threads are each answered right, spread over core groups or not."""
    if spread:
        groups = agent.spread(session, in_flight=4)
        assert {agent.device.processors[name].spec.kind for name in groups} == {spec.kind for spec in agent.planned}
    feeds = [dict(session.draw(seed)) for seed in range(12)]
    jobs = [agent.submit(session, feed, deadline_ms=60_000, priority=seed % 2) for seed, feed in enumerate(feeds)]
    assert all(right(session, feed, job.result(60)) for feed, job in zip(feeds, jobs, strict=True))
    stats = agent.jobs.stats(session.plans)
    assert (stats.submitted, stats.done, stats.queued) == (12, 12, 0)
    assert all(bool(job.where) is spread for job in jobs)


def test_a_run_with_a_deadline_is_a_job_of_the_caller(agent: Agent, session: Session) -> None:
    """``run`` takes a deadline, answers as without, in both its forms, and asyncio may wait for a job."""
    feed = dict(session.draw(3))
    plain = session.run(feed)
    found = session.run(feed, deadline_ms=60_000)
    listed = session.run(None, feed, priority=3)
    assert all(np.allclose(found[name], plain[name]) for name in plain)
    assert [value.shape for value in listed] == [value.shape for value in plain.values()]

    async def waits() -> dict[str, np.ndarray]:
        return await asyncio.wrap_future(agent.submit(session, feed))

    assert right(session, feed, asyncio.run(waits()))


def test_jobs_of_a_session_end_in_the_order_in_which_they_were_asked_for(agent: Agent, session: Session) -> None:
    """One run in flight: whatever the deadlines, an earlier job ends before a later one begins."""
    agent.spread(session)
    feed = dict(session.draw())
    jobs = [agent.submit(session, feed, deadline_ms=60_000 - 1000 * index) for index in range(8)]
    wait(jobs, 60)
    assert all(one.ended_ns <= other.started_ns for one, other in pairwise(jobs))


def test_as_many_jobs_of_a_session_are_under_way_as_may_be_in_flight(agent: Agent, session: Session) -> None:
    """Two of three overlap where two may, the third begins once one has ended."""
    agent.spread(session, in_flight=2)
    feed = dict(session.draw())
    with occupied(agent):
        jobs = [agent.submit(session, feed, deadline_ms=60_000) for _ in range(3)]
        until(lambda: jobs[0].started_ns and jobs[1].started_ns)
        assert not jobs[2].started_ns
    assert all(right(session, feed, job.result(60)) for job in jobs)
    assert jobs[2].started_ns >= min(job.ended_ns for job in jobs[:2])


def test_what_cannot_make_its_deadline_is_dropped_or_late(agent: Agent, session: Session) -> None:
    """``drop`` gives a run up before it begins, ``late`` runs it all the same and counts it."""
    agent.spread(session)
    feed = dict(session.draw())
    with pytest.raises(DroppedError, match=r"0\.001 ms"):
        agent.submit(session, feed, deadline_ms=0.001, on_late="drop").result(60)
    late = agent.submit(session, feed, deadline_ms=0.001)
    assert right(session, feed, late.result(60))
    stats = agent.jobs.stats(session.plans)
    assert (stats.dropped, stats.late, stats.done) == (1, 1, 1)


@pytest.mark.parametrize("on_late", ["late", "drop"])
def test_who_waits_for_others_that_ask_no_more_is_not_forgotten(monkeypatch: pytest.MonkeyPatch, on_late: Late) -> None:
    """A run that would cost a network its deadlines waits on an idle machine: it is run, or dropped, all the same."""
    monkeypatch.setattr(request, "PATIENCE_NS", 50_000_000)
    before = set(threading.enumerate())
    with Agent(processors="ort@0") as agent, agent.load(BRANCHING) as one, agent.load(chain_model(4, 8, 12)) as other:
        feed = dict(one.draw())
        agent.submit(other, dict(other.draw()), deadline_ms=60_000).result(60)
        agent.jobs.alone_ms(one.plans)
        network = agent.jobs._members[one.plans].network
        for where, _ in list(network.wholes()):
            network.set((0, 0, where), 120 * 10**9)
        if on_late == "late":
            with no_thread_left("Thread-"):  # nor is one that no timer could be started for
                waiting = agent.submit(one, feed)
            agent.submit(other, dict(other.draw())).result(60)
            assert right(one, feed, waiting.result(60))
        else:
            with pytest.raises(DroppedError):
                agent.submit(one, feed, deadline_ms=120_050, on_late="drop").result(60)
            waiting = agent.submit(one, feed, deadline_ms=1e6, on_late="drop")
            one.close()
            with pytest.raises(DeviceClosedError):
                waiting.result(60)
    until(lambda: not any(isinstance(own, threading.Timer) for own in {*threading.enumerate()} - before))


def test_how_a_plan_keeps_deadlines_is_noted(agent: Agent, session: Session) -> None:
    """Dropped runs and late ones missed their deadline, others with one kept it, whoever answers; who has none is not
    counted. What a joint plan answers is noted of that.
    """
    assert session.plans.last is not None
    prepared, sample, feed = session.plans.last, Sample(("p-1", 1)), dict(session.draw())
    prepared.sample, prepared.current, prepared.pinned = sample, PLAN, True
    with pytest.raises(DroppedError):
        agent.submit(session, feed, deadline_ms=0.001, on_late="drop").result(60)
    for deadline_ms in (0.001, 60_000, None):
        agent.submit(session, feed, deadline_ms=deadline_ms).result(60)
    assert list(sample.missed) == [True, True, False]
    prepared.current = "another"
    Member(session.plans, agent.jobs.where).note_deadline(missed=True)
    assert len(sample.missed) == 4
    joint = Sample(("p-2", 1))
    prepared.current = PLAN
    agent.jobs.use(agent.jobs.policy, {session.plans: [Part(prepared.executor, 0, 0, 1, joint)]})
    agent.submit(session, feed, deadline_ms=0.001).result(60)
    assert (list(joint.missed), len(sample.missed)) == ([True], 4)
    agent.jobs.use(agent.jobs.policy)


def test_a_closed_session_has_no_part_in_anything(agent: Agent, session: Session) -> None:
    """It is refused by name of the cause: no stream goes on asking, and nothing waits for its answers."""
    feed = dict(session.draw())
    with agent.load(BRANCHING, background=False) as gone:
        pass
    for ask in (
        lambda: agent.submit(gone, feed),
        lambda: agent.spread(gone),
        lambda: agent.together(session, gone),
        lambda: agent.degrade(session, gone),
    ):
        with pytest.raises(DeviceClosedError, match="session is closed"):
            ask()
    with agent.stream(gone, feed, every_ms=5) as stream:
        until(lambda: stream.failure is not None)
    assert isinstance(stream.failure, DeviceClosedError)
    assert agent.submit(session, feed, deadline_ms=0.001, on_late="degrade").result(60)


def test_jobs_take_tensors_of_torchs(agent: Agent, session: Session) -> None:
    """With gradients or without, as ``run`` takes them; what is no mapping is the caller's to mend."""
    torch = pytest.importorskip("torch")
    feed = dict(session.draw())
    tensors = {name: torch.from_numpy(value).requires_grad_() for name, value in feed.items()}
    assert right(session, feed, agent.submit(session, tensors).result(60))
    with agent.together(session, session) as together:
        assert all(right(session, feed, outputs) for outputs in together.run(tensors, feed))
        with pytest.raises(InputError, match="mapping"):
            together.run(None, feed)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="give every_ms"):
            agent.together(session, session, deadlines_ms=(5, 5))
    with pytest.raises(InputError, match="mapping"):
        agent.submit(session, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("spread", [False, True])
def test_a_job_can_be_cancelled_while_it_waits_and_while_it_runs(agent: Agent, session: Session, spread: bool) -> None:
    """One that waits is taken out; one that runs ends at the next border; the others are answered."""
    if spread:
        agent.spread(session)
    feed = dict(session.draw())
    with occupied(agent):
        running = agent.submit(session, feed)
        waiting = agent.submit(session, feed)
        until(lambda: running.started_ns)
        assert waiting.cancel()
        assert waiting.cancelled()
        last = agent.submit(session, feed)
        assert running.cancel()
    with pytest.raises(CancelledError):
        running.result(60)
    assert running.cancelled()
    assert right(session, feed, last.result(60))
    assert not last.cancel()
    assert agent.jobs.stats(session.plans).cancelled == 2
    assert right(session, feed, session.run(feed))


def test_a_caller_who_is_interrupted_leaves_nothing_behind(agent: Agent, session: Session) -> None:
    """A signal ends the wait of ``run`` and takes its job out; nobody else loses one."""

    class Interrupted(BaseException):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    def soon() -> None:
        caller = threading.main_thread().ident or 0
        until(lambda: agent.jobs.waiting == 2)
        until(lambda: sys._current_frames()[caller].f_code is threading.Condition.wait.__code__)
        signal.pthread_kill(caller, signal.SIGUSR1)

    feed, before = dict(session.draw()), signal.signal(signal.SIGUSR1, interrupt)
    try:
        with occupied(agent):
            first = agent.submit(session, feed)
            thread = threading.Thread(target=soon)
            thread.start()
            with pytest.raises(Interrupted):
                session.run(feed, deadline_ms=60_000)
            thread.join()
            assert agent.jobs.waiting == 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert right(session, feed, first.result(60))
    stats = agent.jobs.stats(session.plans)
    assert (stats.submitted, stats.done, stats.cancelled) == (2, 1, 1)


@contextmanager
def interrupted(scheduler: Scheduler, moment: str) -> Iterator[None]:
    """A Ctrl-C comes while the scheduler does this next, and is raised within."""
    own = getattr(scheduler, moment)

    def interrupting(*given: Any, **named: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            patch.undo()
            signal.raise_signal(signal.SIGINT)
        return own(*given, **named)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(scheduler, moment, interrupting)
            with pytest.raises(KeyboardInterrupt):
                yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("moment", ["submit", "decide", "finished"])
@pytest.mark.parametrize("busy", [False, True])
def test_no_interrupt_leaves_a_job_half_queued(agent: Agent, session: Session, moment: str, busy: bool) -> None:
    """A Ctrl-C while a job is queued, started or ended is raised, and nobody waits for that job or its processor."""
    feed = dict(session.draw())
    with (
        occupied(agent) if busy and moment != "finished" else nullcontext(),
        interrupted(agent.jobs._scheduler, moment),
    ):
        session.run(feed, deadline_ms=60_000)
    until(lambda: agent.jobs.waiting == 0)
    assert right(session, feed, session.run(feed, deadline_ms=60_000))
    stats = agent.jobs.stats(session.plans)
    assert (stats.submitted, stats.done + stats.cancelled) == (2, 2)


def test_an_interrupt_while_a_session_closes_leaves_nobody_waiting(agent: Agent, session: Session) -> None:
    """Its jobs that wait are told, whenever the Ctrl-C comes; and it can be closed again."""
    with occupied(agent):
        jobs = [agent.submit(session, dict(session.draw())) for _ in range(2)]
        with interrupted(agent.jobs._scheduler, "cancel"):
            session.close()
        for job in jobs:
            with pytest.raises((DeviceClosedError, CancelledError)):
                job.result(60)
    session.close()


def test_a_job_for_which_no_thread_is_left_loses_only_itself(agent: Agent, session: Session) -> None:
    """It fails with the reason, and later ones are answered; one that runs has those behind it answered on its thread,
    and what failed is not run after all once there are threads again.
    """
    feed = dict(session.draw())
    with no_thread_left("hope-job"):
        lost = [agent.submit(session, feed) for _ in range(3)]
        assert all(isinstance(job.exception(60), ProcessorLost) for job in lost)
        assert right(session, feed, session.run(feed, deadline_ms=60_000))  # by its caller
    assert right(session, feed, agent.submit(session, feed).result(60))
    stats = agent.jobs.stats(session.plans)
    assert (stats.failed, stats.done, agent.jobs.waiting) == (3, 2, 0)
    with occupied(agent):
        running = agent.submit(session, feed)
        until(lambda: running.started_ns)
        with no_thread_left("hope-job"):
            behind = [agent.submit(session, feed) for _ in range(3)]
    assert all(right(session, feed, job.result(60)) for job in (running, *behind))


def test_a_callback_is_called_or_its_run_is_refused(agent: Agent, session: Session) -> None:
    """``run_async`` says where no thread can be started for a run, and does not run it later all the same."""
    feed, called = dict(session.draw()), list[str]()
    with no_thread_left("hope-async"), pytest.raises(ProcessorLost, match="no thread") as refused:
        session.run_async(None, feed, lambda outputs, data, error: called.append("refused"))
    assert str(refused.value.__cause__) == "can't start new thread"
    session.run_async(None, feed, lambda outputs, data, error: called.append(error))
    until(lambda: called)
    assert called == [""]
    session.close()
    with pytest.raises(DeviceClosedError):
        session.run_async(None, feed, lambda outputs, data, error: called.append("closed"))
    assert called == [""]


def test_a_network_that_fails_every_time_costs_nobody_else(agent: Agent, session: Session) -> None:
    """Under every policy each of its jobs fails with its reason, and each of another network's is answered."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[4, 4] x, int64[2] i) => (float[2, 4] y) {
            y = Gather (x, i)
        }"""
    )
    with agent.load(model.SerializeToString(), background=False) as failing:
        good, bad = dict(session.draw()), {"x": np.ones((4, 4), np.float32), "i": np.int64([0, 99])}
        for name in POLICIES:
            agent.jobs.use(policy(name))
            jobs = [agent.submit(own, feed) for _ in range(4) for own, feed in ((failing, bad), (session, good))]
            assert all(isinstance(job.exception(60), ProcessorError | InputError) for job in jobs[::2])
            assert all(right(session, good, job.result(60)) for job in jobs[1::2])
        assert agent.jobs.stats(failing.plans).failed == 4 * len(POLICIES)


def test_admission_is_bounded(agent: Agent, session: Session) -> None:
    """A thousand jobs wait; the next one is refused at once, and all that were taken are answered."""
    feed = dict(session.draw())
    with occupied(agent):
        jobs = [agent.submit(session, feed) for _ in range(1024)]
        with pytest.raises(QueueFullError, match="1024"):
            agent.submit(session, feed)
        assert agent.jobs.waiting == 1024
    assert not wait(jobs, 120).not_done
    assert all(job.exception() is None for job in jobs)


def test_one_bad_job_loses_only_itself(agent: Agent, session: Session) -> None:
    """Wrong inputs, bad terms and a session that closes under its jobs, also one that runs: each has its reason."""
    feed = dict(session.draw())
    wrong = {name: np.zeros((7, 7), np.float32) for name in feed}
    jobs = [agent.submit(session, wrong), agent.submit(session, feed)]
    with pytest.raises((FeedError, InputError)):
        jobs[0].result(60)
    assert right(session, feed, jobs[1].result(60))
    for terms in ({"deadline_ms": -1.0}, {"priority": 1000}, {"on_late": "soon"}, {"timeout_s": -1.0}):
        with pytest.raises(InputError):
            agent.submit(session, feed, **terms)
    with agent.load(BRANCHING, background=False) as closing:
        with occupied(agent):
            left = [agent.submit(closing, feed) for _ in range(5)]
            thread = threading.Thread(target=closing.close)
            thread.start()
            until(lambda: all(job.done() for job in left[1:]))
        thread.join(60)
    for job in left:
        assert isinstance(job.exception(60), DeviceClosedError)
    assert right(session, feed, agent.submit(session, feed).result(60))


def test_a_policy_that_raises_is_replaced(agent: Agent, session: Session) -> None:
    """A policy of one's own that fails costs nobody an answer."""

    class Broken(Fifo):
        def choose(self, state: Scheduler, group: list[Request]) -> None:
            raise RuntimeError("out of ideas")

    agent.jobs.use(Broken())
    feed = dict(session.draw())
    assert right(session, feed, agent.submit(session, feed).result(60))


def test_policies_may_be_changed_while_jobs_run(agent: Agent, session: Session) -> None:
    """Every policy by name answers every job, spread or not, several networks at once."""
    with ExitStack() as opened:
        other = opened.enter_context(agent.load(BRANCHING, background=False, in_flight=2))
        agent.spread(other, in_flight=2)
        feed = dict(session.draw())
        for name in POLICIES:
            agent.jobs.use(policy(name))
            jobs = [
                (own, agent.submit(own, feed, deadline_ms=None if index % 3 else 5_000.0))
                for index in range(6)
                for own in (session, other)
            ]
            assert all(right(own, feed, job.result(60)) for own, job in jobs)


def test_a_joint_plan_may_go_while_a_run_of_it_begins(agent: Agent, session: Session) -> None:
    """Whoever begins a run looks at the plan's parts without the lock: where they go meanwhile it is answered still."""
    assert session.plans.last is not None
    feed = dict(session.draw())

    class Going(list[Part]):
        def __len__(self) -> int:
            if looking:
                agent.jobs.use(agent.jobs.policy)
            return super().__len__()

    looking: list[bool] = []
    agent.jobs.use(Planned(), {session.plans: Going([Part(session.plans.last.executor, 0, 0, 10**9, None)])})
    job, started = agent.jobs._submit(session.plans, feed, Terms(), here=True)
    assert started is not None
    looking.append(True)
    agent.jobs._ran(started, Hold(agent.device.arbiter), only=True)
    assert right(session, feed, job.result(60))
    assert not agent.jobs._members[session.plans].parts


def test_a_stream_asks_for_a_run_each_period(agent: Agent, session: Session, caplog: pytest.LogCaptureFixture) -> None:
    """Runs are asked for until the stream is closed, each on what there is then; who fails to make inputs ends it, and
    the log says so, with the network's name; who closes the session is not warned.
    """
    heard: list[Job] = []
    made = iter(range(10**6))
    with agent.stream(
        session, lambda: dict(session.draw(next(made))), every_ms=np.float32(5), deadline_ms=60_000, told=heard.append
    ) as stream:
        until(lambda: len(heard) >= 5)
    assert all(right(session, dict(session.draw(seed)), job.result(60)) for seed, job in enumerate(heard[:5]))
    assert stream.failure is None
    with agent.stream(session, {}.pop, every_ms=5) as broken:  # type: ignore[arg-type]
        until(lambda: broken.failure is not None)
    caplog.set_level("INFO", "agent_sdk")
    with agent.load(BRANCHING, background=False) as other:
        shut = agent.stream(other, dict(other.draw()), every_ms=5)
    until(lambda: shut.failure is not None)
    shut.close()
    ended = [record for record in caplog.records if "a stream has ended" in record.message]
    assert [record.levelname for record in ended] == ["WARNING", "INFO"]
    assert all(record.message.startswith(f"{session.name}: ") for record in ended)
    for terms in (
        {"every_ms": 0},
        {"every_ms": 5e-324},
        {"every_ms": float("nan")},
        {"every_ms": 5, "deadline_ms": -1},
        {"every_ms": 5, "priority": 999},
    ):
        with pytest.raises(InputError, match=[*terms][-1]):
            agent.stream(session, {}, **terms)
    with no_thread_left("hope-stream"), pytest.raises(ProcessorLost, match="no thread could be started"):
        agent.stream(session, {}, every_ms=5)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, int])
def test_times_of_any_type_of_number_are_times(agent: Agent, session: Session, kind: type) -> None:
    """None of them goes beyond what its own type holds."""
    feed, before = dict(session.draw()), perf_counter_ns()
    job = agent.submit(session, feed, deadline_ms=kind(60_000), timeout_s=kind(60))
    after = perf_counter_ns()
    assert right(session, feed, job.result(60))
    assert job.deadline_ns is not None
    assert before <= job.deadline_ns - 60 * 10**9 <= after


def test_what_a_run_cannot_keep_to_is_refused(agent: Agent, session: Session) -> None:
    """How a run is asked for is never passed over: a misspelt ``on_late``, terms of a run that waits for no turn."""
    feed = dict(session.draw())
    with pytest.raises(InputError, match="degrade"):
        session.run(feed, on_late="degraded")  # type: ignore[call-overload]
    for terms in ({"deadline_ms": 5}, {"priority": 1}, {"on_late": "drop"}):
        with pytest.raises(InputError, match="ONNX Runtime's own"):
            session.run(None, feed, ort.RunOptions(), **terms)
    with pytest.raises(InputError, match="a run or more"):
        session.explain(runs=0)
    with pytest.raises(InputError, match="wait_s"):
        agent.together(session, session, wait_s=float("nan"))


def test_sessions_of_another_agent_are_refused(agent: Agent, session: Session, tmp_path: Path) -> None:
    """What is asked of an agent is asked of its own sessions: it does not see whose turn it is on another's cores."""
    with Agent(processors="ort", cache=tmp_path / "other") as other, other.load(BRANCHING) as foreign:
        asked: list[Callable[[], object]] = [
            lambda: agent.submit(foreign, {}),
            lambda: agent.stream(foreign, {}, every_ms=5),
            lambda: agent.spread(foreign),
            lambda: agent.together(session, foreign),
            lambda: agent.degrade(session, foreign),
            lambda: agent.degrade(foreign, session),
        ]
        for ask in asked:
            with pytest.raises(InputError, match="this agent"):
                ask()


def test_a_job_cancelled_while_its_session_closes_is_cancelled(agent: Agent, session: Session) -> None:
    """What ``cancel`` has promised holds, whatever ends the run first."""
    with occupied(agent):
        running = agent.submit(session, dict(session.draw()))
        until(lambda: running.started_ns)
        with agent.jobs._lock:  # it cannot end before its session is closed
            assert running.cancel()
            agent.jobs.leave(session.plans)
    with pytest.raises(CancelledError):
        running.result(60)


def test_of_a_closed_session_its_counts_are_left_and_nothing_else(agent: Agent) -> None:
    """Asking for them keeps nothing of it, nor does a policy that is given its part of a joint plan too late."""

    def refused() -> weakref.ref[Plans]:
        with agent.load(BRANCHING, background=False) as closed:
            feed = dict(closed.draw())
            agent.submit(closed, feed).result(60)
            part = Part(closed.latest.executor, 0, 0, 1, None)
        before = agent.jobs.policy
        assert agent.jobs.stats(closed.plans).done == 1
        asked: list[Callable[[], object]] = [
            lambda: agent.jobs.use(Planned(), {closed.plans: [part]}),
            lambda: agent.jobs.alone_ms(closed.plans),
            lambda: agent.submit(closed, feed),
        ]
        for ask in asked:
            with pytest.raises(DeviceClosedError, match="session is closed"):
                ask()
        assert agent.jobs.policy is before
        return weakref.ref(closed.plans)

    gone = refused()
    gc.collect()
    assert gone() is None


def test_a_closed_agent_takes_no_jobs(agent: Agent, session: Session) -> None:
    """Jobs after the end are refused."""
    agent.close()
    with pytest.raises(DeviceClosedError):
        agent.submit(session, {})

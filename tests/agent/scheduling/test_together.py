"""A joint plan: every network's own answer, segments in the plan's order, and the sessions where it does not fit."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from agent_sdk import Agent, Session
from agent_sdk.engine import Executor
from agent_sdk.errors import DeviceClosedError, InputError, ProcessorError, UnplannableError
from agent_sdk.journey.plans import Feed, Plans
from agent_sdk.scheduling import parts, together
from agent_sdk.scheduling.member import JOINTLY
from agent_sdk.scheduling.parts import Part, part_of
from agent_sdk.scheduling.policies import Planned
from agent_sdk.scheduling.rounds import MOST_RUNS, rates
from agent_sdk.scheduling.together import Together
from tests.agent.models import branching_model
from tests.agent.scheduling.answers import occupied, right
from tests.agent.test_session_shapes import until

SIZES = (4, 8)


@pytest.fixture
def sessions(agent: Agent) -> Iterator[list[Session]]:
    """Two networks with plans."""
    loaded = [agent.load(branching_model(size).SerializeToString(), background=False) for size in SIZES]
    yield loaded
    for session in loaded:
        session.close()


@pytest.mark.parametrize("planned", [True, False])
def test_networks_of_one_plan_are_each_answered_right(
    agent: Agent, sessions: list[Session], planned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the plan, or as jobs where that is faster, in the order of the sessions; one may stand twice."""
    three = [*sessions, sessions[0]]
    monkeypatch.setattr(Together, "faster", planned)
    with agent.together(*three) as together:
        assert len(together.plan.jobs) == 3
        for seed in range(3):
            feeds = [dict(session.draw(seed)) for session in three]
            found = together.run(*feeds)
            assert all(map(right, three, feeds, found))
        with pytest.raises(InputError, match="an input each"):
            together.run(feeds[0])


def test_parts_keep_the_order_and_times_of_the_plan(agent: Agent, sessions: list[Session]) -> None:
    """The parts have every step of the plan once, and keys that grow as the plan's starts do, from their first on."""
    with agent.together(*sessions) as together:
        steps = together.plan.steps
        parts = [part_of(together.plan, job) for job in range(2)]
        assert sorted(step.id for part in parts for step in part.steps) == sorted(together.plan.order)
        for (own,) in together.runs:
            program = own.executor.program
            starts = {step.id: step.start_us for step in steps}
            begun = {segment.index: starts[segment.steps[0]] * 1e3 - own.start_ns for segment in program.segments}
            assert min(begun.values()) == pytest.approx(0, abs=1)
            for row, keys in zip(program.by_lane, program.starts_ns, strict=True):
                assert list(keys) == sorted(keys)
                for work, key in zip(row, keys, strict=True):
                    assert work.index < 0 or key == pytest.approx(begun[work.index], abs=1)


def test_a_plan_has_every_run_of_a_hyperperiod(
    agent: Agent, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of one network to three of the other, each in its own place of a round; all jobs are answered right."""
    monkeypatch.setattr(Together, "faster", True)
    three = [*sessions, sessions[0]]
    with agent.together(*three, every_ms=(3000, 2000, 3000), deadlines_ms=(3000, 2000, 1500)) as together:
        assert [len(own) for own in together.runs] == [2, 3, 2]
        assert [part.release_ns for part in together.parts[sessions[0].plans]] == [0, 0, 3 * 10**9, 3 * 10**9]
        for own in together.parts.values():
            assert all(part.release_ns <= part.start_ns < part.finish_ns for part in own)
        plan = together.plan
        assert {(run.deadline_us, run.release_us) for run in plan.jobs if run.period_us == 3e6} == {
            (3e6, 0.0), (6e6, 3e6), (1.5e6, 0.0), (4.5e6, 3e6),
        }  # fmt: skip
        before, policy = agent.jobs.policy, Planned()
        agent.jobs.use(policy, together.parts)
        policy.follow(policy._plan, 60 * 10**9)  # whatever the machine's speed, all are as planned
        order = [sessions[0], sessions[1], sessions[0], sessions[1], sessions[0], sessions[1], sessions[0]]
        feeds = [dict(session.draw()) for session in order]
        jobs = [agent.submit(session, feed) for session, feed in zip(order, feeds, strict=True)]
        assert all(map(right, order, feeds, [job.result(60) for job in jobs]))
        assert {job.where for job in jobs} == {JOINTLY}
        assert [job.request.run for job in jobs] == [0, 0, 1, 1, 2, 2, 3]
        agent.jobs.use(before)


def test_periods_come_together_or_are_refused() -> None:
    """A round is short, and at its end no run is off by an eighth of the shortest period; what has none is refused."""
    for every_ms in ((100 / 3, 100), (100 / 3 * 1.0731, 107.31), (33, 100), (40, 60, 90), (16.667, 33.333, 50)):
        found = [rate for rate in rates(len(every_ms), every_ms) if rate is not None]
        longest = max(rate.period_us for rate in found)
        rounds = next(n for n in range(1, 99) if all(n * longest % rate.period_us == 0 for rate in found)) * longest
        assert sum(rounds / rate.period_us for rate in found) <= MOST_RUNS
        for rate, ms in zip(found, every_ms, strict=True):
            assert abs(rate.period_us - 1e3 * ms) * rounds / rate.period_us <= 125 * min(every_ms)
    with pytest.raises(UnplannableError, match="multiples"):
        rates(2, (1, 977))
    with pytest.raises(InputError, match="above 0"):
        rates(2, (0, 1))
    for every_ms, deadlines_ms in (((1,), ()), ((1, 1), (1,)), ((1, 1, 1), (1, 1))):
        with pytest.raises(InputError, match="one time for each"):
            rates(2, every_ms, deadlines_ms)


def test_a_part_that_cannot_be_judged_holds_nothing(
    agent: Agent, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends the first run of a part, nothing of what was compiled for it stays open."""
    opened: list[Executor] = []

    def interrupted(contenders: dict[str, Executor], inputs: object) -> None:
        opened.extend(contenders.values())
        raise KeyboardInterrupt

    monkeypatch.setattr(parts, "warm", interrupted)
    with pytest.raises(KeyboardInterrupt):
        agent.together(*sessions)
    assert opened
    assert all(executor._freed for executor in opened)


@pytest.mark.parametrize("closes", [True, False])
def test_parts_that_come_too_late_or_fail_hold_nothing(
    agent: Agent, sessions: list[Session], closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of runs that are compiled while another thread closes the set, or of which one fails, none stays open."""
    opened: list[Executor] = []
    with agent.together(*sessions) as joint:
        closing = threading.Thread(target=joint.close)

        def open_parts(*given: Any) -> list[Part]:
            if closes and not opened:
                closing.start()
                closing.join(0.1)
            elif opened and not closes:
                raise ProcessorError("the second one fails")
            found = parts.open_parts(*given)
            opened.extend(part.executor for part in found)
            return found

        monkeypatch.setattr(together, "open_parts", open_parts)
        with nullcontext() if closes else pytest.raises(ProcessorError, match="the second"):
            assert len(joint.runs) == len(sessions)
        if closes:
            closing.join(60)
            with pytest.raises(DeviceClosedError, match="closed"):
                list(joint.runs)
        assert opened
        assert all(executor._freed for executor in opened)


def test_what_the_plan_is_not_for_is_answered_by_the_sessions(agent: Agent, sessions: list[Session]) -> None:
    """Where all as one fail the sessions answer, and it says so; one session alone is refused."""
    with pytest.raises(InputError, match="two sessions"):
        agent.together(sessions[0])
    with agent.together(*sessions) as together:
        together.joint_us = 0.0
        together.whole.close()
        feeds = [dict(session.draw()) for session in sessions]
        assert all(map(right, sessions, feeds, together.run(*feeds)))
        assert any("failed" in note for note in together.notes)


def test_a_set_of_which_one_is_not_asked_for_asks_for_none(agent: Agent, sessions: list[Session]) -> None:
    """Where the last session is closed, or the queue full, nothing of the others' runs goes on."""
    feeds = [dict(session.draw()) for session in sessions]
    with agent.together(*sessions) as together:
        together.joint_us = math.inf
        sessions[-1].close()
        with occupied(agent), pytest.raises(DeviceClosedError, match="session is closed"):
            together.run(*feeds)
        until(lambda: agent.jobs.waiting == 0)
        assert agent.jobs.stats(sessions[0].plans).cancelled == 1


def test_a_run_that_begins_while_the_set_is_closed_is_answered(
    agent: Agent, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sessions answer it, as they do where a part fails: they are not closed."""
    monkeypatch.setattr(Together, "faster", True)
    feeds = [dict(session.draw()) for session in sessions]
    with agent.together(*sessions) as together:
        last = sessions[-1].plans

        def closing(feed: Feed) -> object:
            together.close()
            return Plans.taking(last, feed)

        monkeypatch.setattr(last, "taking", closing)
        assert all(map(right, sessions, feeds, together.run(*feeds)))


def test_a_policy_has_jobs_follow_the_plan(
    agent: Agent, sessions: list[Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each network's part answers its session's jobs; once a part fails, or a session is closed, none does."""
    monkeypatch.setattr(Together, "faster", True)

    def answered() -> set[str]:
        """Who has answered jobs of both."""
        feeds = [dict(session.draw()) for session in sessions]
        jobs = [agent.submit(session, feed, deadline_ms=60_000) for session, feed in zip(sessions, feeds, strict=True)]
        assert all(map(right, sessions, feeds, [job.result(60) for job in jobs]))
        return {job.where for job in jobs}

    with agent.together(*sessions) as together:
        before, planned = agent.jobs.policy, Planned()
        agent.jobs.use(planned, together.parts)
        planned.follow(planned._plan, 60 * 10**9)  # whatever the machine's speed, they come together
        assert answered() == {JOINTLY}
        assert answered() == {JOINTLY}
        agent.jobs.use(before)
        assert answered() == {""}
        agent.jobs.use(planned, together.parts)
        planned.follow(planned._plan, 60 * 10**9)
        together.runs[1][0].executor.close()
        assert answered() <= {"", JOINTLY}
        assert answered() == {""}
        agent.jobs.use(planned, {sessions[0].plans: together.runs[0]})
        assert answered() == {"", JOINTLY}
        with agent.load(branching_model(4).SerializeToString(), background=False) as leaving:
            agent.jobs.use(planned, {leaving.plans: together.runs[0]})
            assert planned._plan
        assert not planned._plan
        agent.jobs.use(before)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_whoever_cannot_run_it_is_told(agent: Agent, sessions: list[Session], monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a forked child, whose threads stayed behind, nor who has closed it waits for anything."""
    monkeypatch.setattr(Together, "faster", True)
    feeds = [dict(session.draw()) for session in sessions]
    with agent.together(*sessions) as together:
        together.run(*feeds)
        child = os.fork()
        if not child:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            try:
                together.run(*feeds)
            except DeviceClosedError:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(DeviceClosedError, match="closed"):
        together.run(*feeds)

"""A joint plan: every network's own answer, segments in the plan's order, and the sessions where it does not fit."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

from agent_sdk import Agent, Session
from agent_sdk.errors import DeviceClosedError, InputError
from agent_sdk.scheduling.jobs import JOINTLY
from agent_sdk.scheduling.policies import Planned
from agent_sdk.scheduling.together import Together, part_of
from tests.agent.models import branching_model

SIZES = (4, 8)


@pytest.fixture
def sessions(agent: Agent) -> Iterator[list[Session]]:
    """Two networks with plans."""
    loaded = [agent.load(branching_model(size).SerializeToString(), background=False) for size in SIZES]
    yield loaded
    for session in loaded:
        session.close()


def right(session: Session, feed: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> bool:
    """Whether an answer is that of the network's file."""
    wanted = session.reference.outputs(feed)
    return all(np.allclose(outputs[name], value, atol=1e-4) for name, value in wanted.items())


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
    """The parts have every step of the plan once, and keys that grow as the plan's starts do."""
    with agent.together(*sessions) as together:
        parts = [part_of(together.plan, job) for job in range(2)]
        assert sorted(step.id for part in parts for step in part.steps) == sorted(together.plan.order)
        for executor in together._executors:
            begun = {own.index: own.start_us for own in executor.program.segments}
            for row, keys in zip(executor.program.by_lane, executor.program.starts_ns, strict=True):
                assert list(keys) == sorted(keys)
                for work, key in zip(row, keys, strict=True):
                    assert work.index < 0 or key == round(begun[work.index] * 1e3)


def test_what_the_plan_is_not_for_is_answered_by_the_sessions(agent: Agent, sessions: list[Session]) -> None:
    """A part that fails leaves the answers to the sessions, and says so; one session alone is refused."""
    with pytest.raises(InputError, match="two sessions"):
        agent.together(sessions[0])
    with agent.together(*sessions) as together:
        together.joint_us = 0.0
        together._executors[1].close()
        feeds = [dict(session.draw()) for session in sessions]
        assert all(map(right, sessions, feeds, together.run(*feeds)))
        assert any("failed" in note for note in together.notes)


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
        together._executors[1].close()
        assert answered() <= {"", JOINTLY}
        assert answered() == {""}
        agent.jobs.use(planned, {sessions[0].plans: together._executors[0]})
        assert answered() == {"", JOINTLY}
        with agent.load(branching_model(4).SerializeToString(), background=False) as leaving:
            agent.jobs.use(planned, {leaving.plans: together._executors[0]})
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

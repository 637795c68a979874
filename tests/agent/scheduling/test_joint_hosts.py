"""Networks of one plan over two hosts: each is answered right, also once the other host has gone."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_sdk import Agent, Session
from agent_sdk.engine.single import single_processor_plan
from agent_sdk.scheduling.job import Job
from agent_sdk.scheduling.member import JOINTLY
from agent_sdk.scheduling.policies import Planned
from agent_sdk.scheduling.together import Participant, Together
from hope_schema import PlanReply, Transfer
from tests.agent.models import branching_model
from tests.agent.scheduling.answers import right
from tests.agent.server.running import HASTY, Running, running

HERE, EDGE = "ort@0", "edge1:ort@0"


@pytest.fixture
def edge(tmp_path: Path) -> Iterator[Running]:
    """Another machine, here a process of its own, that lends its processors."""
    with running([], tmp_path / "edge", "--lend", "--soc", "edgebox", program=HASTY) as made:
        yield made


def over_both(
    reply: PlanReply, sessions: Sequence[Session], places: Sequence[Sequence[str]], half: bool = False
) -> PlanReply:
    """The reply with steps of its networks in turns, each network's in turns at its places; ``half``: float32 that the
    first one is given crosses as float16.
    """
    steps = []
    for job, (session, where) in enumerate(zip(sessions, places, strict=True)):
        plan = single_processor_plan(session.latest.model.graph, HERE, soc="here", frequency="now")
        for at, (step, processor) in enumerate(zip(plan.steps, cycle(where), strict=False)):
            begin = 10.0 * (2 * at + job)
            update = {"job": job, "processor": processor, "start_us": begin, "finish_us": begin + 10}
            steps.append(step.model_copy(update=update))
    steps.sort(key=lambda step: step.start_us)
    steps = [step.model_copy(update={"id": at}) for at, step in enumerate(steps)]
    jobs = tuple(job.model_copy(update={"cuts": (), "finish_us": steps[-1].finish_us}) for job in reply.plan.jobs)
    move = Transfer(tensor="x", source="host", target="edge1:host", dtype="float16", start_us=0, finish_us=0)
    update = {"jobs": jobs, "steps": tuple(steps), "order": tuple(range(len(steps)))}
    update |= {"transfers": (move,) if half else ()}
    return reply.model_copy(update={"plan": reply.plan.model_copy(update=update)})


def test_a_joint_plan_over_two_hosts_answers_each_network_and_outlives_the_host(
    edge: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: None
) -> None:
    """The planner knows the host; as one program and as runs of their own, networks on it, here, or on both in turns
    give their own answers, what crosses as float16 is told, and where the host is killed the sessions answer.
    """
    monkeypatch.setattr(Together, "faster", True)
    hosts = tmp_path / "hosts.toml"
    hosts.write_text(f'[edge1]\naddress = "http://127.0.0.1:{edge.http}"\nprecision = "fp16"\n')
    with Agent(processors=HERE, hosts=hosts, cache=tmp_path / "own") as agent:
        sessions = [agent.load(branching_model(size).SerializeToString(), background=False) for size in (4, 8)]
        members = [Participant(session.plans, session.latest) for session in sessions]
        feeds = [dict(session.draw(3)) for session in sessions]
        with agent.together(*sessions) as together:
            assert [host.name for host in together.plan.hosts] == ["edge1"]
            assert all(map(right, sessions, feeds, together.run(*feeds)))
            served = members[0].prepared.obtained.served
            assert served is not None
            reply = served.reply.model_copy(update={"plan": together.plan})
        for *places, half in ([EDGE], [HERE], True), ([EDGE], [EDGE], False), ([EDGE, HERE], [HERE, EDGE], False):
            made = over_both(reply, sessions, places, half)
            with Together(members, made, agent._services, agent.jobs) as together:
                assert bool(together.notes) is half
                assert all(map(near if half else right, sessions, feeds, together.run(*feeds)))
                agent.jobs.use(policy := Planned(), together.parts)
                policy.follow(policy._plan, 60 * 10**9)  # whatever the machine's speed, all are as planned
                assert {job.where for job in asked(agent, sessions, feeds, near if half else right)} == {JOINTLY}
                if len(places[0]) > 1:
                    edge.process.send_signal(signal.SIGKILL)
                    for _ in range(3):
                        assert all(map(right, sessions, feeds, together.run(*feeds)))
                        asked(agent, sessions, feeds, right)
                    (note,) = together.notes
                    assert "sessions answer" in note


def near(session: Session, feed: Mapping[str, np.ndarray], outputs: Mapping[str, Any]) -> bool:
    """Whether an answer is that of the network's file, but for what float16 rounds."""
    wanted = session.reference.outputs(dict(feed))
    return all(np.allclose(outputs[name], value, atol=2e-3) for name, value in wanted.items())


def asked(agent: Agent, sessions: Sequence[Session], feeds: Sequence[Mapping[str, Any]], judge: Any) -> list[Job]:
    """A job of each, which are answered as they are to be."""
    jobs = [agent.submit(session, feed) for session, feed in zip(sessions, feeds, strict=True)]
    assert all(map(judge, sessions, feeds, [job.result(60) for job in jobs]))
    return jobs

"""Jobs of several networks for a long time: nothing is lost, nobody waits for ever, memory stays where it was."""

from __future__ import annotations

import random
import time
from concurrent.futures import wait

import numpy as np
import psutil
import pytest

from agent_sdk import Agent
from agent_sdk.errors import DroppedError, QueueFullError
from agent_sdk.scheduling.policies import POLICIES, policy
from tests import SOAK_S
from tests.agent.models import branching_model

AT_ONCE = 40
LEAK_BYTES = 64 * 2**20


@pytest.mark.timeout(2 * SOAK_S + 120)
def test_a_soak_loses_nothing(agent: Agent) -> None:
    """Random jobs, deadlines, priorities and cancellations under every policy in turn: each job ends, answers right."""
    draw = random.Random(5)
    sessions = []
    for channels in (4, 8, 12):
        session = agent.load(branching_model(channels).SerializeToString(), background=False, in_flight=2)
        feed = dict(session.draw(channels))
        sessions.append((session, feed, session.reference.outputs(feed)))
    agent.spread(sessions[0][0], in_flight=2)
    asked = cancelled = 0
    process, settled = psutil.Process(), 0
    began = time.monotonic()
    names = list(POLICIES)
    turn = 0
    while (passed := time.monotonic() - began) < SOAK_S:
        agent.jobs.use(policy(names[turn % len(names)]))
        turn += 1
        jobs = []
        for _ in range(draw.randint(1, AT_ONCE)):
            session, feed, right = draw.choice(sessions)
            deadline = draw.choice((None, 0.5, 5.0, 50.0))
            try:
                job = agent.submit(
                    session,
                    feed,
                    deadline_ms=deadline,
                    priority=draw.choice((0, 0, 0, 1)),
                    on_late=draw.choice(("late", "drop", "degrade")),
                )
            except QueueFullError:
                continue
            asked += 1
            jobs.append((job, right))
            if draw.random() < 0.1:
                job.cancel()
        assert not wait([job for job, _ in jobs], 60).not_done
        for job, right in jobs:
            if job.cancelled():
                cancelled += 1
            elif not isinstance(job.exception(), DroppedError):
                outputs = job.result()
                assert all(np.allclose(outputs[name], value, atol=1e-4) for name, value in right.items())
        if not settled and passed > SOAK_S / 5:
            settled = process.memory_info().rss
    stats = [agent.jobs.stats(session.plans) for session, _, _ in sessions]
    assert sum(one.submitted for one in stats) == asked
    assert sum(one.done + one.dropped + one.cancelled for one in stats) == asked
    assert sum(one.cancelled for one in stats) == cancelled
    assert agent.jobs.waiting == 0
    assert process.memory_info().rss < settled + LEAK_BYTES
    for session, _, _ in sessions:
        session.close()

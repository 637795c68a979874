"""Networks that are spread over core groups: what a run that fails, hangs or is of other shapes does to them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from onnx import parser

from agent_sdk import Agent, Session
from agent_sdk.engine.arbiter import Hold
from agent_sdk.errors import (
    InputError,
    ProcessorError,
    UnplannableError,
)
from agent_sdk.journey.plans import MOST_NOTES
from agent_sdk.scheduling.job import Terms
from tests.agent.cores import SEVERAL
from tests.agent.models import BRANCHING
from tests.agent.scheduling.answers import right
from tests.agent.test_session_shapes import until


def test_a_processor_that_fails_is_left_out_and_the_job_goes_elsewhere(agent: Agent, session: Session) -> None:
    """What a core group fails is answered by whoever answers the session; later jobs go to the other groups."""
    agent.spread(session)
    feed = dict(session.draw())
    member = agent.jobs._members[session.plans]
    *broken, left = dict.fromkeys(member.executors.values())
    names = {agent.jobs.where.names[index] for index, own in member.executors.items() if own is left}
    for executor in broken:
        executor.close()
    where = []
    for _ in range(5):
        job = agent.submit(session, feed)
        assert right(session, feed, job.result(60))
        where.append(job.where)
    assert set(where) <= {"", *names}
    assert len(set(member.executors.values())) == 1 + len(broken) - where.count("")
    left.close()
    job = agent.submit(session, feed)
    assert right(session, feed, job.result(60))
    assert not job.where


@SEVERAL
def test_a_run_that_never_ends_keeps_nobody_else(
    agent: Agent, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a runtime hangs in one core group, jobs of another network are answered on the others."""
    with agent.load(BRANCHING, background=False) as other:
        agent.spread(session)
        agent.spread(other)
        member = agent.jobs._members[session.plans]
        narrow = [agent.jobs.where.names.index(spec.id) for spec in agent.planned if len(spec.resources) == 1]
        ends = threading.Event()
        for index in set(member.executors) - {narrow[0]}:
            member.executors.pop(index).close()
            member.network.forget(index)
        monkeypatch.setattr(member.executors[narrow[0]], "run", lambda *_, **__: ends.wait(60))
        feed = dict(session.draw())
        hanging = agent.submit(session, feed)
        until(lambda: hanging.started_ns)
        behind = agent.submit(session, feed)
        assert right(other, feed, agent.submit(other, feed, deadline_ms=60_000).result(30))
        assert not behind.done()
        assert behind.cancel()
        ends.set()
        with pytest.raises(TypeError):
            hanging.result(60)
        assert right(session, feed, session.run(feed))


def test_a_pinned_answer_is_not_spread(agent: Agent) -> None:
    """A network whose answer has to stay the same to the bit stays with who answers it."""
    with (
        agent.load(BRANCHING, background=False, deterministic=True) as session,
        pytest.raises(UnplannableError, match="one processor"),
    ):
        agent.spread(session)


def test_a_network_may_be_spread_again(agent: Agent, session: Session) -> None:
    """The groups of before are freed, and the new ones answer."""
    agent.spread(session)
    before = list(agent.jobs._members[session.plans].executors.values())
    agent.spread(session, in_flight=2)
    assert all(executor._freed for executor in before)
    feed = dict(session.draw())
    assert right(session, feed, agent.submit(session, feed).result(60))


def test_a_run_that_ends_where_nobody_runs_any_more_teaches_nothing(agent: Agent, session: Session) -> None:
    """A network that was spread while it ran goes to its core groups alone, not to where that run was as well."""
    job, started = agent.jobs._submit(session.plans, dict(session.draw()), Terms(), here=True)
    assert started is not None
    groups = agent.spread(session)
    agent.jobs._ran(started, Hold(agent.device.arbiter), only=True)
    assert job.done()
    network = agent.jobs._members[session.plans].network
    assert {agent.jobs.where.names[where] for where, _ in network.wholes()} == set(groups)


def test_a_feed_that_only_the_whole_network_gets_and_fails_costs_no_core_group(agent: Agent) -> None:
    """At other shapes than it was spread for it is no group that fails."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[2, 2] y) {
            r = Relu (x)
            two = Constant <value_ints = [2, 2]> ()
            y = Reshape (r, two)
        }"""
    )
    with agent.load(model.SerializeToString(), shapes={"x": (1, 4)}, background=False) as session:
        groups = agent.spread(session)
        with pytest.raises(ProcessorError, match="Reshape"):
            agent.submit(session, {"x": np.ones((3, 4), np.float32)}).result(60)
        assert len(agent.jobs._members[session.plans].executors) == len(groups)
        feed = {"x": np.ones((1, 4), np.float32)}
        assert right(session, feed, agent.submit(session, feed).result(60))


def test_what_the_session_answers_in_place_of_a_core_group_teaches_nothing_of_that(agent: Agent) -> None:
    """Runs at other shapes than the network was spread for are on no group, whatever the policy chose."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }"""
    )
    with agent.load(model.SerializeToString(), shapes={"x": (1, 4)}, background=False) as session:
        agent.spread(session)
        network = agent.jobs._members[session.plans].network
        before = [*network.wholes()]
        feed = {"x": np.ones((3, 4), np.float32)}
        assert right(session, feed, agent.submit(session, feed).result(60))
        assert [*network.wholes()] == before


def test_requests_that_fail_each_in_words_of_their_own_are_not_all_kept(agent: Agent) -> None:
    """Whoever sends indices beyond their table adds no note without end; the first ones are said."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[4, 4] x, int64[2] i) => (float[2, 4] y) {
            y = Gather (x, i)
        }"""
    )
    with agent.load(model.SerializeToString(), background=False) as session:
        for index in range(100, 100 + 2 * MOST_NOTES):
            with pytest.raises((ProcessorError, InputError), match="indices"):
                session.run({"x": np.ones((4, 4), np.float32), "i": np.int64([0, index])})
        assert 0 < len(session.plans.notes) <= MOST_NOTES


def test_a_feed_that_every_processor_fails_costs_no_core_group(agent: Agent) -> None:
    """An index beyond its table is the caller's fault: the next run goes to the core groups as before."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[4, 4] x, int64[2] i) => (float[2, 4] y) {
            y = Gather (x, i)
        }"""
    )
    with agent.load(model.SerializeToString(), background=False) as session:
        groups = agent.spread(session)
        feed = {"x": np.ones((4, 4), np.float32), "i": np.int64([0, 3])}
        for _ in range(3):
            with pytest.raises((ProcessorError, InputError), match="indices"):
                agent.submit(session, feed | {"i": np.int64([0, 99])}).result(60)
        job = agent.submit(session, feed)
        assert right(session, feed, job.result(60))
        assert job.where in groups


def test_a_job_is_answered_that_began_before_its_network_was_spread_anew(agent: Agent) -> None:
    """It was asked for at the shapes of the groups of before, those of now are of others: no group is to blame."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }"""
    )
    with agent.load(model.SerializeToString(), shapes={"x": (1, 4)}, background=False) as session:
        agent.spread(session)
        feed = {"x": np.ones((1, 4), np.float32)}
        job, started = agent.jobs._submit(session.plans, feed, Terms(), here=True)
        assert started is not None
        session.prepare(shapes={"x": (3, 4)})
        groups = agent.spread(session)
        agent.jobs._ran(started, Hold(agent.device.arbiter), only=True)
        assert right(session, feed, job.result(60))
        assert {agent.jobs.where.names[index] for index in agent.jobs._members[session.plans].executors} == set(groups)
        other = {"x": np.ones((3, 4), np.float32)}
        assert agent.submit(session, other).result(60)["y"].shape == (3, 4)

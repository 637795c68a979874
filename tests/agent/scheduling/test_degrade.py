"""Runs that would be late and were asked for ``degrade``: who answers them, and who may not."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import numpy as np
import pytest
from onnx import TensorProto, helper

from agent_sdk import Agent, Session
from agent_sdk.errors import (
    DeviceClosedError,
    InputError,
)
from agent_sdk.planner.field import Sample
from tests.agent.models import BRANCHING, branching_model
from tests.agent.scheduling.answers import occupied, right
from tests.agent.test_session_shapes import until


def test_nobody_answers_for_a_session_with_one_answer_for_one_input(agent: Agent, session: Session) -> None:
    """A deterministic session is refused another that answers its late runs, which would be to the bit no longer."""
    with agent.load(branching_model(), deterministic=True) as exact, pytest.raises(InputError, match="deterministic"):
        agent.degrade(exact, session)


def test_a_late_run_is_degraded_to_a_cheaper_network(agent: Agent, session: Session) -> None:
    """``degrade`` has another session answer that takes the same inputs; one with others is refused."""
    feed = dict(session.draw())
    with agent.load(BRANCHING, background=False) as cheaper, agent.load("squeezenet", background=True) as other:
        with pytest.raises(InputError, match="other inputs"):
            agent.degrade(session, other)
        agent.degrade(session, cheaper)
        samples = []
        for one in (session, cheaper):
            assert one.plans.last is not None
            one.plans.last.sample = Sample(("p", len(samples)))
            samples.append(one.plans.last.sample)
        assert right(session, feed, agent.submit(session, feed, deadline_ms=0.001, on_late="degrade").result(60))
        assert cheaper.stats.answered
        assert agent.jobs.stats(session.plans).late == 1
        assert [list(sample.missed) for sample in samples] == [[True], []]  # it was asked of the dearer one


def test_who_cannot_answer_for_another_is_refused(agent: Agent) -> None:
    """Inputs of another size, more or other outputs, other types, a way that leads back: no run is lost to them."""
    one, small, other = branching_model(), branching_model(size=8), branching_model()
    more, half = branching_model(), branching_model()
    more.graph.node.append(helper.make_node("Relu", ["x"], ["more"]))
    more.graph.output.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [1, 3, 16, 16]))
    half.graph.node[-1].output[0] = "single"
    half.graph.node.append(helper.make_node("Cast", ["single"], ["y"], to=TensorProto.FLOAT16))
    half.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    other.graph.node.append(helper.make_node("Identity", [other.graph.output[0].name], ["elsewhere"]))
    other.graph.output[0].name = "elsewhere"
    with ExitStack() as closing:
        own, second, third = (closing.enter_context(agent.load(one, background=True)) for _ in range(3))
        outputs = "other outputs"
        for proto, why in ((small, "other inputs"), (other, outputs), (more, outputs), (half, outputs)):
            with pytest.raises(InputError, match=why):
                agent.degrade(own, closing.enter_context(agent.load(proto)))
        with pytest.raises(InputError, match="answered by"):
            agent.degrade(own, own)
        agent.degrade(own, second)
        agent.degrade(second, third)
        with pytest.raises(InputError, match="answered by"):
            agent.degrade(third, own)
        feed = dict(own.draw())
        for session in (own, second, third):
            assert session.run(feed, deadline_ms=0.001, on_late="degrade")


@pytest.mark.parametrize("spread", [False, True])
def test_jobs_degraded_to_a_session_that_closes_are_answered_by_their_own(
    agent: Agent, session: Session, spread: bool
) -> None:
    """Whether they wait or run there, a session that closes fails its own jobs alone."""
    feed = dict(session.draw())
    with agent.load(BRANCHING, background=False) as cheaper:
        agent.degrade(session, cheaper)
        if spread:
            agent.spread(cheaper)
        with occupied(agent):
            degraded = [agent.submit(session, feed, deadline_ms=0.001, on_late="degrade") for _ in range(4)]
            own = [agent.submit(cheaper, feed) for _ in range(4)]
            closing = threading.Thread(target=cheaper.close)
            closing.start()
            until(lambda: all(job.done() for job in own[1:]))
        assert all(right(session, feed, job.result(60)) for job in degraded)
        closing.join(60)
    assert all(isinstance(job.exception(60), DeviceClosedError) for job in own)
    stats = agent.jobs.stats(session.plans)
    assert (stats.done, stats.failed, stats.cancelled) == (4, 0, 0)


def test_what_a_cheaper_network_does_not_answer_the_session_answers(agent: Agent) -> None:
    """It takes fewer sizes than the session, or fails: a late run is answered all the same, and as the session does."""
    own = branching_model()
    own.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    own.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    with agent.load(own) as session, agent.load(BRANCHING) as cheaper:
        agent.degrade(session, cheaper)
        feed = {"x": np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)}
        job = agent.submit(session, feed, deadline_ms=0.001, on_late="degrade")
        assert right(session, feed, job.result(60))
        assert job.result()["y"].shape == (2, 10)
        stats = agent.jobs.stats(session.plans)
        assert (stats.done, stats.failed, stats.queued, agent.jobs.waiting) == (1, 0, 0, 0)

"""What an application finds in its log: who answers and why, and nothing of libraries that it did not ask about."""

from __future__ import annotations

import logging

import pytest

from agent_sdk import Agent
from tests.agent.models import BRANCHING, one_op_model


def test_an_application_that_logs_everything_hears_of_us_alone(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """At DEBUG for everybody, a cold load says who answers, and nothing of the planner inside it or its libraries."""
    caplog.set_level(logging.DEBUG)
    with agent.load(BRANCHING, background=False) as session:
        told = [record for record in caplog.records if record.name.startswith("agent_sdk")]
        assert any(session.plans.said() in record.getMessage() and record.levelno == logging.INFO for record in told)
        assert session.plans.said() in repr(session)
        assert all(any(note in record.getMessage() for record in told) for note in session.notes)
    strangers = {record.name for record in caplog.records if record.levelno < logging.WARNING} - {"asyncio"}
    assert {name.partition(".")[0] for name in strangers} <= {"agent_sdk", "planner_api"}
    assert "404" not in caplog.text
    assert all(record.exc_info is None for record in told)


def test_a_fallback_is_logged_as_one_line(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing can be planned, the log says what runs instead and why, in one line."""
    caplog.set_level(logging.INFO, "agent_sdk")
    nonzero = one_op_model("NonZero", shape=(1, 4))
    nonzero.graph.output[0].type.tensor_type.elem_type = 7
    nonzero.graph.output[0].type.tensor_type.ClearField("shape")
    with agent.load(nonzero, background=False) as session:
        [note] = session.notes
    [line] = [record.getMessage() for record in caplog.records if "whole network runs on" in record.getMessage()]
    assert note in line
    assert "\n" not in line


def test_an_application_that_asks_is_told(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """A level that was set for a library is left as it is."""
    logger = logging.getLogger("aiosqlite")
    before = logger.level
    try:
        logger.setLevel(logging.DEBUG)
        caplog.set_level(logging.DEBUG)
        agent.load(BRANCHING, background=False).close()
        assert any(record.name == "aiosqlite" for record in caplog.records)
    finally:
        logger.setLevel(before)

"""What tests of several networks share."""

from __future__ import annotations

import pytest

from agent_sdk import Agent, Session


@pytest.fixture
def agent(returning_agent: Agent) -> Agent:
    """Jobs and joint plans begin where the plans of each network are known."""
    return returning_agent


@pytest.fixture
def session(returning_session: Session) -> Session:
    """A network with its plan."""
    return returning_session

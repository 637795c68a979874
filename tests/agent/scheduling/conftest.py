"""What tests of several networks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_sdk import Agent, Session
from tests.agent.models import BRANCHING


@pytest.fixture
def agent(returning_agent: Agent) -> Agent:
    """Jobs and joint plans begin where the plans of each network are known."""
    return returning_agent


@pytest.fixture
def session(agent: Agent) -> Iterator[Session]:
    """A network with its plan."""
    with agent.load(BRANCHING, background=False) as loaded:
        yield loaded

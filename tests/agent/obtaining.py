"""A plan obtained as a load does it, without compiling it."""

from __future__ import annotations

from typing import Any

from agent_sdk import Agent
from agent_sdk.model import Model
from agent_sdk.planner.supplier import Obtained


def obtained_by(agent: Agent, model: Model, **how: Any) -> Obtained:
    """What ``Obtainer.obtain`` of an agent gives for a model."""
    return agent._services.fit_for(model).obtainer.obtain(model, **how)

"""The HOPE agent: measures a device, asks the planner, and executes the plan.

``with Agent() as agent: outputs = agent.load("model.onnx").run({"input": array})``. Errors are in ``agent_sdk.errors``.
"""

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_sdk.agent import Agent
    from agent_sdk.planner.client import PlannerClient
    from agent_sdk.session import Session

__all__ = ["Agent", "PlannerClient", "Session"]

_HOME = {"Agent": "agent_sdk.agent", "PlannerClient": "agent_sdk.planner.client", "Session": "agent_sdk.session"}

# ONNX Runtime sends usage events to its makers once it is imported, unless this variable is set by then. An agent tells
# nobody anything whom its owner did not name; an owner who sets the variable decides.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def __getattr__(name: str) -> Any:
    """Import the public classes when they are first asked for: the runtimes behind them take a second to load."""
    if name not in _HOME:
        raise AttributeError(f"module 'agent_sdk' has no attribute '{name}'")
    from importlib import import_module

    try:
        return getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as error:
        raise ImportError(f"{error}; {name} needs an extra: pip install 'hope-inference[agent]'") from None

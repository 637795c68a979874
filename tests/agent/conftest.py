"""What tests of the agent share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_sdk import Agent
from agent_sdk.device.discovery import discover
from agent_sdk.runtimes import Processor
from tests.agent.haste import measure_hastily


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """An agent on ONNX Runtime's processors with an embedded planner and an empty cache."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path))
    measure_hastily(monkeypatch)
    with Agent(processors="ort") as made:
        yield made


@pytest.fixture(scope="module")
def processors(tmp_path_factory: pytest.TempPathFactory) -> list[Processor]:
    """All processors of this machine."""
    return discover(cache=tmp_path_factory.mktemp("ort"))

"""What tests of the agent share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import make_url

from agent_sdk import Agent
from agent_sdk.device.discovery import discover
from agent_sdk.runtimes import Processor
from planner_api import runtime
from tests.agent.haste import measure_hastily


@pytest.fixture(scope="session", autouse=True)
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An embedded planner's new database is a copy of one: its tables have come to be in the planner's own tests."""
    template = tmp_path_factory.mktemp("template") / "planner.sqlite"
    upgrade = runtime.upgrade
    upgrade(f"sqlite:///{template}")

    def copied(url: str) -> bool:
        path = Path(str(make_url(url).database))
        with suppress(OSError):  # the database that cannot be made says so
            if not path.exists():
                shutil.copy(template, path)
        return upgrade(url)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(runtime, "upgrade", copied)
        yield


@pytest.fixture(autouse=True)
def probing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No children that compile networks first, which takes each a second: ``runtimes/test_probe.py`` has them."""
    monkeypatch.setattr("agent_sdk.runtimes.probe._crash", lambda compiler, file: "")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring and solving take little time."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: None) -> Iterator[Agent]:
    """An agent on ONNX Runtime's processors with an embedded planner and an empty cache."""
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path))
    with Agent(processors="ort") as made:
        yield made


@pytest.fixture(scope="module")
def processors(tmp_path_factory: pytest.TempPathFactory) -> list[Processor]:
    """All processors of this machine."""
    return discover(cache=tmp_path_factory.mktemp("ort"))

"""What tests of the agent share."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_sdk import Agent, Session
from agent_sdk.engine import Device
from agent_sdk.runtimes.base import Processor
from agent_sdk.runtimes.offered import discover
from tests.agent.haste import hasten, measure_hastily, plan_in_a_thread, without_children
from tests.agent.models import BRANCHING, branching_model
from tests.agent.once import made_once
from tests.planner.in_thread import forget_all

__all__ = ["made_once"]


@pytest.fixture(autouse=True)
def probing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No children, which take each a second: ``test_children.py`` has them."""
    without_children(monkeypatch)


@pytest.fixture(autouse=True)
def planning_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The embedded planner computes in a thread: its child takes a second to start (``test_embedded.py`` has it)."""
    forget_all()
    plan_in_a_thread(monkeypatch)


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


@contextmanager
def returning(known: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, processors: str) -> Iterator[Agent]:
    """An agent that has planned ``BRANCHING`` and a narrower one: ``known`` is what it keeps, once for all tests."""
    if not known.exists():
        with pytest.MonkeyPatch.context() as patched:
            hasten(patched)
            with Agent(processors=processors, cache=known) as made:
                for channels in (4, 8):
                    made.load(branching_model(channels).SerializeToString(), background=False).close()
    shutil.copytree(known, folder, dirs_exist_ok=True)
    monkeypatch.setenv("HOPE_CACHE_DIR", str(folder))
    with Agent(processors=processors) as made:
        yield made


@pytest.fixture(scope="session")
def known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where to find what agents keep that have planned before."""
    return tmp_path_factory.mktemp("known")


@pytest.fixture
def returning_agent(known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: None) -> Iterator[Agent]:
    """An agent as ``agent`` is, which has planned before: for tests of what comes after planning."""
    with returning(known / "ort", tmp_path, monkeypatch, "ort") as made:
        yield made


@pytest.fixture
def returning_session(returning_agent: Agent) -> Iterator[Session]:
    """A network with its plan."""
    with returning_agent.load(BRANCHING, background=False) as loaded:
        yield loaded


@pytest.fixture
def agent_apart(known: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: None) -> Iterator[Agent]:
    """One that has planned before on torch's CPU as on a GPU: in a memory of its own, whose tensors are torch's."""
    import torch

    from agent_sdk.runtimes.torch import place, processor

    class Apart(processor.TorchProcessor):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.place = place.DevicePlace("cpu", torch.device("cpu"))
            self.spec = self.spec.model_copy(update={"place": self.place.name})

    monkeypatch.setattr(processor, "TorchProcessor", Apart)
    with returning(known / "apart", tmp_path, monkeypatch, "cpu") as made:
        yield made


@pytest.fixture(scope="module")
def processors(tmp_path_factory: pytest.TempPathFactory) -> list[Processor]:
    """All processors of this machine."""
    return discover(cache=tmp_path_factory.mktemp("ort"))


@pytest.fixture(scope="module")
def device(processors: list[Processor]) -> Iterator[Device]:
    """All processors of this machine, ready to run."""
    with Device(processors) as made:
        yield made


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Device]:
    """One core with ONNX Runtime."""
    with Device(discover("ort", cache=tmp_path_factory.mktemp("ort"))[:1]) as made:
        yield made

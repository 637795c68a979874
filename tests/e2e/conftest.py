"""What every end-to-end test starts from: a directory of its own and a small model on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.haste import hasten, measure_hastily
from tests.agent.models import branching_model
from tests.agent.once import made_once
from tests.planner.in_thread import forget_all

__all__ = ["made_once"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the agent an empty cache directory, no token, and a planner that solves within half a second; no children
    of it, which take seconds to start: a first run with them is ``first`` in ``test_main_job.py``.
    """
    forget_all()
    hasten(monkeypatch)
    return at_home(tmp_path, monkeypatch)


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """Return a model of two branches and a final softmax, as a file."""
    return model_in(tmp_path)


def at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the agent keep everything in this folder, know no token, measure hastily and solve within half a second."""
    directory = folder / "cache"
    monkeypatch.setenv("HOPE_CACHE_DIR", str(directory))
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.5")
    monkeypatch.delenv("HOPE_TOKEN", raising=False)
    measure_hastily(monkeypatch)
    return directory


def model_in(folder: Path) -> Path:
    """The small model, as a file in this folder."""
    path = folder / "branching.onnx"
    path.write_bytes(branching_model().SerializeToString())
    return path

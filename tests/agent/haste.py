"""Tests care for what is done with figures, not for how good the figures are."""

from __future__ import annotations

import pytest

from agent_sdk import contest, examine, session


def measure_hastily(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait until the machine is quiet: measure as often as at least, whatever else runs."""
    monkeypatch.setattr(examine, "REMEASURE_S", 0.1)
    monkeypatch.setattr(session, "REMEASURE_S", 0.1)
    monkeypatch.setattr(contest, "PATIENCE_S", 0.1)

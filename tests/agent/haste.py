"""Tests care for what is done with figures, not for how good the figures are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agent_sdk import session
from agent_sdk.cli import examine
from agent_sdk.measure import turns
from agent_sdk.measure.steady import Witness


def measure_hastily(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait until the machine is quiet: measure as often as at least, and take every core for steady."""

    def at_once(self: Witness, call: Callable[[], Any], deadline: float) -> tuple[Any, bool]:
        return call(), True

    monkeypatch.setattr(examine, "REMEASURE_S", 0.0)
    monkeypatch.setattr(session, "REMEASURE_S", 0.0)
    monkeypatch.setattr(turns, "MOST_ROUNDS", turns.ROUNDS)
    monkeypatch.setattr(Witness, "steadily", at_once)

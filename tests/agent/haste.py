"""Tests care for what is done with figures, not for how good the figures are.

``python -m tests.agent.haste`` is ``hope-agent``, hastened.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from agent_sdk.cli import main
from agent_sdk.journey import trial
from agent_sdk.machine import timing
from agent_sdk.machine.witness import Witness
from agent_sdk.measure import profiler, rehearsal
from tests.planner.in_thread import InThread


def measure_hastily(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait until the machine is quiet: take every core for steady, and measure and try nobody for long."""

    def at_once(self: Witness, call: Callable[[], Any]) -> tuple[Any, float]:
        return call(), 1.0

    monkeypatch.setattr(timing, "MAX_REPEATS", timing.MIN_REPEATS)
    monkeypatch.setattr(timing, "until_asleep", lambda: None)
    monkeypatch.setattr(profiler, "ROUNDS", timing.LEAST)
    monkeypatch.setattr(rehearsal, "ROUNDS", timing.LEAST)
    monkeypatch.setattr(rehearsal, "LAUNCHES", 8)
    monkeypatch.setattr(trial, "STAGES", ((1, trial.inf), (1, 1.3)))
    monkeypatch.setattr(Witness, "slowness", lambda self, *, rest=False: 1.0)
    monkeypatch.setattr(Witness, "kept_waiting", at_once)


def without_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run nothing in a child first."""
    monkeypatch.setattr("agent_sdk.first.children.possible", lambda: False)


def plan_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the embedded planner compute in a thread of this process."""
    monkeypatch.setattr("planner_api.runtime.JobProcess", InThread)


def hasten(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of these, where no fixture of this folder does it: in other processes, and for fixtures of a whole module."""
    measure_hastily(monkeypatch)
    without_children(monkeypatch)
    plan_in_a_thread(monkeypatch)


if __name__ == "__main__":
    hasten(pytest.MonkeyPatch())
    sys.exit(main())

"""Which runs the engine's benchmark counts: every published ratio rests on it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import pytest

from agent_sdk.machine.witness import SLOW, Witness, calm
from benchmarks.engine import measuring
from benchmarks.engine.measuring import measure


@pytest.mark.parametrize(("looks", "quiet"), [(repeat(1.0), True), (repeat(2 * SLOW), False)])
def test_every_configuration_has_its_rounds(
    looks: Iterator[float], quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is run as often as the others; a machine that is never calm ends with what there is, and says so."""
    monkeypatch.setattr(measuring, "LEAST_S", 0.0)
    monkeypatch.setattr(Witness, "slowness", lambda self, *, rest=False: next(looks))
    monkeypatch.setattr(Witness, "kept_waiting", lambda self, call: (call(), 1.0))
    done: list[str] = []
    found = measure({"a": lambda: done.append("a"), "b": lambda: done.append("b")}, 4, Witness(), 0.2)
    assert len(found["a"]) == len(found["b"]) >= 4
    assert min(map(done.count, "ab")) >= 2 * 4
    assert abs(done.count("a") - done.count("b")) in (0, 2)  # time ends within a round, which counts for nobody
    assert {calm(turn.disturbance) for own in found.values() for turn in own} == {quiet}


def test_calm_rounds_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disturbed rounds are left out once there are enough calm ones."""
    monkeypatch.setattr(measuring, "LEAST_S", 0.0)
    looks = iter([1.0, 2 * SLOW, 1.0, 1.0, 2 * SLOW, 1.0, *repeat(1.0, 8)])
    monkeypatch.setattr(Witness, "slowness", lambda self, *, rest=False: next(looks))
    monkeypatch.setattr(Witness, "kept_waiting", lambda self, call: (call(), 1.0))
    results = iter(range(100))
    found = measure({"a": lambda: next(results)}, 3, Witness(), 60.0)["a"]
    assert sorted(turn.result for turn in found) == [3, 7, 9]  # each turn is two runs, the second of which counts


def test_under_load_every_run_counts() -> None:
    """Without a witness nothing is left out: load is what is to be measured."""
    found = measure({"a": lambda: "told", "b": lambda: None}, 5, None, 0.0)
    assert [len(own) for own in found.values()] == [5, 5]
    assert {turn.result for turn in found["a"]} == {"told"}

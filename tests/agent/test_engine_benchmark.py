"""Which runs the engine's benchmark counts: every published ratio rests on it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

import pytest

from agent_sdk.steady import SLOW, Witness
from benchmarks import engine
from benchmarks.engine import Sample, counted, measure


def samples(*slowness: float) -> list[Sample]:
    """Runs with these looks of the witness, numbered in the order in which they were taken."""
    return [Sample(us=float(index), result=None, slowness=value) for index, value in enumerate(slowness)]


@pytest.mark.parametrize(
    ("slowness", "least", "runs"),
    [
        ((1.0, 1.1, 2.0, 1.2), 3, {0, 1, 3}),
        ((1.0, 1.1, 2.0, 1.2), 2, {0, 1, 3}),
        ((1.9, 1.8, 1.7, 1.6, 1.5, 1.4), 1, {4, 5}),
        ((1.9, 1.8, 1.7, 1.6, 1.5, 1.4), 4, {2, 3, 4, 5}),
        ((1.0, 3.0, 2.0, 2.5, 2.4, 2.3), 2, {0, 2}),
        ((2.0,), 5, {0}),
    ],
)
def test_calm_runs_count_or_else_the_calmest(slowness: tuple[float, ...], least: int, runs: set[int]) -> None:
    """All calm runs where there are enough; else the calmest third, but never fewer than asked for."""
    assert {int(sample.us) for sample in counted(samples(*slowness), least)} == runs


@pytest.mark.parametrize(("looks", "calm"), [(repeat(1.0), True), (repeat(2 * SLOW), False)])
def test_every_configuration_has_its_rounds(
    looks: Iterator[float], calm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is run as often as the others; a machine that is never calm ends with what there is, and says so."""
    monkeypatch.setattr(engine, "LEAST_S", 0.0)
    monkeypatch.setattr(Witness, "slowness", lambda self, seconds=0.0: next(looks))
    done: list[str] = []
    found = measure({"a": lambda: done.append("a"), "b": lambda: done.append("b")}, 4, Witness(), 0.2)
    assert done.count("a") == done.count("b") >= 2 * 4
    assert all(len(own) >= 4 for own in found.values())
    assert {sample.calm for own in found.values() for sample in own} == {calm}


def test_under_load_every_run_counts() -> None:
    """Without a witness nothing is left out: load is what is to be measured."""
    found = measure({"a": lambda: "told", "b": lambda: None}, 5, None, 0.0)
    assert [len(own) for own in found.values()] == [5, 5]
    assert {sample.result for sample in found["a"]} == {"told"}

"""What is said of a small GPU beside the cores, and by which benchmark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import pair, splits


def row(model: str, config: str, ratio: float, off: float | None = None) -> dict[str, Any]:
    """One contender of a network."""
    return {
        "model": model,
        "config": f"pair {config}",
        "median_us": 1000.0,
        "ratio_to_best_single": ratio,
        "predicted_us": off and 1000.0,
        "prediction_error": off,
        "overlap": 0.5,
        "segments": 3,
        "cuts": 1,
    }


def test_plans_are_held_against_what_was_asked_of_their_network() -> None:
    """Branching networks and those without have limits of their own; single processors and other networks none."""
    found = pair.verdicts(
        [
            row("inception_v3", "plan", 0.88, -0.09),
            row("inception_v3", "cuda:0/8sm", 1.0),
            row("vgg19", "plan", 0.88, -0.09),
            row("squeezenet", "plan", 0.5, 0.5),
        ]
    )
    assert [(one.must, one.ok) for one in found] == [(0.90, True), (0.10, True), (0.85, False), (0.08, False)]


def test_splits_measure_the_pair_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its table has a line per contender, its measures those of the plans."""
    monkeypatch.setattr(pair, "rows", lambda name: [row(name, "plan", 0.7, 0.01), row(name, "cuda:0/8sm", 1.0)])
    splits.main(["--pair", "vgg19,resnet50", "--json", str(tmp_path / "splits.json")])
    measures, (table,) = splits.on_pair(["vgg19", "resnet50"])
    assert [one.ok for one in measures] == [True] * 4
    assert [line[0] for line in table.rows] == ["vgg19", "vgg19", "resnet50", "resnet50"]

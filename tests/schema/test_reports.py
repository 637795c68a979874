"""What devices report, and the stages of a release: contradictions are refused with a message that names them."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from hope_schema import MeasuredRun, ReleaseRequest


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"measured_us": None}, "neither stands without the other"),
        ({"runs": 0}, "neither stands without the other"),
        ({"measured_us": None, "runs": 0}, "nothing to report"),
        ({"measured_us": None, "runs": 0, "failures": 1}, None),
        ({"measured_us": None, "runs": 0, "wrong": 1}, None),
        ({"measured_us": None, "runs": 0, "deadlines": 2, "missed": 2}, None),
        ({"deadlines": 2, "missed": 3}, "more runs missed"),
        ({"p99_us": 4.9}, "no less"),
        ({"measured_us": None, "runs": 0, "failures": 1, "p99_us": 9.0}, "of the same runs"),
        ({"p99_us": 5.0}, None),
        ({}, None),
    ],
)
def test_a_time_and_runs_stand_together(change: dict[str, Any], words: str | None) -> None:
    """A median has runs and runs have a median; without either something else happened; all figures agree."""
    said: dict[str, Any] = {"plan_id": "p", "plan_version": 1, "measured_us": 5.0, "runs": 3} | change
    if words is None:
        assert MeasuredRun(**said).runs == said["runs"]
    else:
        with pytest.raises(ValidationError, match=words):
            MeasuredRun(**said)


@pytest.mark.parametrize("stages", [(0.5, 0.1, 1.0), (0.5, 0.5, 1.0), (0.1, 0.5), (0.0, 1.0), (0.5, 1.5), ()])
def test_stages_rise_to_all(stages: tuple[float, ...]) -> None:
    """Each stage has more devices than the one before, and the last one has all."""
    assert ReleaseRequest(model="net:2", stages=(0.5, 1.0)).stages == (0.5, 1.0)
    with pytest.raises(ValidationError, match="stages"):
        ReleaseRequest(model="net:2", stages=stages)

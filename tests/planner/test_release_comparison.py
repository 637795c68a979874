"""What a device reports of two versions, compared."""

from __future__ import annotations

import itertools

from hope_schema import (
    MeasuredRun,
)
from planner_api.rollout.counting import compare


def said(
    us: float, runs: int = 64, failures: int = 0, wrong: int = 0, missed: int = 0, deadlines: int = 64
) -> MeasuredRun:
    """What a device says of a version."""
    return MeasuredRun(
        plan_id="plan", plan_version=1, measured_us=us, runs=runs, failures=failures, wrong=wrong, missed=missed,
        deadlines=deadlines,
    )  # fmt: skip


def test_exchanging_before_and_after_exchanges_worse_and_better() -> None:
    """The comparison treats both versions alike: that is what the test's error rate rests on."""
    opposite = {"slower": "faster", "failing": "mended", "wrong": "righted", "missing": "keeping"}
    opposite |= {value: key for key, value in opposite.items()}
    drawn = itertools.product((90.0, 99.0, 110.0), (0, 2), (0, 1), (0, 3))
    reports = [said(us, 64 - failures - wrong, failures, wrong, missed) for us, failures, wrong, missed in drawn]
    for one, other in itertools.product(reports, repeat=2):
        forth, back = compare(one, other, 0.05), compare(other, one, 0.05)
        assert {opposite[name]: count for name, count in forth.items()} == dict(back)


def test_more_runs_are_no_more_failures() -> None:
    """A device that ran far more often since is not called failing for one failure among them."""
    assert not compare(said(1.0, runs=10), said(1.0, runs=1000, failures=1), 0.05)["failing"]
    assert compare(said(1.0, runs=1000), said(1.0, runs=10, failures=1), 0.05)["failing"]
    assert not compare(None, said(1.0, failures=1), 0.05)
    assert not compare(said(1.0, deadlines=10), said(1.0, missed=1, deadlines=1000), 0.05)["missing"]
    assert compare(said(1.0, deadlines=1000), said(1.0, missed=1, deadlines=10), 0.05)["missing"]

"""Releases to a simulated fleet, judged by the product's own rule: its stages, comparison, evidence and next step.

A device asks for its plan once a day at a moment of its own, and reports half an hour after it got a new version: the
median of ``SAMPLE`` runs, each with its noise. What it reported of the version before was the median of as many.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import numpy as np

from agent_sdk.planner.field import SAMPLE
from hope_schema import MeasuredRun, ReleaseRequest
from planner_api.db.tables import ReleasePartRow, ReleaseRow
from planner_api.devices.groups import position
from planner_api.rollout import judging
from planner_api.rollout.counting import COUNTS, compare

NOISE = 0.15
"""Standard deviation of the logarithm of one run."""
TICK_S = 600.0
"""How often the simulated planner looks (the real one does every second)."""
DAY_S = 86_400.0
REPORT_S = 1800.0
"""From a new version to the report on it."""


@dataclass(frozen=True)
class Outcome:
    """How a simulated release ended: taken back or not, the part of the fleet that had it, and after how many days."""

    taken_back: bool
    share: float
    days: float


def simulate(seed: int, *, devices: int, socs: int, hit: float, slower: float) -> Outcome:
    """Release a plan version to a fleet in which ``hit`` of the SoCs are ``slower`` with it.

    Args:
        seed: of everything.
        devices: of the fleet.
        socs: dealt out to the devices at random.
        hit: part of the SoCs that are hit.
        slower: by how much (0.1: ten per cent).
    """
    rng = np.random.default_rng(seed)
    soc = rng.integers(0, socs, devices)
    worse = rng.permutation(socs) < round(hit * socs)
    asks = rng.uniform(0.0, DAY_S, devices)
    release_id = f"r-{seed:024x}"
    place = np.array([position(f"device-{number}", release_id) for number in range(devices)])
    row, parts = _release(release_id, devices, socs)
    got_at = np.full(devices, np.inf)
    counted = np.zeros(devices, dtype=bool)
    now, stage = 0.0, -1
    while True:
        if row.stage != stage:
            stage = row.stage
            new = (place < row.stages[stage]) & np.isinf(got_at)
            got_at[new] = now + (asks[new] - now) % DAY_S
        now += TICK_S
        ready = np.flatnonzero((got_at + REPORT_S <= now) & ~counted)
        counted[ready] = True
        _count(parts, soc[ready], _compared(rng, worse[soc[ready]], slower, row.tolerance))
        with patch.object(judging, "datetime", _Clock(row.created_at + timedelta(seconds=now))):
            step = judging.next_step(row, parts)
        share = float((got_at <= now).mean())
        if step == "take back":
            return Outcome(True, share, now / DAY_S)
        if step == "advance":
            if stage + 1 == len(row.stages):
                return Outcome(False, share, now / DAY_S)
            row.stage, row.stage_since = stage + 1, row.created_at + timedelta(seconds=now)


class _Clock:
    """Stands in for the clock of the rule."""

    def __init__(self, moment: datetime) -> None:
        self._moment = moment

    def now(self, _zone: object) -> datetime:
        return self._moment


def _release(release_id: str, devices: int, socs: int) -> tuple[ReleaseRow, list[ReleasePartRow]]:
    """A release as admins begin it when they say no more than what."""
    asked, began = ReleaseRequest(model="network"), datetime(2026, 1, 1, tzinfo=UTC)
    options = asked.model_dump(include={"reported", "hold_s", "approval", "tolerance", "error_rate"})
    row = ReleaseRow(
        id=release_id, devices=devices, stages=list(asked.stages), stage=0, state="running",
        staged=[round(share * devices) for share in asked.stages], left=0, claims={},
        created_at=began, stage_since=began, **options,
    )  # fmt: skip
    return row, [ReleasePartRow(part=f"p-{i}", soc=f"soc-{i}", **dict.fromkeys(COUNTS, 0)) for i in range(socs)]


def _compared(rng: np.random.Generator, worse: np.ndarray, slower: float, tolerance: float) -> list[Counter[str]]:
    """What comes of each device's two reports."""
    runs = np.exp(rng.normal(0.0, NOISE, (2, len(worse), SAMPLE)))
    before, after = np.median(runs, axis=2)
    after = after * np.where(worse, 1.0 + slower, 1.0)
    return [compare(_run(1, float(a)), _run(2, float(b)), tolerance) for a, b in zip(before, after, strict=True)]


def _run(version: int, measured_us: float) -> MeasuredRun:
    return MeasuredRun(plan_id="p", plan_version=version, measured_us=measured_us, runs=SAMPLE)


def _count(parts: list[ReleasePartRow], soc: np.ndarray, compared: list[Counter[str]]) -> None:
    for number, found in zip(soc.tolist(), compared, strict=True):
        part = parts[number]
        part.reported += 1
        part.slower += found["slower"]
        part.faster += found["faster"]

"""Releases and their parts as the contract says them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from hope_schema import Comparison, Release, ReleasePart
from hope_schema.releases import ReleaseState
from planner_api.db.tables import ReleasePartRow, ReleaseRow
from planner_api.releases.decision import Pairs, stratum_evidence
from planner_api.releases.judging import judge, waits_for, wanted
from planner_api.releases.splits import selector_of

LOG10 = math.log(10.0)


def release_view(row: ReleaseRow, parts: Sequence[ReleasePartRow]) -> Release:
    """A release and how it goes."""
    found = judge(parts)
    share = {"done": 1.0, "rolled_back": 0.0}.get(row.state, row.stages[row.stage])
    return Release(
        release_id=row.id,
        model=row.model,
        model_hash=row.model_hash,
        alias=row.alias,
        before=row.before,
        after=row.after,
        group=row.group,
        selector=selector_of(row),
        stages=tuple(row.stages),
        stage=row.stage,
        share=share,
        state=cast(ReleaseState, row.state),
        reason=waits_for(row, found.reported) if row.state == "waiting" else row.reason,
        approval=row.approval,
        tolerance=row.tolerance,
        error_rate=row.error_rate,
        hold_s=row.hold_s,
        devices=row.devices,
        wanted=wanted(row),
        reported=found.reported,
        plans=sum(part.plan_id is not None for part in parts),
        latency=comparison([p.slower for p in parts], [p.faster for p in parts], found.latency),
        failures=comparison([p.failing for p in parts], [p.mended for p in parts], found.failures),
        answers=comparison([p.wrong for p in parts], [p.righted for p in parts], found.answers),
        evidence=found.together / LOG10,
        created_at=row.created_at,
        stage_since=row.stage_since,
        ended_at=row.ended_at,
    )


def comparison(worse: Sequence[int], better: Sequence[int], found: float) -> Comparison:
    """Counts of parts, and the evidence of all of them as a natural logarithm."""
    return Comparison(worse=sum(worse), better=sum(better), evidence=found / LOG10)


def part_view(row: ReleasePartRow) -> ReleasePart:
    """A part, with the evidence of its own devices."""

    def compared(worse: int, better: int) -> Comparison:
        return comparison([worse], [better], stratum_evidence(Pairs(worse, better)))

    return ReleasePart(
        soc=row.soc,
        plan_id=row.plan_id,
        before=row.before,
        after=row.after,
        reported=row.reported,
        latency=compared(row.slower, row.faster),
        failures=compared(row.failing, row.mended),
        answers=compared(row.wrong, row.righted),
    )

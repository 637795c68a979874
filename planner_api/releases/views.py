"""Releases and their parts as the contract says them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hope_schema import Comparison, Release, ReleasePart
from planner_api.db.tables import ReleasePartRow, ReleaseRow
from planner_api.db.told import told
from planner_api.releases.decision import Pairs, stratum_evidence
from planner_api.releases.judging import judge, waits_for, wanted
from planner_api.releases.splits import selector_of

LOG10 = math.log(10.0)


def release_view(row: ReleaseRow, parts: Sequence[ReleasePartRow]) -> Release:
    """A release and how it goes."""
    found = judge(parts)
    share = {"done": 1.0, "rolled_back": 0.0}.get(row.state, row.stages[row.stage])
    return told(
        Release,
        row,
        release_id=row.id,
        selector=selector_of(row),
        stages=tuple(row.stages),
        share=share,
        reason=waits_for(row, found.reported) if row.state == "waiting" else row.reason,
        wanted=wanted(row),
        reported=found.reported,
        plans=sum(part.plan_id is not None for part in parts),
        latency=comparison([p.slower for p in parts], [p.faster for p in parts], found.latency),
        failures=comparison([p.failing for p in parts], [p.mended for p in parts], found.failures),
        answers=comparison([p.wrong for p in parts], [p.righted for p in parts], found.answers),
        evidence=found.together / LOG10,
    )


def comparison(worse: Sequence[int], better: Sequence[int], found: float) -> Comparison:
    """Counts of parts, and the evidence of all of them as a natural logarithm."""
    return Comparison(worse=sum(worse), better=sum(better), evidence=found / LOG10)


def part_view(row: ReleasePartRow) -> ReleasePart:
    """A part, with the evidence of its own devices."""

    def compared(worse: int, better: int) -> Comparison:
        return comparison([worse], [better], stratum_evidence(Pairs(worse, better)))

    return told(
        ReleasePart,
        row,
        latency=compared(row.slower, row.faster),
        failures=compared(row.failing, row.mended),
        answers=compared(row.wrong, row.righted),
    )

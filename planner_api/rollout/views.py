"""Releases and their parts as the contract says them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hope_schema import Comparison, Release, ReleasePart
from planner_api.db.messages import message_of
from planner_api.db.tables import ReleaseClaimRow, ReleasePartRow, ReleaseRow
from planner_api.rollout.decision import Pairs, stratum_evidence
from planner_api.rollout.judging import KINDS, judge, pairs, waits_for, wanted
from planner_api.rollout.splits import selector_of

LOG10 = math.log(10.0)


def release_view(row: ReleaseRow, parts: Sequence[ReleasePartRow], claims: Sequence[ReleaseClaimRow] = ()) -> Release:
    """A release and how it goes."""
    found = judge(parts, claims)
    share = {"done": 1.0, "rolled_back": 0.0}.get(row.state, row.stages[row.stage])
    return message_of(
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
        evidence=found.together / LOG10,
        **{kind: _comparison(parts, kind, evidence) for kind, evidence in found.evidence.items()},
    )


def part_view(row: ReleasePartRow) -> ReleasePart:
    """A part, with the evidence of its own devices."""
    return message_of(
        ReleasePart, row, **{kind: _comparison([row], kind, stratum_evidence(pairs(row, kind))) for kind in KINDS}
    )


def _comparison(parts: Sequence[ReleasePartRow], kind: str, evidence: float) -> Comparison:
    """Counts of parts, and the evidence of all of them, from a natural logarithm."""
    total = sum((pairs(part, kind) for part in parts), Pairs())
    return Comparison(worse=total.worse, better=total.better, evidence=evidence / LOG10)

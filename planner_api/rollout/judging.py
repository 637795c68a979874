"""What the counts of a release say of it, and what it wants next. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from hope_schema.wording import plural
from planner_api.db.tables import ReleasePartRow, ReleaseRow
from planner_api.rollout.decision import Pairs, does_harm, evidence, joint, stratum_evidence

Step = Literal["take back", "wait", "advance"]
PATIENCE = timedelta(days=1)
"""A stage that is over and still has too few reports this long after asks an admin."""


KINDS = {
    "latency": ("slower", "slower", "faster"),
    "failures": ("failing", "failing", "mended"),
    "answers": ("answering wrongly", "wrong", "righted"),
    "deadlines": ("missing more deadlines", "missing", "keeping"),
}
"""Kinds of harm: the word for it, and the columns of a part that count the devices that are worse, and better."""


@dataclass(frozen=True)
class Judgement:
    """What the counts of a release say: its evidence of each kind of harm, as natural logarithms."""

    evidence: dict[str, float]
    reported: int

    @property
    def together(self) -> float:
        """The evidence that a release is judged by."""
        return joint(list(self.evidence.values()))


def judge(parts: Sequence[ReleasePartRow]) -> Judgement:
    """Judge a release by the counts of its parts."""
    found = {kind: evidence(pairs(part, kind) for part in parts) for kind in KINDS}
    return Judgement(found, sum(part.reported for part in parts))


def pairs(part: ReleasePartRow, kind: str) -> Pairs:
    """The devices of a part that are worse in one kind, and better."""
    _, worse, better = KINDS[kind]
    return Pairs(getattr(part, worse), getattr(part, better))


def next_step(row: ReleaseRow, parts: Sequence[ReleasePartRow]) -> Step | None:
    """What a release wants now: to be taken back, to wait for an admin, to advance; None: nothing."""
    found = judge(parts)
    if does_harm(found.together, row.error_rate):
        return "take back"
    late = datetime.now(UTC) - row.stage_since - timedelta(seconds=row.hold_s)
    few = found.reported < wanted(row)
    if row.state == "paused" or late < (PATIENCE if few else timedelta()):
        return None
    if not few and not (row.approval and row.stage + 1 < len(row.stages)):
        return "advance"
    return None if row.state == "waiting" else "wait"


def wanted(row: ReleaseRow) -> int:
    """How many devices must have reported before this stage ends: at least one."""
    share: float = row.stages[row.stage]
    return max(1, math.floor(row.devices * share * row.reported))


def waits_for(row: ReleaseRow, reported: int) -> str:
    """Say in a clause what a release that waits is waiting for."""
    if reported < wanted(row):
        return f"{reported} of {plural(wanted(row), 'device')} wanted reported, and an admin decides"
    return "the next stage waits for an admin's approval"


def harm(parts: Sequence[ReleasePartRow], found: Judgement) -> str:
    """Say in one sentence what got worse, and where most."""
    kind = max(found.evidence, key=found.evidence.__getitem__)
    total = sum((pairs(part, kind) for part in parts), Pairs())
    most = max(parts, key=lambda part: stratum_evidence(pairs(part, kind)))
    there = f"{pairs(most, kind).worse} of {plural(most.reported, 'device')} with a report on {most.soc}"
    are = "is" if total.worse == 1 else "are"
    return (
        f"{plural(total.worse, 'device')} {are} {KINDS[kind][0]} than before and {total.better} the other way round; "
        f"most of all {there}"
    )

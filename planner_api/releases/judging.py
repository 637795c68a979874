"""What the counts of a release say of it, and what it wants next. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from planner_api.db.tables import ReleasePartRow, ReleaseRow
from planner_api.releases.decision import Pairs, does_harm, evidence, joint, stratum_evidence

Step = Literal["take back", "wait", "advance"]
PATIENCE = timedelta(days=1)
"""A stage that is over and still has too few reports this long after asks an operator."""


@dataclass(frozen=True)
class Judgement:
    """What the counts of a release say: its evidence of each kind of harm, and of all together, natural logarithms."""

    latency: float
    failures: float
    answers: float
    reported: int

    @property
    def together(self) -> float:
        """The evidence that a release is judged by."""
        return joint((self.latency, self.failures, self.answers))


def judge(parts: Sequence[ReleasePartRow]) -> Judgement:
    """Judge a release by the counts of its parts."""
    return Judgement(
        evidence(Pairs(part.slower, part.faster) for part in parts),
        evidence(Pairs(part.failing, part.mended) for part in parts),
        evidence(Pairs(part.wrong, part.righted) for part in parts),
        sum(part.reported for part in parts),
    )


def next_step(row: ReleaseRow, parts: Sequence[ReleasePartRow]) -> Step | None:
    """What a release wants now: to be taken back, to wait for an operator, to advance; None: nothing."""
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
        return f"{reported} of the {wanted(row)} devices that are wanted reported, and an operator decides"
    return "the next stage waits for an operator's approval"


def harm(parts: Sequence[ReleasePartRow], found: Judgement) -> str:
    """Say in one sentence what got worse, and where most."""
    kinds = {
        "slower": (found.latency, "slower", "faster"),
        "failing": (found.failures, "failing", "mended"),
        "answering wrongly": (found.answers, "wrong", "righted"),
    }
    word, (_, worse, better) = max(kinds.items(), key=lambda item: item[1][0])
    bad, good = (sum(getattr(part, name) for part in parts) for name in (worse, better))
    most = max(parts, key=lambda part: stratum_evidence(Pairs(getattr(part, worse), getattr(part, better))))
    there = f"{getattr(most, worse)} of {most.reported} devices that reported on {most.soc}"
    return f"{bad} devices are {word} than before and {good} the other way round; most of all {there}"

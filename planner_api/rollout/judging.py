"""What the counts of a release say of it, to people too, and what it wants next. Pure."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from hope_schema import Comparison, Release, ReleasePart
from hope_schema.wording import plural
from planner_api.db.paging import message_of
from planner_api.db.tables import Counts, ReleaseClaimRow, ReleasePartRow, ReleaseRow
from planner_api.devices.groups import selector_of
from planner_api.rollout.decision import Pairs, does_harm, evidence, joint, stratum_evidence

LOG10 = math.log(10.0)
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


def judge(parts: Sequence[ReleasePartRow], claims: Sequence[ReleaseClaimRow] = ()) -> Judgement:
    """Judge a release by the counts of its parts.

    Of each kind of harm the two claims are left out whose devices speak most against the release, and most for it: a
    claim is anybody's who holds it, as many times as it allows. So no claim takes a release back by itself, and none
    hides what all others see. ``claims`` are those that hold fewer than half of the devices.
    """
    by_claim: dict[int, dict[str, ReleaseClaimRow]] = defaultdict(dict)
    for row in claims:
        by_claim[row.claim_id][row.part] = row
    found = {kind: evidence(_without_extremes(parts, by_claim, kind)) for kind in KINDS}
    return Judgement(found, sum(part.reported for part in parts))


def _without_extremes(
    parts: Sequence[ReleasePartRow], claims: Mapping[int, Mapping[str, ReleaseClaimRow]], kind: str
) -> Iterator[Pairs]:
    """The pairs of each part, without the claims that have most worse ones, and most better ones, beyond the others."""
    surplus = {claim: sum(_surplus(row, kind) for row in rows.values()) for claim, rows in claims.items()}
    extremes = {most(surplus, key=surplus.__getitem__) for most in (min, max)} if surplus else set()
    for part in parts:
        found = pairs(part, kind)
        for claim in extremes:
            if surplus[claim] and part.part in claims[claim]:
                gone = pairs(claims[claim][part.part], kind)
                found = Pairs(found.worse - gone.worse, found.better - gone.better)
        yield found


def _surplus(row: ReleaseClaimRow, kind: str) -> int:
    found = pairs(row, kind)
    return found.worse - found.better


def pairs(part: Counts, kind: str) -> Pairs:
    """The devices of a part, or of a claim in it, that are worse in one kind, and better."""
    _, worse, better = KINDS[kind]
    return Pairs(getattr(part, worse), getattr(part, better))


def next_step(row: ReleaseRow, parts: Sequence[ReleasePartRow], claims: Sequence[ReleaseClaimRow] = ()) -> Step | None:
    """What a release wants now: to be taken back, to wait for an admin, to advance; None: nothing."""
    found = judge(parts, claims)
    if does_harm(found.together, row.error_rate):
        return "take back"
    late = datetime.now(UTC) - row.stage_since - timedelta(seconds=row.hold_s)
    few = found.reported < wanted(row) and not _enough_without_one(row, found.reported, claims)
    if row.state == "paused" or late < (PATIENCE if few else timedelta()):
        return None
    if not few and not (row.approval and row.stage + 1 < len(row.stages)):
        return "advance"
    return None if row.state == "waiting" else "wait"


def wanted(row: ReleaseRow) -> int:
    """How many devices must have reported before this stage ends: at least one, unless it takes none of those known."""
    return _wanted(row, 0)


def _wanted(row: ReleaseRow, silent: int) -> int:
    """The same without so many that the stage takes, too."""
    takers: float = row.staged[row.stage] - row.left * row.stages[row.stage] - silent
    return max(1 if takers > 0 or not row.devices else 0, math.floor(takers * row.reported))


def _enough_without_one(row: ReleaseRow, reported: int, claims: Sequence[ReleaseClaimRow]) -> bool:
    """Whether the stage is over but for the devices of one claim, which say nothing."""
    said: Counter[str] = Counter()
    for each in claims:
        said[str(each.claim_id)] += each.reported
    silent = {claim: staged[row.stage] for claim, staged in row.claims.items() if staged[row.stage]}
    return any(reported - said[claim] >= max(1, _wanted(row, count)) for claim, count in silent.items())


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


def release_view(row: ReleaseRow, parts: Sequence[ReleasePartRow], claims: Sequence[ReleaseClaimRow] = ()) -> Release:
    found = judge(parts, claims)
    share = {"done": 1.0, "rolled_back": 0.0}.get(row.state, row.stages[row.stage])
    return message_of(
        Release,
        row,
        release_id=row.id,
        selector=selector_of(row.selector),
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

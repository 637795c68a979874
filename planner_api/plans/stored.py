"""Plans in bytes that are made once, as they are stored and served, and those in memory, the newest used last out."""

import hashlib
from datetime import UTC, datetime

from planner_api.compression import zstd
from planner_api.db.tables import PlanVersionRow
from planner_api.plans.made import Made, PlanOrder
from planner_api.remembered import Remembered

OVERHEAD_BYTES = 2048
"""What an entry costs beside its body."""
FIGURES = ("makespan_us", "lower_bound_us", "gap", "found_by", "solve_us")
"""What is said of a version in columns."""
Key = tuple[str, int | None]
"""A plan's id, and one of its versions; None: the one that is served."""
PlanCache = Remembered[Key, PlanVersionRow]
"""The plans that this process serves without asking the database."""


def serialise(order: PlanOrder, made: Made, plan_id: str, version: int) -> PlanVersionRow:
    """A version of a plan, created now, with the bytes of its ``PlanReply``.

    Its ``etag`` is the weak tag of its JSON, the same in every content coding.
    """
    now = datetime.now(UTC)
    head = f'{{"plan_id":"{plan_id}","version":{version},"provisional":{str(order.provisional).lower()},'
    head += f'"created_at":"{now.isoformat()}","solve_us":{made.solve_us!r},"plan":'
    body = head.encode() + made.plan + b"}"
    return PlanVersionRow(
        plan_id=plan_id,
        version=version,
        provisional=order.provisional,
        created_at=now,
        etag=f'W/"{hashlib.sha256(body).hexdigest()[:32]}"',
        body_zstd=zstd(body),
        profile_version=order.rests_on[0][1],
        **{name: getattr(made, name) for name in FIGURES},
    )


def matches(if_none_match: str, etag: str) -> bool:
    """Whether an ``If-None-Match`` header names this version of the plan (RFC 9110, section 13.1.2)."""
    tags = [tag.strip() for tag in if_none_match.split(",")]
    return tags == ["*"] or etag.removeprefix("W/") in [tag.removeprefix("W/") for tag in tags]


def build_cache(capacity_bytes: int) -> PlanCache:
    return Remembered(capacity_bytes, lambda stored: len(stored.body_zstd) + OVERHEAD_BYTES)

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


class PlanCache:
    """The plans this process serves without asking the database."""

    def __init__(self, capacity_bytes: int) -> None:
        self._plans: Remembered[Key, PlanVersionRow] = Remembered(capacity_bytes, _size)

    @property
    def generation(self) -> int:
        return self._plans.generation

    def get(self, plan_id: str, version: int | None = None) -> PlanVersionRow | None:
        return self._plans.get((plan_id, version))

    def put(self, stored: PlanVersionRow, generation: int, version: int | None = None) -> None:
        """Keep a plan that was read from the database when ``generation`` stood."""
        self._plans.put((stored.plan_id, version), stored, generation)

    def forget(self, plan_id: str | None, version: int = 0) -> None:
        """Drop a plan that has a newer version; None drops them all (news may have been missed)."""
        if plan_id is not None and (found := self.get(plan_id)) is not None and 0 < version <= found.version:
            self._plans.generation += 1  # it is new enough, but what is being read may not be
        else:
            self._plans.forget(None if plan_id is None else (plan_id, None))


def _size(stored: PlanVersionRow) -> int:
    return len(stored.body_zstd) + OVERHEAD_BYTES

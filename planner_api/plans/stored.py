"""A plan as it is stored and served: bytes that are made once, when the plan is found."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime

from hope_schema import PlanReply
from planner_api.compression import unzstd, zstd


@dataclass(frozen=True)
class StoredPlan:
    """One version of a plan; ``etag`` is the weak tag of its JSON, the same in every content coding."""

    plan_id: str
    version: int
    provisional: bool
    etag: str
    body_zstd: bytes

    @property
    def body(self) -> bytes:
        return unzstd(self.body_zstd)

    def reply(self) -> PlanReply:
        return PlanReply.model_validate_json(self.body)


def serialise(plan: bytes, *, plan_id: str, version: int, provisional: bool, solve_us: float) -> StoredPlan:
    """Make the bytes of a ``PlanReply``, of a plan as JSON, that is created now."""
    head = f'{{"plan_id":"{plan_id}","version":{version},"provisional":{str(provisional).lower()},'
    head += f'"created_at":"{datetime.now(UTC).isoformat()}","solve_us":{float(solve_us)!r},"plan":'
    body = head.encode() + plan + b"}"
    etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    return StoredPlan(plan_id, version, provisional, etag, zstd(body))


def matches(if_none_match: str, etag: str) -> bool:
    """Whether an ``If-None-Match`` header names this version of the plan (RFC 9110, section 13.1.2)."""
    tags = [tag.strip() for tag in if_none_match.split(",")]
    return tags == ["*"] or etag.removeprefix("W/") in [tag.removeprefix("W/") for tag in tags]

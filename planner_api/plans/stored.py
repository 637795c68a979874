"""A plan as it is stored and served: bytes that are made once, when the plan is found."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from hope_schema import Plan
from planner_api.compression import gzipped, unzstd, zstd

Coding = Literal["zstd", "gzip", "identity"]


@dataclass(frozen=True)
class StoredPlan:
    """One version of a plan.

    ``etag`` is the strong tag of the JSON; the tag of a coded body ends in its coding (RFC 9110, section 8.8.3).
    """

    plan_id: str
    version: int
    provisional: bool
    etag: str
    body_zstd: bytes
    body_gzip: bytes

    def body(self, coding: Coding) -> bytes:
        """Return the reply in a content coding."""
        match coding:
            case "zstd":
                return self.body_zstd
            case "gzip":
                return self.body_gzip
            case "identity":
                return unzstd(self.body_zstd)

    def tag(self, coding: Coding) -> str:
        """Return the strong ETag of the reply in a content coding."""
        return self.etag if coding == "identity" else f'{self.etag[:-1]}-{coding}"'


def serialise(plan: Plan, *, plan_id: str, version: int, provisional: bool, solve_us: float) -> StoredPlan:
    """Make the bytes of a ``PlanReply`` that is created now."""
    head = f'{{"plan_id":"{plan_id}","version":{version},"provisional":{str(provisional).lower()},'
    head += f'"created_at":"{datetime.now(UTC).isoformat()}","solve_us":{float(solve_us)!r},"plan":'
    body = head.encode() + plan.model_dump_json().encode() + b"}"
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return StoredPlan(plan_id, version, provisional, etag, zstd(body), gzipped(body))


def plan_headers(stored: StoredPlan, coding: Coding, *, hit: bool) -> dict[str, str]:
    """Return the headers that every answer with a plan has, of status 200 and 304."""
    return {
        "etag": stored.tag(coding),
        "vary": "Accept-Encoding",
        "cache-control": "private, no-cache",
        "hope-plan-cache": "hit" if hit else "miss",
    }


def choose_coding(accepted: bytes | None) -> Coding:
    """Return the best coding an ``Accept-Encoding`` header allows (RFC 9110, 12.5.3), identity without one."""
    if accepted is None:
        return "identity"
    allowed = {}
    for item in accepted.decode("latin-1").lower().split(","):
        name, _, weight = item.partition(";")
        allowed[name.strip()] = not _is_zero(weight)
    for coding in ("zstd", "gzip"):
        if allowed.get(coding, False):
            return coding
    return "identity"


def matches(if_none_match: bytes, etag: str) -> bool:
    """Whether an ``If-None-Match`` header names this version of the plan, in whatever coding."""
    if if_none_match.strip() == b"*":
        return True
    core = etag[1:-1]
    for tag in if_none_match.decode("latin-1").split(","):
        name = tag.strip().removeprefix("W/").strip('"')
        if name.removesuffix("-zstd").removesuffix("-gzip") == core:
            return True
    return False


def _is_zero(weight: str) -> bool:
    name, _, value = weight.strip().partition("=")
    try:
        return name.strip() == "q" and float(value) == 0.0
    except ValueError:
        return False

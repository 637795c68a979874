"""A plan as it is stored and served: bytes that are made once, when the plan is found."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Literal

from hope_schema import Plan, PlanReply
from planner_api.compression import gzipped, unzstd, zstd
from planner_api.web.asgi import Headers

MAX_ANSWERS = 16
"""Kept ready per plan: a fleet's agents ask in two or three ways."""

Coding = Literal["zstd", "gzip", "identity"]


@dataclass(frozen=True)
class Answer:
    """What a request for a plan is answered with, and as ASGI's two messages, which are sent as they are."""

    status: int
    headers: Headers
    body: bytes

    @cached_property
    def messages(self) -> tuple[dict[str, object], dict[str, object]]:
        """Its head and its body."""
        head = {"type": "http.response.start", "status": self.status, "headers": self.headers}
        return head, {"type": "http.response.body", "body": self.body}


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
    _answers: dict[tuple[bytes | None, bytes | None], Answer] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """Those that are ready; the inflated body is not kept, because no cache accounts for it."""

    def reply(self) -> PlanReply:
        """What is served, read."""
        return PlanReply.model_validate_json(unzstd(self.body_zstd))

    def tag(self, coding: Coding) -> str:
        """Return the strong ETag of the reply in a content coding."""
        return self.etag if coding == "identity" else f'{self.etag[:-1]}-{coding}"'

    def answer(self, accepted: bytes | None, if_none_match: bytes | None = None, *, hit: bool = True) -> Answer:
        """Return the answer to a request: the plan, or 304 when the copy at hand is this version.

        Args:
            accepted: the request's ``Accept-Encoding``.
            if_none_match: its ``If-None-Match``; only a GET has one that counts.
            hit: the plan was there and not made for this request.
        """
        found = self._answers.get((accepted, if_none_match)) if hit else None
        if found is None:
            coding = choose_coding(accepted)
            status = 304 if if_none_match is not None and matches(if_none_match, self.etag) else 200
            found = self._make(status, coding, hit)
            if hit and (status, coding) != (200, "identity"):
                if len(self._answers) >= MAX_ANSWERS:
                    self._answers.clear()
                self._answers[accepted, if_none_match] = found
        return found

    def _make(self, status: int, coding: Coding, hit: bool) -> Answer:
        headers = [
            (b"etag", self.tag(coding).encode()),
            (b"vary", b"Accept-Encoding"),
            (b"cache-control", b"private, no-cache"),
            (b"hope-plan-cache", b"hit" if hit else b"miss"),
        ]
        if status == 304:
            return Answer(status, headers, b"")
        bodies = {"zstd": self.body_zstd, "gzip": self.body_gzip}
        body = bodies[coding] if coding in bodies else unzstd(self.body_zstd)
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if coding != "identity":
            headers.append((b"content-encoding", coding.encode()))
        return Answer(status, headers, body)


def serialise(plan: Plan, *, plan_id: str, version: int, provisional: bool, solve_us: float) -> StoredPlan:
    """Make the bytes of a ``PlanReply`` that is created now."""
    head = f'{{"plan_id":"{plan_id}","version":{version},"provisional":{str(provisional).lower()},'
    head += f'"created_at":"{datetime.now(UTC).isoformat()}","solve_us":{float(solve_us)!r},"plan":'
    body = head.encode() + plan.model_dump_json().encode() + b"}"
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    return StoredPlan(plan_id, version, provisional, etag, zstd(body), gzipped(body))


def choose_coding(accepted: bytes | None, among: Sequence[Coding] = ("zstd", "gzip")) -> Coding:
    """Return the first coding that an ``Accept-Encoding`` header allows (RFC 9110, 12.5.3), identity without one."""
    if accepted is None:
        return "identity"
    allowed = {}
    for item in accepted.decode("latin-1").lower().split(","):
        name, _, weight = item.partition(";")
        allowed[name.strip()] = not _is_zero(weight)
    for coding in among:
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

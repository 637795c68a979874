"""Answers made ready: what a plan is served with, put together once and not for every request."""

from __future__ import annotations

from http import HTTPStatus

from planner_api.plans.stored import Coding, StoredPlan, plan_headers

Headers = list[tuple[bytes, bytes]]

REQUEST_ID = b"x-request-id"


class Answer:
    """One answer made ready: as ASGI's headers and as the text of HTTP/1.1, both but for the request's id."""

    __slots__ = ("body", "head", "headers", "line", "status")

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.line = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode()
        self.head = b"".join(b"%b: %b\r\n" % pair for pair in headers) + REQUEST_ID + b": "


class Ready:
    """A plan with its answers made ready, per coding: of status 200 and of status 304."""

    __slots__ = ("_full", "_unchanged", "stored", "tags")

    def __init__(self, stored: StoredPlan) -> None:
        self.stored = stored
        codings: tuple[Coding, ...] = ("identity", "zstd", "gzip")
        self.tags = frozenset(stored.tag(coding).encode() for coding in codings)
        self._full: dict[Coding, Answer] = {}
        self._unchanged: dict[Coding, Answer] = {}

    def full(self, coding: Coding) -> Answer:
        """Return the answer of status 200 in a content coding."""
        found = self._full.get(coding)
        if found is None:
            body = self.stored.body(coding)
            headers = [*self._headers(coding), (b"content-type", b"application/json")]
            headers.append((b"content-length", str(len(body)).encode()))
            if coding != "identity":
                headers.append((b"content-encoding", coding.encode()))
            found = Answer(200, headers, body)
            # The inflated body is many times as large as what the cache accounts for, and agents do not ask for it.
            if coding != "identity":
                self._full[coding] = found
        return found

    def unchanged(self, coding: Coding) -> Answer:
        """Return the answer of status 304 in a content coding."""
        found = self._unchanged.get(coding)
        if found is None:
            found = self._unchanged[coding] = Answer(304, self._headers(coding), b"")
        return found

    def _headers(self, coding: Coding) -> Headers:
        headers = plan_headers(self.stored, coding, hit=True)
        return [(name.encode(), value.encode()) for name, value in headers.items()]

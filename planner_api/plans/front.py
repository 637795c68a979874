"""The cache in front of the application: a plan that is in memory is answered here, in pure ASGI.

Whoever asks has been authenticated and counted by the layers outside. Everything this layer does not know for certain
(another path, a body it has not seen, a device that wants to wait for a better plan) is passed on.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from planner_api.http.asgi import Asgi, Scope
from planner_api.plans.cache import PlanCache
from planner_api.plans.stored import Coding, StoredPlan, choose_coding, matches

Headers = list[tuple[bytes, bytes]]

MAX_KEY_BYTES = 2048
"""Longest ``POST /plans`` body that is remembered: a key is about 150 bytes."""
MAX_KEYS = 50_000
MAX_CODINGS = 1024
_GET = "/plans/"
_POST = "/plans"


class Ready:
    """A plan with the headers of its answers made ready."""

    __slots__ = ("_answers", "stored")

    def __init__(self, stored: StoredPlan) -> None:
        self.stored = stored
        self._answers: dict[Coding, tuple[bytes, Headers, Headers]] = {}

    def answer(self, coding: Coding) -> tuple[bytes, Headers, Headers]:
        """Return (body, headers of 200, headers of 304)."""
        found = self._answers.get(coding)
        if found is None:
            body = self.stored.body(coding)
            common = [
                (b"etag", self.stored.tag(coding).encode()),
                (b"vary", b"Accept-Encoding"),
                (b"cache-control", b"private, no-cache"),
                (b"hope-plan-cache", b"hit"),
            ]
            full = [*common, (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            if coding != "identity":
                full.append((b"content-encoding", coding.encode()))
            found = self._answers[coding] = (body, full, common)
        return found


class PlanFront:
    """ASGI middleware that answers ``GET /plans/{id}`` and ``POST /plans`` from ``cache``."""

    def __init__(self, app: Asgi, cache: PlanCache) -> None:
        self._app = app
        self._cache = cache
        self._keys: OrderedDict[bytes, str] = OrderedDict()
        self._ready: dict[str, Ready] = {}
        self._codings: dict[bytes, Coding] = {}

    def learn(self, body: bytes, plan_id: str) -> None:
        """Remember which plan a request body asks for; the same bytes always ask for the same plan."""
        if len(body) <= MAX_KEY_BYTES:
            self._keys[body] = plan_id
            if len(self._keys) > MAX_KEYS:
                self._keys.popitem(last=False)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer from memory, or pass the request on."""
        if scope["type"] == "http":
            path, method = scope["path"], scope["method"]
            if method == "GET" and path.startswith(_GET):
                stored = self._cache.get(path[len(_GET) :])
                if stored is not None:
                    return await self._answer(scope, send, stored, revalidates=True)
            elif method == "POST" and path == _POST:
                return await self._by_key(scope, receive, send)
        return await self._app(scope, receive, send)

    async def _by_key(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer a ``POST /plans`` whose body was seen before; the body that was read is handed on otherwise."""
        for name, _ in scope["headers"]:
            if name in (b"content-encoding", b"prefer", b"transfer-encoding"):
                return await self._app(scope, receive, send)
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            plan_id = self._keys.get(message.get("body", b""))
            stored = None if plan_id is None else self._cache.get(plan_id)
            if stored is not None:
                return await self._answer(scope, send, stored, revalidates=False)
        return await self._app(scope, _Replay(message, receive), send)

    async def _answer(self, scope: Scope, send: Any, stored: StoredPlan, *, revalidates: bool) -> None:
        accepted: bytes | None = None
        known: bytes | None = None
        for name, value in scope["headers"]:
            if name == b"accept-encoding":
                accepted = value
            elif name == b"if-none-match":
                known = value
        body, full, unchanged = self._ready_for(stored).answer(self._coding(accepted))
        self._cache.hits[stored.plan_id] += 1
        if revalidates and known is not None and matches(known, stored.etag):
            await send({"type": "http.response.start", "status": 304, "headers": unchanged})
            await send({"type": "http.response.body", "body": b""})
            return
        await send({"type": "http.response.start", "status": 200, "headers": full})
        await send({"type": "http.response.body", "body": body})

    def _ready_for(self, stored: StoredPlan) -> Ready:
        ready = self._ready.get(stored.plan_id)
        if ready is None or ready.stored is not stored:
            if len(self._ready) > len(self._cache) + 64:
                self._ready = {plan_id: item for plan_id, item in self._ready.items() if plan_id in self._cache}
            ready = self._ready[stored.plan_id] = Ready(stored)
        return ready

    def _coding(self, accepted: bytes | None) -> Coding:
        if accepted is None:
            return "identity"
        coding = self._codings.get(accepted)
        if coding is None:
            if len(self._codings) >= MAX_CODINGS:
                self._codings.clear()
            coding = self._codings[accepted] = choose_coding(accepted)
        return coding


class _Replay:
    """A ``receive`` that hands out one message again before it goes on."""

    def __init__(self, message: Any, receive: Any) -> None:
        self._message = message
        self._receive = receive

    async def __call__(self) -> Any:
        message, self._message = self._message, None
        return message if message is not None else await self._receive()

"""The layer in front of everything: plans in memory are answered here, in pure ASGI, and who waits for better ones.

The caller is authenticated and limited by the gate, and the answer is counted. A server that knows ``at_once``
(``http/connection.py``) need not even start a task for it. Whatever this layer does not know for certain (another
path, a caller it has not seen lately, a body that is new, a database that is away) is passed on to the layers behind,
which decide in full.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import OrderedDict
from typing import Any, Protocol

from sqlalchemy.exc import SQLAlchemyError

from planner_api.http.asgi import GIVEN_ID, Asgi, Scope
from planner_api.plans.cache import PlanCache
from planner_api.plans.ready import REQUEST_ID, Answer, Headers, Ready
from planner_api.plans.stored import Coding, StoredPlan, choose_coding, matches
from planner_api.plans.waits import Waits, hang_up, preferred_wait

MAX_KEY_BYTES = 2048
"""Longest ``POST /plans`` body that is remembered: a key is about 150 bytes."""
MAX_KEYS = 50_000
MAX_CODINGS = 1024
_GET = "/plans/"
_GET_ROUTE = "/plans/{plan_id}"
_POST = "/plans"
_POST_BYTES = _POST.encode()


class Gate(Protocol):
    """Says whether a caller is known and may ask this now (``devices/gate.py``)."""

    def recognises(self, authorization: bytes | None, method: str, path: str) -> bool:
        """Count and admit one request; False leaves the decision to the layers behind."""
        ...


class Count(Protocol):
    """Where answers are counted (``ops/metrics.py``)."""

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        ...


class PlanFront:
    """ASGI layer that answers ``GET /plans/{id}`` and ``POST /plans`` from ``cache``.

    Args:
        app: what decides about everything else.
        cache: the plans in memory.
        waits: where a request waits for a better plan than the provisional one in memory.
        gate: who may be answered.
        count: told of every answer.
        body_timeout_s: longest time the beginning of a body may take.
    """

    def __init__(
        self, app: Asgi, cache: PlanCache, waits: Waits, gate: Gate, count: Count, *, body_timeout_s: float
    ) -> None:
        self._app = app
        self._cache = cache
        self._waits = waits
        self._gate = gate
        self._count = count
        self._body_timeout_s = body_timeout_s
        self._keys: OrderedDict[bytes, str] = OrderedDict()
        self._ready: dict[str, Ready] = {}
        self._codings: dict[bytes, Coding] = {}
        self._prefix = secrets.token_hex(6).encode() + b"-%x"
        self._numbers = itertools.count()

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
                    return await self._served(scope, receive, send, stored)
            elif method == "POST" and path == _POST:
                return await self._by_key(scope, receive, send)
        return await self._app(scope, receive, send)

    async def _by_key(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer a ``POST /plans`` whose body was seen before; a body that was read in vain is handed on.

        Only bodies in plain JSON are remembered, so a compressed one never looks like one of them.
        """
        try:
            async with asyncio.timeout(self._body_timeout_s):
                message = await receive()
        except TimeoutError:
            return await self._app(scope, _overdue, send)
        if message["type"] == "http.request" and not message.get("more_body", False):
            plan_id = self._keys.get(message.get("body", b""))
            if plan_id is not None:
                stored = self._cache.get(plan_id)
                if (stored is None or stored.provisional) and await self._waited(scope, receive, send, plan_id):
                    return None
                if stored is not None:
                    return await self._served(scope, _Replay(message, receive), send, stored)
        return await self._app(scope, _Replay(message, receive), send)

    async def _waited(self, scope: Scope, receive: Any, send: Any, plan_id: str) -> bool:
        """Answer a ``POST /plans`` that prefers to wait once there is a better plan; False leaves it to others.

        The caller is admitted when it asks: a token that is revoked while it waits still gets this one answer, and a
        request that is left to others after all is not counted again by the guard.
        """
        started = time.perf_counter()
        given = dict(scope["headers"])
        wait_s = min(preferred_wait(given.get(b"prefer", b"").decode("latin-1")), self._waits.longest_s)
        if wait_s <= 0 or len(given) < len(scope["headers"]):  # a header that came twice is nothing plain
            return False
        request_id = self._admitted("POST", _POST, given)
        if request_id is None:
            return False
        scope.setdefault("state", {})["admitted"] = True
        try:
            with hang_up(receive) as hung_up:
                stored = await self._waits.newest(plan_id)
                if stored is None:
                    return False
                stored = await self._waits.better(stored, wait_s, hung_up)
                gone = hung_up.done()
        except (SQLAlchemyError, OSError):  # the layers behind will meet it too, and say so
            return False
        if not gone:
            answer = self._ready_for(stored).full(self._coding(given.get(b"accept-encoding")))
            self._counted("POST", stored, answer, started)
            await _answer(send, answer, request_id, (b"preference-applied", b"wait=%g" % wait_s))
        return True

    def concerns(self, url: bytes) -> bool:
        """Whether a request's target, as it came, is one that ``at_once`` may answer."""
        return url.startswith(_POST_BYTES)

    def at_once(self, method: str, url: bytes, headers: Headers, body: bytes) -> tuple[Answer, bytes] | None:
        """Answer a request for who writes HTTP itself; None leaves it to the application.

        Args:
            method: of the request.
            url: its target as it came; only the plain path of a plan or of ``/plans`` is answered.
            headers: names in lower case.
            body: the whole of it.

        Returns:
            The answer, already counted, and the request's id.
        """
        path = url.decode("latin-1")
        if method == "GET" and path.startswith(_GET):
            plan_id: str | None = path[len(_GET) :]
        elif method == "POST" and path == _POST:
            plan_id = self._keys.get(body)
        else:
            return None
        stored = None if plan_id is None else self._cache.get(plan_id)
        return None if stored is None else self._decide(method, path, headers, stored)

    async def _served(self, scope: Scope, receive: Any, send: Any, stored: StoredPlan) -> None:
        decided = self._decide(scope["method"], scope["path"], scope["headers"], stored)
        if decided is None:
            return await self._app(scope, receive, send)
        await _answer(send, *decided)

    def _decide(self, method: str, path: str, headers: Headers, stored: StoredPlan) -> tuple[Answer, bytes] | None:
        """Admit the caller and choose the answer, which counts as given; None leaves it to the layers behind."""
        started = time.perf_counter()
        given = dict(headers)
        if stored.provisional and b"prefer" in given:
            return None
        request_id = self._admitted(method, path, given)
        if request_id is None:
            return None
        ready = self._ready_for(stored)
        coding = self._coding(given.get(b"accept-encoding"))
        known = given.get(b"if-none-match") if method == "GET" else None
        if known is not None and (known in ready.tags or matches(known, stored.etag)):
            answer = ready.unchanged(coding)
        else:
            answer = ready.full(coding)
        self._counted(method, stored, answer, started)
        return answer, request_id

    def _admitted(self, method: str, path: str, given: dict[bytes, bytes]) -> bytes | None:
        """Admit the caller; return the id of the request, or None to leave it to the layers behind."""
        request_id = given.get(REQUEST_ID)
        if request_id is not None and not GIVEN_ID.fullmatch(request_id):
            return None
        if not self._gate.recognises(given.get(b"authorization"), method, path):
            return None
        return request_id or self._prefix % next(self._numbers)

    def _counted(self, method: str, stored: StoredPlan, answer: Answer, started: float) -> None:
        self._cache.hits[stored.plan_id] += 1
        route = _GET_ROUTE if method == "GET" else _POST
        self._count.request(method, route, answer.status, time.perf_counter() - started)

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


async def _answer(send: Any, answer: Answer, request_id: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [*answer.headers, *more, (REQUEST_ID, request_id)]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


async def _overdue() -> Any:
    """A ``receive`` for a body that did not come in time: the layers behind refuse it, if not its sender."""
    raise TimeoutError


class _Replay:
    """A ``receive`` that hands out one message again before it goes on."""

    def __init__(self, message: Any, receive: Any) -> None:
        self._message = message
        self._receive = receive

    async def __call__(self) -> Any:
        message, self._message = self._message, None
        return message if message is not None else await self._receive()

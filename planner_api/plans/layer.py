"""The plans in memory, in pure ASGI: behind the guard, in front of the routes.

Whatever is not plain (a key that is new, a query, a header that came twice, a body in another coding, a preference to
wait for a plan that is provisional) is left to the route, which answers with the same bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from planner_api.http.asgi import Asgi, Scope, plain_headers
from planner_api.plans.cache import PlanCache
from planner_api.plans.stored import StoredPlan

MAX_KEY_BYTES = 2048
"""Longest ``POST /plans`` body that is remembered: a key is about 150 bytes."""
MAX_KEYS = 50_000
JSON = (None, b"application/json")
PLAIN = (None, b"identity")


class PlanLayer:
    """ASGI layer that answers ``GET /plans/{id}`` and ``POST /plans`` from memory.

    The same body always asks for the same plan, so once the route has said which (``scope["state"]["plan_id"]``), a
    body need not be read again.

    Args:
        app: the routes.
        cache: the plans in memory.
    """

    def __init__(self, app: Asgi, cache: PlanCache) -> None:
        self._app = app
        self._cache = cache
        self._keys: OrderedDict[bytes, str] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Answer from memory, or pass the request on."""
        if scope["type"] == "http" and not scope["query_string"]:
            method, path, headers = scope["method"], scope["path"], plain_headers(scope)
            if headers is None:
                pass
            elif method == "GET" and path.startswith("/plans/"):
                stored = self._cache.get(path[len("/plans/") :])
                if stored is not None:
                    return await self._answer(send, stored, headers, headers.get(b"if-none-match"))
            elif method == "POST" and path == "/plans":
                return await self._by_key(scope, receive, send, headers)
        return await self._app(scope, receive, send)

    async def _by_key(self, scope: Scope, receive: Any, send: Any, headers: dict[bytes, bytes]) -> None:
        if headers.get(b"content-type") not in JSON or headers.get(b"content-encoding") not in PLAIN:
            return await self._app(scope, receive, send)
        message = await receive()
        body = message.get("body", b"")
        whole = message["type"] == "http.request" and not message.get("more_body") and len(body) <= MAX_KEY_BYTES
        stored = self._cache.get(self._keys.get(body, "")) if whole else None
        if stored is not None and not (stored.provisional and b"prefer" in headers):
            return await self._answer(send, stored, headers)
        await self._app(scope, _Replay(message, receive), send)
        if whole and "plan_id" in scope["state"]:
            self._keys[body] = scope["state"]["plan_id"]
            if len(self._keys) > MAX_KEYS:
                self._keys.popitem(last=False)

    async def _answer(
        self, send: Any, stored: StoredPlan, headers: dict[bytes, bytes], if_none_match: bytes | None = None
    ) -> None:
        self._cache.hits[stored.plan_id] += 1
        answer = stored.answer(headers.get(b"accept-encoding"), if_none_match)
        await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
        await send({"type": "http.response.body", "body": answer.body})


class _Replay:
    """A ``receive`` that hands out one message again before it goes on."""

    def __init__(self, message: Any, receive: Any) -> None:
        self._message = message
        self._receive = receive

    async def __call__(self) -> Any:
        message, self._message = self._message, None
        return message if message is not None else await self._receive()

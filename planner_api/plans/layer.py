"""The plans in memory, in pure ASGI: behind the guard, in front of the routes.

Whatever is not plain (a key that is new, a query, a header that came twice, a body in another coding, a preference to
wait for a plan that is provisional) is left to the route, which answers with the same bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from planner_api.plans.cache import PlanCache
from planner_api.plans.routes import read_plan, request_plan, router
from planner_api.web.asgi import Asgi, Scope, sends_plain_json, take_body
from planner_api.web.route import route_to

MAX_KEY_BYTES = 2048
"""Longest ``POST /plans`` body that is remembered: a key is about 150 bytes."""
MAX_KEYS = 50_000
_BY_ID, _BY_KEY = route_to(router, read_plan), route_to(router, request_plan)
"""The routes in whose place it answers."""


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
        headers = scope["state"]["headers"]
        stored = key = if_none_match = route = None
        if headers and not scope["query_string"]:
            method, path = scope["method"], scope["path"]
            if method == "GET" and path.startswith("/plans/"):
                stored, route = self._cache.get(path[7:]), _BY_ID
                if_none_match = headers.get(b"if-none-match")
            elif method == "POST" and path == "/plans" and sends_plain_json(headers):
                route = _BY_KEY
                key, receive = await take_body(receive)
                if key is not None:
                    stored = self._cache.get(self._keys.get(key, ""))
                    if stored is not None and stored.provisional and b"prefer" in headers:
                        stored = None
        if stored is None:
            await self._app(scope, receive, send)
            if key is not None and len(key) <= MAX_KEY_BYTES and "plan_id" in scope["state"]:
                self._keys[key] = scope["state"]["plan_id"]
                if len(self._keys) > MAX_KEYS:
                    self._keys.popitem(last=False)
            return
        scope["route"] = route
        self._cache.hit(stored.plan_id)
        answer = stored.answer(headers.get(b"accept-encoding"), if_none_match)
        head, body = answer.messages
        await send(head)
        await send(body)

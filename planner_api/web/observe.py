"""The outermost ASGI layer: every request gets an id, is counted, and is logged when it is worth a line."""

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

from planner_api.web.asgi import GIVEN_ID, REQUEST_ID, Asgi, Scope, address, divide, route_of
from planner_api.web.logs import Seldom, request_id
from planner_api.web.principal import principal_of
from planner_api.web.problems import send_problem, status_of

log = structlog.get_logger("planner_api.access")

SLOW_S = 1.0
"""Slower answers are logged; so is every answer of status 400 and above, but for those who ask too often one line in
ten seconds. Routine ones only at level debug."""
CANCELLED = 499
"""What counts as the status of a request that is cancelled before it has an answer, as proxies say it."""


class Observe:
    """ASGI middleware: ``X-Request-ID`` in and out, errors in words, metrics, access log.

    HEAD is asked as GET, and the server sends no body then.

    Args:
        app: what answers.
        count: called with method, route, status and seconds of each answer; None where nobody asks for metrics.
        log_routine: whether answers that are worth no line get one, at level debug.
    """

    def __init__(
        self, app: Asgi, count: Callable[[str, str, int, float], None] | None = None, *, log_routine: bool = False
    ) -> None:
        self._app = app
        self._count = count
        self._log_routine = log_routine
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count()
        self._too_often = Seldom()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        started = time.perf_counter()
        status = 0
        audit_id = answered_id = f"{self._prefix}{next(self._numbers):06x}"
        given = dict(scope["headers"]).get(REQUEST_ID)
        if given is not None and GIVEN_ID.fullmatch(given):
            answered_id = given.decode()
            audit_id += f"/{answered_id}"  # for callers may give one id to many requests
        state = scope.setdefault("state", {})
        state["request_id"], state["audit_id"] = answered_id, audit_id
        request_id.set(audit_id)
        divide(scope)
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope

        def send_with_id(message: Any) -> Any:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], (REQUEST_ID, answered_id.encode())]}
            return send(message)

        try:
            await self._app(asked, receive, send_with_id)
        except Exception as error:
            if status:  # in the middle of an answer
                raise
            await send_problem(send_with_id, scope, error)
            if status_of(error) == 500:
                raise  # the server's log says where
        except asyncio.CancelledError:
            status = status or CANCELLED
            raise
        finally:
            status = status or 500
            seconds = time.perf_counter() - started
            scope["route"] = asked.get("route")  # spans around this layer are named after it
            if self._count is not None:
                self._count(scope["method"], route_of(scope), status, seconds)
            if status == 429:
                self._log(partial(self._too_often.say, log.info), scope, status, seconds)
            elif status >= 400 or seconds >= SLOW_S:
                self._log(log.warning if status >= 500 else log.info, scope, status, seconds)
            elif self._log_routine:
                self._log(log.debug, scope, status, seconds)

    def _log(self, write: Any, scope: Scope, status: int, seconds: float) -> None:
        write(
            "request",
            method=scope["method"],
            path=address(scope["path"])[:200],
            status=status,
            ms=round(seconds * 1000, 2),
            caller=principal_of(scope).name,
            client=(scope.get("client") or ("unknown",))[0],
        )

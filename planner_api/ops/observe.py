"""The ASGI layer behind the plan cache: every request gets an id, is counted, and is logged when it is worth a line."""

from __future__ import annotations

import itertools
import re
import secrets
import time
from typing import Any

import structlog

from planner_api.devices.principal import principal_of
from planner_api.http.asgi import GIVEN_ID, Asgi, Scope
from planner_api.ops.logs import request_id
from planner_api.ops.metrics import Metrics
from planner_api.ops.traces import Tracer

log = structlog.get_logger("planner_api.access")

SLOW_S = 1.0
"""Slower answers are logged; so is every answer of status 400 and above. Routine ones only at level debug."""

_ROUTES = (
    (re.compile(r"/(models|profiles|plans|devices|fleet|healthz|readyz|metrics|openapi\.json)"), None),
    (re.compile(r"/(profiles/missing|fleet/(profiles|models|plans))"), None),
    (re.compile(r"/models/[^/]+/plans"), "/models/{model_hash}/plans"),
    (re.compile(r"/models/[^/]+"), "/models/{model_hash}"),
    (re.compile(r"/plans/[^/]+"), "/plans/{plan_id}"),
    (re.compile(r"/fanouts/[^/]+"), "/fanouts/{fanout_id}"),
    (re.compile(r"/devices/.+/report"), "/devices/{device_id}/report"),
    (re.compile(r"/devices/.+"), "/devices/{device_id}"),
)


def route_of(path: str) -> str:
    """The route a path belongs to, as a metric label: a bounded set, whatever clients ask for."""
    if path.startswith("/plans/"):  # by far the most frequent
        return "/plans/{plan_id}"
    for pattern, template in _ROUTES:
        if pattern.fullmatch(path):
            return template or path
    return "other"


class Observe:
    """ASGI middleware: ``X-Request-ID`` in and out, metrics, access log, and a span where tracing is on."""

    def __init__(self, app: Asgi, metrics: Metrics, tracer: Tracer | None = None, *, log_routine: bool = False) -> None:
        self._app = app
        self._metrics = metrics
        self._tracer = tracer
        self._log_routine = log_routine
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        identity = self._identity(scope)
        scope.setdefault("state", {})["request_id"] = identity
        request_id.set(identity)
        status = 500
        started = time.perf_counter()

        async def send_with_id(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [pair for pair in message["headers"] if pair[0] != b"x-request-id"]
                headers.append((b"x-request-id", identity.encode()))
                message["headers"] = headers
            await send(message)

        try:
            if self._tracer is None:
                await self._app(scope, receive, send_with_id)
            else:
                with self._tracer.request(scope["method"], route_of(scope["path"]), identity) as span:
                    await self._app(scope, receive, send_with_id)
                    span.ended(status)
        finally:
            seconds = time.perf_counter() - started
            self._metrics.request(scope["method"], route_of(scope["path"]), status, seconds)
            if status >= 400 or seconds >= SLOW_S:
                self._log(log.warning if status >= 500 else log.info, scope, status, seconds)
            elif self._log_routine:
                self._log(log.debug, scope, status, seconds)

    def _identity(self, scope: Scope) -> str:
        for name, value in scope["headers"]:
            if name == b"x-request-id" and GIVEN_ID.fullmatch(value):
                return str(value, "ascii")
        return f"{self._prefix}{next(self._numbers):06x}"

    def _log(self, write: Any, scope: Scope, status: int, seconds: float) -> None:
        write(
            "request",
            method=scope["method"],
            path=scope["path"][:200],
            status=status,
            ms=round(seconds * 1000, 2),
            caller=principal_of(scope).name,
        )

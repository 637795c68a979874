"""The outermost ASGI layer: every request gets an id, is counted, and is logged when it is worth a line."""

from __future__ import annotations

import itertools
import re
import secrets
import time
from collections.abc import Awaitable
from typing import Any

import structlog

from planner_api.devices.principal import principal_of
from planner_api.errors import NotFoundError, PlannerError
from planner_api.http.asgi import GIVEN_ID, Asgi, Scope
from planner_api.http.problems import send_problem
from planner_api.ops.logs import request_id
from planner_api.ops.metrics import Metrics
from planner_api.ops.traces import Trace

log = structlog.get_logger("planner_api.access")

SLOW_S = 1.0
"""Slower answers are logged; so is every answer of status 400 and above. Routine ones only at level debug."""

_ROUTES = (
    (re.compile(r"/(models|profiles|plans|devices|fleet|names|groups|audit)"), None),
    (re.compile(r"/(healthz|readyz|metrics|openapi\.json)"), None),
    (re.compile(r"/(profiles/missing|fleet/(profiles|models|plans))"), None),
    (re.compile(r"/profiles/.+/.+"), "/profiles/{soc}/{frequency}"),
    (re.compile(r"/models/[^/]+/plans"), "/models/{model_hash}/plans"),
    (re.compile(r"/models/[^/]+"), "/models/{model_hash}"),
    (re.compile(r"/plans/[^/]+/versions"), "/plans/{plan_id}/versions"),
    (re.compile(r"/plans/[^/]+/diff"), "/plans/{plan_id}/diff"),
    (re.compile(r"/plans/[^/]+"), "/plans/{plan_id}"),
    (re.compile(r"/names/[^/]+/versions"), "/names/{name}/versions"),
    (re.compile(r"/names/[^/]+/versions/[^/]+"), "/names/{name}/versions/{version}"),
    (re.compile(r"/names/[^/]+/versions/[^/]+/labels"), "/names/{name}/versions/{version}/labels"),
    (re.compile(r"/names/[^/]+/aliases/[^/]+"), "/names/{name}/aliases/{alias}"),
    (re.compile(r"/references/[^/]+"), "/references/{reference}"),
    (re.compile(r"/groups/[^/]+"), "/groups/{name}"),
    (re.compile(r"/fanouts/[^/]+"), "/fanouts/{fanout_id}"),
    (re.compile(r"/devices/.+/report"), "/devices/{device_id}/report"),
    (re.compile(r"/devices/.+/description"), "/devices/{device_id}/description"),
    (re.compile(r"/devices/.+"), "/devices/{device_id}"),
    (re.compile(r"/console(/.*)?"), "/console"),
)


def route_of(path: str) -> str:
    """The route a path belongs to, as a metric label: a bounded set, whatever clients ask for."""
    if path.startswith("/plans/") and path.count("/") == 2:  # by far the most frequent
        return "/plans/{plan_id}"
    for pattern, template in _ROUTES:
        if pattern.fullmatch(path):
            return template or path
    return "other"


class Observe:
    """ASGI middleware: ``X-Request-ID`` in and out, errors in words, metrics, access log, a span if tracing is on."""

    def __init__(self, app: Asgi, metrics: Metrics, trace: Trace, *, log_routine: bool = False) -> None:
        self._app = app
        self._metrics = metrics
        self._trace = trace
        self._log_routine = log_routine
        self._prefix = secrets.token_hex(6)
        self._numbers = itertools.count()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve one request."""
        identity, route = self._identity(scope), route_of(scope["path"])
        scope.setdefault("state", {})["request_id"] = identity
        request_id.set(identity)
        status = 500
        started = time.perf_counter()

        def send_with_id(message: Any) -> Awaitable[None]:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", identity.encode())]
            sent: Awaitable[None] = send(message)
            return sent

        try:
            with self._trace(scope["method"], route, identity) as span:
                try:
                    if scope["path"].endswith("\n"):  # Starlette's patterns end in `$`, which would let it pass
                        raise NotFoundError("not-found", "no address ends in a line break")
                    await self._app(scope, receive, send_with_id)
                except PlannerError as error:
                    await send_problem(send_with_id, scope, error)
                span.ended(status)
        finally:
            seconds = time.perf_counter() - started
            self._metrics.request(scope["method"], route, status, seconds)
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

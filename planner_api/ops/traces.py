"""OpenTelemetry, only where it is installed and asked for (``HOPE_TELEMETRY=true``).

Spans go to the provider the environment configures, e.g. ``opentelemetry-instrument hope-planner serve`` with
``OTEL_EXPORTER_OTLP_ENDPOINT``; without one the API does nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import structlog

from planner_api.http.asgi import Asgi, Scope
from planner_api.ops.metrics import route_of

log = structlog.get_logger(__name__)


def traced(app: Asgi) -> Asgi:
    """Return the app with a server span around each request, named and attributed by OpenTelemetry's HTTP conventions.

    Where OpenTelemetry is not installed, that is said once and the app returned as it is.
    """
    try:
        from opentelemetry import trace
    except ImportError:
        log.warning("telemetry_not_installed", cure="install the extra 'telemetry'")
        return app
    tracer = trace.get_tracer("planner_api")

    async def serve(scope: Scope, receive: Any, send: Any) -> None:
        method, route = scope["method"], route_of(scope["path"])
        with tracer.start_as_current_span(f"{method} {route}") as span:
            span.set_attributes({"http.request.method": method, "http.route": route})

            def send_traced(message: Any) -> Awaitable[None]:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                    span.set_attribute("hope.request_id", scope["state"]["request_id"])
                sent: Awaitable[None] = send(message)
                return sent

            await app(scope, receive, send_traced)

    return serve

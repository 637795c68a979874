"""OpenTelemetry, only where it is installed and asked for (``HOPE_TELEMETRY=true``).

Spans go to the provider the environment configures, e.g. ``opentelemetry-instrument hope-planner serve`` with
``OTEL_EXPORTER_OTLP_ENDPOINT``; without one the API does nothing.
"""

from typing import Any

import structlog

from planner_api.web.asgi import Asgi, Scope

log = structlog.get_logger(__name__)


def traced(app: Asgi) -> Asgi:
    """Return the app with a server span around each request, which knows the request's id.

    Where OpenTelemetry is not installed, that is said once and the app returned as it is.
    """
    try:
        from opentelemetry import trace
        from starlette.middleware.opentelemetry import OpenTelemetryMiddleware
    except ImportError:
        log.warning("telemetry_not_installed", cure="install the extra 'telemetry'")
        return app

    async def identified(scope: Scope, receive: Any, send: Any) -> None:
        await app(scope, receive, send)
        trace.get_current_span().set_attribute("hope.request_id", scope["state"]["request_id"])

    return OpenTelemetryMiddleware(identified)

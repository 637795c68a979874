"""OpenTelemetry, only where it is installed and asked for (``HOPE_TELEMETRY=true``).

Spans go to the provider the environment configures, e.g. ``opentelemetry-instrument hope-planner serve`` with
``OTEL_EXPORTER_OTLP_ENDPOINT``; without one the API does nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import structlog

log = structlog.get_logger(__name__)


class Span:
    """One request being served."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def ended(self, status: int) -> None:
        """Say how it was answered."""
        self._span.set_attribute("http.response.status_code", status)


class Tracer:
    """Opens spans for requests."""

    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    @contextlib.contextmanager
    def request(self, method: str, route: str, identity: str) -> Iterator[Span]:
        """A server span, named and attributed by OpenTelemetry's HTTP conventions."""
        attributes = {"http.request.method": method, "http.route": route, "hope.request_id": identity}
        with self._tracer.start_as_current_span(f"{method} {route}", attributes=attributes) as span:
            yield Span(span)


def build_tracer(enabled: bool) -> Tracer | None:
    """The tracer, or None where tracing is off or OpenTelemetry is not installed."""
    if not enabled:
        return None
    try:
        from opentelemetry import trace
    except ImportError:
        log.warning("telemetry_not_installed", cure="install the extra 'telemetry'")
        return None
    return Tracer(trace.get_tracer("planner_api"))

"""OpenTelemetry, only where it is installed and asked for (``HOPE_TELEMETRY=true``).

Spans go to the provider the environment configures, e.g. ``opentelemetry-instrument hope-planner serve`` with
``OTEL_EXPORTER_OTLP_ENDPOINT``; without one the API does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import structlog

log = structlog.get_logger(__name__)


class Span:
    """One request being served; where tracing is off nobody hears of it."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ended(self, status: int) -> None:
        """Say how it was answered."""
        if self._span is not None:
            self._span.set_attribute("http.response.status_code", status)


Trace = Callable[[str, str, str], AbstractContextManager[Span]]
"""Opens the span of a request: (method, route, request id)."""


def build_tracer(enabled: bool) -> Trace:
    """Return what opens server spans, named and attributed by OpenTelemetry's HTTP conventions."""
    silent = Span()
    if not enabled:
        return lambda *_: silent
    try:
        from opentelemetry import trace
    except ImportError:
        log.warning("telemetry_not_installed", cure="install the extra 'telemetry'")
        return lambda *_: silent
    tracer = trace.get_tracer("planner_api")

    @contextmanager
    def request(method: str, route: str, identity: str) -> Iterator[Span]:
        attributes = {"http.request.method": method, "http.route": route, "hope.request_id": identity}
        with tracer.start_as_current_span(f"{method} {route}", attributes=attributes) as span:
            yield Span(span)

    return request

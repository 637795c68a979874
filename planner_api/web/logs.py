"""Structured logs on stderr: one JSON object a line, with the request's id, never with a secret."""

import logging
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from types import TracebackType
from typing import Any

import structlog

from planner_api.settings import Settings
from planner_api.web.tokens import SECRET

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
"""The id of the request being served, set by :class:`planner_api.web.observe.Observe`."""

SAY_AGAIN_S = 10.0
"""What strangers bring about as often as they like is said once in so many seconds."""
_PASSWORD = re.compile(r"(?<=://)([^:/@\s]*):([^@/\s]+)@")
_LIBRARIES = ("alembic", "sqlalchemy", "uvicorn.error")

Event = MutableMapping[str, Any]


class Seldom:
    """Writes one line of what comes again and again, at most every ``SAY_AGAIN_S``: the last, and ``times`` it came."""

    def __init__(self) -> None:
        self._times = 0
        self._said_at = -math.inf

    def say(self, write: Callable[..., Any], event: str, **fields: object) -> None:
        self._times += 1
        if time.monotonic() - self._said_at >= SAY_AGAIN_S:
            write(event, times=self._times, **fields)
            self._times, self._said_at = 0, time.monotonic()


def redact(value: Any) -> Any:
    """Blot out tokens and the passwords of URLs, however deep they are nested."""
    if isinstance(value, str):
        return _PASSWORD.sub(r"\1:***@", SECRET.sub("***", value))
    if isinstance(value, Mapping):
        return {key: redact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    return value


def _redact_event(_logger: Any, _method: str, event: Event) -> Event:
    return {key: redact(item) for key, item in event.items()}


def _add_request_id(_logger: Any, _method: str, event: Event) -> Event:
    if (found := request_id.get()) is not None:
        event.setdefault("request_id", found)
    return event


def configure(settings: Settings) -> None:
    """Send our logs, those of the libraries, warnings and what nobody caught through one chain to stderr."""
    level = getattr(logging, settings.log_level.upper())
    shared: list[Any] = [
        _add_request_id,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _redact_event,
    ]
    json_lines = settings.log_format == "json"
    renderer = structlog.processors.JSONRenderer() if json_lines else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
    )
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda found: _log_uncaught(found.exc_type, found.exc_value, found.exc_traceback)
    logging.getLogger("uvicorn.access").disabled = True  # ours knows request ids and leaves out what is routine


def _log_uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if error is not None and not issubclass(kind, KeyboardInterrupt):
        structlog.get_logger(__name__).critical("uncaught", exc_info=(kind, error, trace))


def stay_quiet() -> None:
    """Inside somebody else's process: hand our logs to ``logging``, which that process configures, or not."""
    if structlog.is_configured():
        return
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            _add_request_id,
            structlog.processors.format_exc_info,
            _redact_event,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )

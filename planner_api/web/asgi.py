"""The shapes of the ASGI interface that every layer shares."""

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]
Asgi = Callable[[Scope, Any, Any], Awaitable[None]]

REQUEST_ID = b"x-request-id"
MAX_REQUEST_ID = 128
GIVEN_ID = re.compile(rb"[A-Za-z0-9._\-]{1,%d}" % MAX_REQUEST_ID)
"""An ``X-Request-ID`` that is taken over; any other is replaced."""


def values_of(scope: Scope | Mapping[str, Any], name: bytes) -> list[bytes]:
    """The values of a request's header, which may have none, or several."""
    return [value for key, value in scope["headers"] if key == name]


def route_of(scope: Scope) -> str:
    """The template of the route that answered a request: a bounded set, whatever paths clients ask for."""
    return getattr(scope.get("route"), "path_format", None) or "other"

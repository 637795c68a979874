"""The shapes of the ASGI interface that every layer shares, and ids in addresses: each is one segment."""

import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import quote, unquote

Scope = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]
Asgi = Callable[[Scope, Any, Any], Awaitable[None]]
REQUEST_ID = b"x-request-id"
MAX_REQUEST_ID = 128
GIVEN_ID = re.compile(rb"[A-Za-z0-9._\-]{1,%d}" % MAX_REQUEST_ID)
"""An ``X-Request-ID`` that is taken over; any other is replaced."""
SLASH = "\x1f"
"""Stands in ``scope["path"]`` for a slash that came encoded."""
_CONTROLS = re.compile(r"%(?:[01][0-9A-Fa-f]|7[Ff])")
"""Of no id; sent encoded alone. A line break would pass for the end of an address, for patterns end in ``$``."""


def values_of(scope: Scope | Mapping[str, Any], name: bytes) -> list[bytes]:
    """The values of a request's header, which may have none, or several."""
    return [value for key, value in scope["headers"] if key == name]


def route_of(scope: Scope) -> str:
    """The template of the route that answered a request: a bounded set, whatever paths clients ask for."""
    return getattr(scope.get("route"), "path_format", None) or "other"


def divide(scope: Scope) -> None:
    """Decode a request's path segment by segment, so that routes divide it where its sender did."""
    path = _CONTROLS.sub("\ufffd", scope["raw_path"].decode("latin-1"))
    scope["path"] = unquote(path.replace("%2F", SLASH).replace("%2f", SLASH))


def inside(name: str) -> str:
    return name.replace("/", SLASH)


def outside(segment: str) -> str:
    """The id that a segment of ``scope["path"]`` stands for."""
    return segment.replace(SLASH, "/")


def address(path: str) -> str:
    return quote(path, safe="/:@+~!$&'()*,;=").replace("%1F", "%2F")

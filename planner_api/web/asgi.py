"""The shapes of the ASGI interface that every layer shares, and what layers that answer by themselves look at."""

from __future__ import annotations

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
JSON, IDENTITY = b"application/json", b"identity"


def route_of(scope: Scope) -> str:
    """The template of the route that answered a request: a bounded set, whatever paths clients ask for."""
    return getattr(scope.get("route"), "path_format", None) or "other"


def sends_plain_json(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a body comes as JSON, as it is."""
    return headers.get(b"content-type", JSON) == JSON and headers.get(b"content-encoding", IDENTITY) == IDENTITY


async def take_body(receive: Any) -> tuple[bytes | None, Any]:
    """Return the body where it came in one piece, else None; and a ``receive`` that hands it out again."""
    message = await receive()
    whole = message["type"] == "http.request" and not message.get("more_body")
    again = [message]

    async def replay() -> Any:
        return again.pop() if again else await receive()

    return message.get("body", b"") if whole else None, replay

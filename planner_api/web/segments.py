"""Ids in addresses: each is one segment, in which an encoded slash is part of the id."""

import re
from urllib.parse import quote, unquote

from planner_api.web.asgi import Scope

SLASH = "\x1f"
"""Stands in ``scope["path"]`` for a slash that came encoded."""
_CONTROLS = re.compile(r"%(?:[01][0-9A-Fa-f]|7[Ff])")
"""Of no id; sent encoded alone. A line break would pass for the end of an address, for patterns end in ``$``."""


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

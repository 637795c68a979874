"""Ids in addresses: each is one segment, in which an encoded slash is part of the id."""

import re
from urllib.parse import quote, unquote

from planner_api.web.asgi import Scope

SLASH = "\x1f"
"""Stands in ``scope["path"]`` for a slash that came encoded."""
_CONTROLS = re.compile(r"[\x00-\x1f\x7f]")
"""Of no id. A line break would pass for the end of an address, for patterns end in ``$``."""


def divide(scope: Scope) -> None:
    """Decode a request's path segment by segment, so that routes divide it where its sender did."""
    segments = (_CONTROLS.sub("\ufffd", unquote(each)) for each in scope["raw_path"].decode("latin-1").split("/"))
    scope["path"] = "/".join(map(inside, segments))


def inside(name: str) -> str:
    return name.replace("/", SLASH)


def outside(segment: str) -> str:
    """The id that a segment of ``scope["path"]`` stands for."""
    return segment.replace(SLASH, "/")


def address(path: str) -> str:
    return quote(path, safe="/:@+~!$&'()*,;=").replace("%1F", "%2F")

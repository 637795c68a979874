"""Who a request comes from, and what that one may do."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hope_schema.base import is_label
from planner_api.errors import ForbiddenError
from planner_api.web.asgi import inside, values_of

Role = Literal["admin", "viewer", "device", "anonymous"]

_DEVICE_POSTS = frozenset({"/models", "/profiles", "/profiles/missing", "/plans"})
_DEVICE_GETS = ("/models/", "/profiles/", "/references/")
_PLAN = re.compile(r"/plans/[^/]+")
"""A plan, whose history and comparisons are for people."""


@dataclass(frozen=True)
class Principal:
    """The bearer of a token. ``anonymous`` exists only where no tokens are required, and may do everything.

    ``name`` is stable and free of secrets: rate limits and logs know the caller by it.
    """

    role: Role
    name: str
    device_id: str | None = None

    def may(self, method: str, path: str) -> bool:
        """Whether this caller may send ``method`` to ``path``.

        A device registers graphs, uploads and reads what plans need, reports about itself and sees what became of
        that (of profiles its own SoC's, which its route looks at); a viewer reads everything; an admin does the rest.
        """
        if self.role == "viewer":
            return method == "GET"
        if self.role != "device":
            return True
        own = f"/devices/{inside(self.device_id or '')}"
        if method == "POST":
            return path in _DEVICE_POSTS
        if method == "GET":
            if _PLAN.fullmatch(path):
                return True
            return path.startswith(_DEVICE_GETS) or path in ("/openapi.json", own)
        return method == "PUT" and path == f"{own}/report"


ANONYMOUS = Principal("anonymous", "anonymous")


@dataclass(frozen=True)
class Actor:
    """Who acts: the bearer of a request's token, a person at the command line, or the planner itself."""

    name: str
    request_id: str | None = None


def bearer(scope: str, token_id: int) -> Principal:
    return Principal("admin" if scope == "admin" else "viewer", f"{scope}:{token_id}")


def principal_of(scope: Mapping[str, Any]) -> Principal:
    found = scope.get("state", {}).get("principal", ANONYMOUS)
    assert isinstance(found, Principal)
    return found


def device_of(scope: Mapping[str, Any]) -> str | None:
    """The device a request comes from: its token's, or, of who needs no token, the one that ``Hope-Device`` names."""
    principal = principal_of(scope)
    if principal.role != "anonymous":
        return principal.device_id
    named = values_of(scope, b"hope-device")
    name = str(named[0], "latin-1") if len(named) == 1 else ""
    return name if is_label(name) else None


def require_own(scope: Mapping[str, Any], device_id: str) -> None:
    """Refuse a device that speaks in another's name. Raises ForbiddenError: the bearer is a device with another id."""
    principal = principal_of(scope)
    if principal.role == "device" and principal.device_id != device_id:
        raise ForbiddenError(
            "foreign-device", f"this token belongs to device '{principal.device_id}', not to '{device_id}'"
        )


def charge(scope: Mapping[str, Any], seconds: float) -> None:
    """Note how long was computed for a request; the guard counts it against its sender's rate."""
    state = scope.get("state")
    if state is not None:
        state["spent_s"] = spent(scope) + seconds


def spent(scope: Mapping[str, Any]) -> float:
    found: float = scope.get("state", {}).get("spent_s", 0.0)
    return found

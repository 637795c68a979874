"""Where the console is: under ``/console``, and for a browser behind a proxy under the proxy's prefix."""

from __future__ import annotations

from contextvars import ContextVar

from planner_api.web.asgi import Scope

HOME = "/console"
"""As the planner's own routes have it."""
_seen: ContextVar[str] = ContextVar("seen", default=HOME)


def look_from(scope: Scope) -> None:
    """Have ``home`` say where the console is for whoever asks now."""
    _seen.set(f"{scope['state'].get('prefix', '')}{HOME}")


def home() -> str:
    """What links and cookies begin with."""
    return _seen.get()

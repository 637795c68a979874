"""Where the console is: under ``/console``, and for a browser behind a proxy under the proxy's prefix."""

from contextvars import ContextVar

from starlette.responses import RedirectResponse, Response

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


def lead(to: str) -> Response:
    """Lead a browser to an address of the planner's, as its own routes have it: the prefix is put before it outside."""
    return RedirectResponse(to, status_code=303)

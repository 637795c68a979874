"""Where the console is: under ``/console``, and for a browser behind a proxy under the proxy's prefix."""

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

HOME = "/console"
"""As the planner's own routes have it."""


def home(request: Request) -> str:
    """What links and cookies begin with."""
    return f"{request.scope['state'].get('prefix', '')}{HOME}"


def lead(to: str) -> Response:
    """Lead a browser to an address of the planner's, as its own routes have it: the prefix is put before it outside."""
    return RedirectResponse(to, status_code=303)

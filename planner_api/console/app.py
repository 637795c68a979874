"""The console as one ASGI layer: who may see a page, what every answer carries, and errors as pages."""

from collections.abc import Awaitable
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from planner_api.console import session as sessions
from planner_api.console.address import HOME, lead
from planner_api.console.pages import devices, fleet, models, plans, profiles, sign_in
from planner_api.console.rendering import FOLDER, SECTIONS, STATIC, render, section
from planner_api.console.session import ANYBODY, Session, check_origin, cookie_of
from planner_api.devices.guard import GUESS, address_of, refuse_for
from planner_api.errors import ForbiddenError, PlannerError
from planner_api.web.asgi import Asgi, Headers, Scope, address
from planner_api.web.problems import as_http
from planner_api.web.rate import RateLimit

LOGIN = f"{HOME}/login"
LOGOUT = f"{HOME}/logout"
OIDC = frozenset({f"{HOME}/oidc", f"{HOME}/oidc/callback"})
"""The way to a provider and back, which nobody has a session on."""
SECURITY: Headers = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # NOTE: not "no-referrer", with which browsers send "Origin: null" with our own forms.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
]
SMALL_BYTES = 1024
"""Answers below this are not worth compressing."""
HSTS = (b"strict-transport-security", b"max-age=31536000")


class Console:
    """ASGI layer that answers everything under ``/console``, leads there from ``/``, and passes the rest on.

    Where nobody is ``required`` to sign in, whoever reaches the planner may do everything. ``per_address`` limits
    requests that no session is behind.
    """

    def __init__(
        self, app: Asgi, planner: Any, *, required: bool, per_bearer: RateLimit, per_address: RateLimit
    ) -> None:
        self._app = app
        self._planner = planner
        self._required = required
        self._per_bearer = per_bearer
        self._per_address = per_address
        self._mount = Mount(HOME, _pages(planner))

    def __call__(self, scope: Scope, receive: Any, send: Any) -> Awaitable[None]:
        path = scope["path"]
        ours = path.startswith(HOME) and path[len(HOME) :][:1] in ("", "/")
        leads = path == "/" and scope["method"] == "GET"
        return (self._serve if ours or leads else self._app)(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        secured = [*SECURITY, HSTS] if request.url.scheme == "https" else SECURITY

        async def guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *secured]
            await send(message)

        try:
            instead = await self._admit(request)
        except PlannerError as error:
            instead = await error_page(request, error)
        scope["route"] = self._mount  # and not the page's: they are counted together
        await (self._mount.app if instead is None else instead)({**scope}, receive, guarded)

    async def _admit(self, request: Request) -> Response | None:
        """Find out who asks, and return what they are answered with instead of the page; None: nothing.

        Raises:
            PlannerError: a request that is not admitted.
        """
        scope, path = request.scope, request.scope["path"]
        address, secret = address_of(scope), cookie_of(request)
        changes = request.method != "GET"
        open_to_all = path == "/" or path.startswith(f"{STATIC}/")
        if self._required:
            alone = secret is None or open_to_all or (path == LOGIN and changes) or path in OIDC
            await refuse_for(self._per_address.hit(address) if alone else self._per_address.wait(address))
        if path == "/":
            return lead(HOME)
        if open_to_all:
            return None
        if changes:
            check_origin(scope)
        session: Session | None = ANYBODY
        if self._required:
            session = None if secret is None else await sessions.resume(self._planner.database, secret)
        request.state.session = session
        if session is not None:
            scope["state"]["principal"] = session.principal
            await refuse_for(self._per_bearer.hit(session.principal.name))
            if changes and not session.may_change and path != LOGOUT:
                raise ForbiddenError("read-only", "You signed in to look only; nothing was changed.")
        else:
            if secret is not None:  # a cookie that opens nothing is a guess
                self._per_address.count(address, GUESS)
            if path != LOGIN and path not in OIDC:
                return _to_login(request, expired=secret is not None)
        return None


async def error_page(request: Request, error: Exception) -> Response:
    found = as_http(error, address(request.scope["path"]), request.method)
    detail = found.detail
    if isinstance(error, RequestValidationError):
        wrong = sorted({str(item["loc"][-1]) for item in error.errors()})
        detail = f"This address asks for something that cannot be; look again at: {', '.join(wrong)}."
    answer = render(
        request,
        "error.html",
        code=found.status,
        title=HTTPStatus(found.status).phrase,
        detail=detail,
        request_id=request.scope["state"].get("request_id"),
        ways=_ways(request, failed=found.status >= HTTPStatus.INTERNAL_SERVER_ERROR),
    )
    answer.headers.update({name: value for name, value in found.headers.items() if name != "WWW-Authenticate"})
    return answer


def _ways(request: Request, *, failed: bool) -> list[tuple[str, str]]:
    """Where to go from an error: paths below the console with their words, never the page that has just failed."""
    here = section(request)
    ways = [(here, f"To the page {SECTIONS[here]}")] if here else []
    ways.append(("", "To the fleet"))
    path = request.scope["path"].removeprefix(HOME).rstrip("/")
    return [way for way in ways if not failed or way[0] != path]


def _to_login(request: Request, *, expired: bool) -> Response:
    if request.method != "GET":
        return lead(f"{LOGIN}?ended=1")
    query = request.url.query
    wanted = address(request.scope["path"]) + (f"?{query}" if query else "")
    ended = "&ended=1" if expired else ""
    return lead(f"{LOGIN}?to={quote(wanted, safe='')}{ended}")


def _pages(planner: Any) -> FastAPI:
    pages = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    pages.state.planner = planner
    every = (sign_in, fleet, devices, models, plans, profiles)
    routers = sign_in.through_provider, *(page.router for page in every)
    pages.router.routes.extend(route for router in routers for route in router.routes)
    for kind in (PlannerError, RequestValidationError, HTTPException, Exception):
        pages.add_exception_handler(kind, error_page)
    pages.mount(STATIC, StaticFiles(directory=FOLDER / "static"))
    pages.add_middleware(GZipMiddleware, minimum_size=SMALL_BYTES)
    return pages

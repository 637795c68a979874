"""Signing in, with a token or through a provider, and out."""

from typing import Annotated
from urllib.parse import quote, unquote, urlsplit

from fastapi import APIRouter, Query, Response
from fastapi import Request as AnyRequest
from starlette.responses import RedirectResponse

from planner_api.console import session as sessions
from planner_api.console.address import HOME, home, lead
from planner_api.console.forms import read_form
from planner_api.console.oidc import Provider, SignInError
from planner_api.console.rendering import render
from planner_api.console.session import cookie_of, new_secret
from planner_api.errors import NotFoundError, UnauthorisedError
from planner_api.web.route import Request, StrictRoute

router = APIRouter(prefix=HOME, route_class=StrictRoute)
through_provider = APIRouter(prefix=HOME)
"""No StrictRoute: providers add parameters of their own to their answers."""
ATTEMPT_COOKIE = "hope_console_oidc"
ATTEMPT_S = 600
MAX_COOKIE = 3 * 1024
"""Characters of an attempt; one that would take more leads to the console's first page."""
MAX_ANSWER = 4096
"""Characters of one parameter of an answer."""


@router.get("/login")
async def show(
    request: Request, to: Annotated[str, Query(max_length=2048)] = HOME, ended: Annotated[bool, Query()] = False
) -> Response:
    if request.state.session is not None:
        return lead(ours(to))
    return page(request, to=ours(to), ended=ended)


@router.post("/login")
async def sign_in(request: Request) -> Response:
    fields = await read_form(request)
    to, token = ours(fields.get("to", HOME)), fields.get("token", "").strip()
    try:
        principal, token_id = await sessions.holder(request.planner.tokens, token, look_only="look_only" in fields)
    except UnauthorisedError as error:
        return page(request, to=to, problem=error.detail, code=401)
    answer = lead(to)
    await sessions.begin(request, answer, principal, token_id=token_id)
    return answer


@router.post("/logout")
async def sign_out(request: Request) -> Response:
    secret = cookie_of(request)
    if secret is not None:
        await sessions.sign_out(request.database, secret, request.actor)
    answer = lead(f"{HOME}/login")
    answer.delete_cookie(sessions.COOKIE, path=home(request))
    return answer


def page(request: AnyRequest, *, to: str, ended: bool = False, problem: str | None = None, code: int = 200) -> Response:
    issuer = request.app.state.planner.settings.oidc_issuer
    provider = urlsplit(issuer).hostname if issuer else None
    return render(request, "login.html", code=code, to=to, ended=ended, problem=problem, provider=provider)


def ours(to: str) -> str:
    """Where to go after signing in: nowhere but within the console."""
    inside = to == HOME or to.startswith((f"{HOME}/", f"{HOME}?"))
    return to if inside and "\\" not in to and to.isprintable() else HOME


@through_provider.get("/oidc")
async def leave(request: AnyRequest, to: Annotated[str, Query(max_length=2048)] = HOME) -> Response:
    secret, to = new_secret(), ours(to)
    try:
        address = await _provider(request).address(secret, _callback(request))
    except SignInError as error:
        return page(request, to=to, problem=error.detail, code=error.code)
    attempt = f"{secret}.{quote(to, safe='')}"
    answer = RedirectResponse(address, status_code=303)
    answer.set_cookie(
        ATTEMPT_COOKIE,
        attempt if len(attempt) <= MAX_COOKIE else f"{secret}.",
        max_age=ATTEMPT_S,
        path=_path(request),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",  # the way back begins on the provider's pages
    )
    return answer


@through_provider.get("/oidc/callback")
async def come_back(request: AnyRequest) -> Response:
    provider = _provider(request)
    secret, to = _attempt(request.cookies.get(ATTEMPT_COOKIE, ""))
    said = {name: value for name, value in request.query_params.items() if len(value) <= MAX_ANSWER}
    try:
        person = await provider.person(secret, _callback(request), said)
    except SignInError as error:
        answer = page(request, to=to, problem=error.detail, code=error.code)
    else:
        # NOTE: a page that leads on, not a redirect: where that leads, a browser that comes from another site would not
        # send the session's cookie (SameSite=Strict).
        answer = render(request, "signed_in.html", to=f"{home(request)}{to.removeprefix(HOME)}")
        await sessions.begin(request, answer, person, token_id=None)
    answer.delete_cookie(ATTEMPT_COOKIE, path=_path(request))
    return answer


def _provider(request: AnyRequest) -> Provider:
    found: Provider | None = request.app.state.planner.provider
    if found is None:
        raise NotFoundError("not-found", "This planner knows no provider: sign in with a token.")
    return found


def _path(request: AnyRequest) -> str:
    return f"{home(request)}/oidc"


def _callback(request: AnyRequest) -> str:
    return f"{request.url.scheme}://{request.url.netloc}{_path(request)}/callback"


def _attempt(cookie: str) -> tuple[str, str]:
    """The secret of an attempt and where it wants to go; a secret that fits nothing where there is no such attempt."""
    secret, _, to = cookie.partition(".")
    if cookie.isascii() and len(cookie) <= MAX_COOKIE and len(secret) == sessions.SECRET_LENGTH:
        return secret, ours(unquote(to))
    return new_secret(), HOME

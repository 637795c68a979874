"""Signing in through a provider: there, and back with its answer."""

import base64
import binascii
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from planner_api.console import session as sessions
from planner_api.console.address import HOME, home
from planner_api.console.oidc import Provider, SignInError
from planner_api.console.pages.sign_in import ours, page
from planner_api.console.rendering import render
from planner_api.console.session import new_secret
from planner_api.errors import NotFoundError

# NOTE: no StrictRoute: providers add parameters of their own to their answers.
router = APIRouter(prefix=HOME)

COOKIE = "hope_console_oidc"
ATTEMPT_S = 600
MAX_COOKIE = 3 * 1024
MAX_ANSWER = 4096
"""Characters of one parameter of an answer."""


@router.get("/oidc")
async def leave(request: Request, to: Annotated[str, Query(max_length=2048)] = HOME) -> Response:
    secret, to = new_secret(), ours(to)
    try:
        address = await _provider(request).address(secret, _callback(request))
    except SignInError as error:
        return page(request, to=to, problem=error.detail, code=error.code)
    answer = RedirectResponse(address, status_code=303)
    answer.set_cookie(
        COOKIE,
        f"{secret}.{base64.urlsafe_b64encode(to.encode()).decode().rstrip('=')}",
        max_age=ATTEMPT_S,
        path=_path(),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",  # the way back begins on the provider's pages
    )
    return answer


@router.get("/oidc/callback")
async def come_back(request: Request) -> Response:
    provider = _provider(request)
    secret, to = _attempt(request.cookies.get(COOKIE, ""))
    said = {name: value for name, value in request.query_params.items() if len(value) <= MAX_ANSWER}
    try:
        person = await provider.person(secret, _callback(request), said)
    except SignInError as error:
        answer = page(request, to=to, problem=error.detail, code=error.code)
    else:
        # NOTE: a page that leads on, not a redirect: where that leads, a browser that comes from another site would not
        # send the session's cookie (SameSite=Strict).
        answer = render(request, "signed_in.html", to=f"{home()}{to.removeprefix(HOME)}")
        await sessions.begin(request, answer, person, token_id=None)
    answer.delete_cookie(COOKIE, path=_path())
    return answer


def _provider(request: Request) -> Provider:
    found: Provider | None = request.app.state.planner.provider
    if found is None:
        raise NotFoundError("not-found", "This planner knows no provider: sign in with a token.")
    return found


def _path() -> str:
    return f"{home()}/oidc"


def _callback(request: Request) -> str:
    return f"{request.url.scheme}://{request.url.netloc}{_path()}/callback"


def _attempt(cookie: str) -> tuple[str, str]:
    """The secret of an attempt and where it wants to go; a secret that fits nothing where there is no such attempt."""
    secret, _, to = cookie.partition(".")
    try:
        if not cookie.isascii() or len(cookie) > MAX_COOKIE or len(secret) != sessions.SECRET_LENGTH:
            raise ValueError
        return secret, ours(base64.urlsafe_b64decode(to + "=" * (-len(to) % 4)).decode())
    except (ValueError, binascii.Error):
        return new_secret(), HOME

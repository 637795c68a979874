"""Signing in with a token, and out."""

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import APIRouter, Query, Response
from fastapi import Request as AnyRequest

from planner_api.console import session as sessions
from planner_api.console.address import HOME, home, lead
from planner_api.console.forms import read_form
from planner_api.console.rendering import render
from planner_api.console.session import cookie_of
from planner_api.errors import UnauthorisedError
from planner_api.web.route import Request, StrictRoute

router = APIRouter(prefix=HOME, route_class=StrictRoute)


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
        principal, token_id = await sessions.holder(request.database, token, look_only="look_only" in fields)
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
    answer.delete_cookie(sessions.COOKIE, path=home())
    return answer


def page(request: AnyRequest, *, to: str, ended: bool = False, problem: str | None = None, code: int = 200) -> Response:
    issuer = request.app.state.planner.settings.oidc_issuer
    provider = urlsplit(issuer).hostname if issuer else None
    return render(request, "login.html", code=code, to=to, ended=ended, problem=problem, provider=provider)


def ours(to: str) -> str:
    """Where to go after signing in: nowhere but within the console."""
    inside = to == HOME or to.startswith((f"{HOME}/", f"{HOME}?"))
    return to if inside and "\\" not in to and to.isprintable() else HOME

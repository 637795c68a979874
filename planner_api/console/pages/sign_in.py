"""Signing in with a token, and out."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.responses import RedirectResponse

from planner_api.console import session as sessions
from planner_api.console.forms import read_fields, read_form
from planner_api.console.rendering import render
from planner_api.console.session import HOME, cookie_of, set_cookie
from planner_api.errors import UnauthorisedError
from planner_api.http.route import StrictRoute

router = APIRouter(route_class=StrictRoute)


@router.get("/login")
async def show(
    request: Request, to: Annotated[str, Query(max_length=2048)] = HOME, ended: Annotated[bool, Query()] = False
) -> Response:
    """Ask for a token."""
    if request.state.session is not None:
        return RedirectResponse(_ours(to), status_code=303)
    return render(request, "login.html", to=_ours(to), ended=ended, problem=None)


@router.post("/login")
async def sign_in(request: Request) -> Response:
    """Begin a session and go where somebody wanted to."""
    fields = await read_fields(request)
    planner = request.app.state.planner
    to, lifetime_s = _ours(fields.get("to", HOME)), planner.settings.console_session_s
    try:
        session = await sessions.sign_in(
            planner.database,
            fields.get("token", "").strip(),
            look_only="look_only" in fields,
            lifetime_s=lifetime_s,
            request_id=request.state.request_id,
        )
    except UnauthorisedError as error:
        return render(request, "login.html", code=401, to=to, ended=False, problem=error.detail)
    answer = RedirectResponse(to, status_code=303)
    request.scope["state"]["principal"] = session.principal
    set_cookie(request, answer, session.secret, lifetime_s)
    return answer


@router.post("/logout")
async def sign_out(request: Request) -> Response:
    """End the session."""
    await read_form(request)
    secret = cookie_of(request.scope)
    if secret is not None:
        await sessions.sign_out(request.app.state.planner.database, secret)
    answer = RedirectResponse(f"{HOME}/login", status_code=303)
    answer.delete_cookie(sessions.COOKIE, path=HOME)
    return answer


def _ours(to: str) -> str:
    """Where to go after signing in: nowhere but within the console."""
    inside = to == HOME or to.startswith((f"{HOME}/", f"{HOME}?"))
    return to if inside and "\\" not in to and to.isprintable() else HOME

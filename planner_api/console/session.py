"""Who sits at the browser: a cookie with 256 random bits, kept as a SHA-256, that ends with its token.

A request that changes something must say that it comes from a page of ours (``Origin``, which no page of another site
can set), and other sites' requests carry no cookie (``SameSite=Strict``).
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import delete, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.requests import Request
from starlette.responses import Response

from hope_schema.proof import hash_token
from planner_api.console.address import home
from planner_api.db.engine import Database, WriteSession
from planner_api.db.tables import ConsoleSessionRow, TokenRow
from planner_api.devices.audit import record
from planner_api.devices.guard import Tokens
from planner_api.errors import ForbiddenError, UnauthorisedError
from planner_api.web.asgi import Scope, values_of
from planner_api.web.loopback import is_foreign
from planner_api.web.principal import ANONYMOUS, Actor, Principal, bearer

COOKIE = "hope_console"
SECRET_LENGTH = 43
"""Characters of a cookie: 32 bytes in base 64."""
MAX_TOKEN = 256
"""Longest token that is looked up; ours have 50 characters."""
WRONG_KIND = (
    "This token cannot be used here: sign in with an admin's token (hope-planner admin-token) "
    "or a viewer's (hope-planner tokens create --read-only)."
)


@dataclass(frozen=True)
class Session:
    """Whoever looks at the console.

    ``label`` is the note on their token, or what their provider calls them.
    """

    principal: Principal
    label: str | None = None
    expires_at: datetime | None = None

    @property
    def may_change(self) -> bool:
        return self.principal.role != "viewer"


ANYBODY = Session(ANONYMOUS)
"""At a planner that asks nobody for a token."""


def new_secret() -> str:
    return secrets.token_urlsafe(32)


async def holder(tokens: Tokens, token: str, *, look_only: bool) -> tuple[Principal, int]:
    """Who signs in with a token, and the token's number.

    Raises:
        UnauthorisedError: a token that is unknown, revoked, expired, or neither an admin's nor a viewer's.
    """
    known = await tokens.look_up(hash_token(token)) if 0 < len(token) <= MAX_TOKEN else None
    if known is None or known.expires_at <= time.time():
        claim = token.startswith("hope_c_")
        raise UnauthorisedError(WRONG_KIND if claim else "This token is unknown, expired or revoked.")
    if known.principal.role == "device":
        raise UnauthorisedError(WRONG_KIND)
    return bearer("viewer" if look_only else known.principal.role, known.token_id), known.token_id


async def begin(request: Request, answer: Response, principal: Principal, *, token_id: int | None) -> None:
    """Begin the session of somebody who is known: by a token, or by name where a provider vouches for them.

    With the answer their browser gets what it keeps of it: out of scripts' reach, sent by our own pages alone, and only
    as it came. Sessions that have ended are forgotten.
    """
    planner = request.app.state.planner
    secret, now, lifetime_s = new_secret(), datetime.now(UTC), planner.settings.console_session_s
    row = ConsoleSessionRow(
        session_hash=hash_token(secret),
        token_id=token_id,
        person=principal.name if token_id is None else None,
        scope=principal.role,
        created_at=now,
        expires_at=now + timedelta(seconds=lifetime_s),
    )
    async with planner.database.write() as session:
        await session.execute(delete(ConsoleSessionRow).where(ConsoleSessionRow.expires_at <= now))
        session.add(row)
        await session.flush()
        await record(session, Actor(principal.name, request.state.audit_id), "console.sign-in", principal.name)
    request.scope["state"]["principal"] = principal
    answer.set_cookie(
        COOKIE,
        secret,
        max_age=round(lifetime_s),
        path=home(request),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


async def resume(database: Database, secret: str) -> Session | None:
    """The session of a cookie; None when it has ended or never was."""
    now = datetime.now(UTC)
    query = (
        select(ConsoleSessionRow, TokenRow.label)
        .outerjoin(TokenRow, TokenRow.id == ConsoleSessionRow.token_id)
        .where(
            ConsoleSessionRow.session_hash == hash_token(secret),
            ConsoleSessionRow.expires_at > now,
            TokenRow.revoked_at.is_(None),
            or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > now),
        )
    )
    async with database.read() as session:
        found: Any = (await session.execute(query)).first()
    if found is None:
        return None
    row, label = found
    if row.token_id is not None:
        return Session(bearer(row.scope, row.token_id), label, row.expires_at)
    return Session(Principal(row.scope, row.person), row.person.partition(":")[2], row.expires_at)


async def sign_out(database: Database, secret: str, actor: Actor) -> None:
    async with database.write() as session:
        if await remove(session, hash_token(secret)) is not None:
            await record(session, actor, "console.sign-out", actor.name)


async def remove(session: WriteSession, session_hash: str) -> str | None:
    """Forget a session and return whose it was (nothing, where it was a token's); None when there was none."""
    doomed = delete(ConsoleSessionRow).where(ConsoleSessionRow.session_hash == session_hash)
    row = (await session.execute(doomed.returning(ConsoleSessionRow.person))).first()
    return None if row is None else row.person or ""


async def people(session: AsyncSession, limit: int) -> Sequence[ConsoleSessionRow]:
    """The sessions of people whom a provider vouches for, newest first; those of tokens end with their token."""
    query = (
        select(ConsoleSessionRow)
        .where(ConsoleSessionRow.person.is_not(None), ConsoleSessionRow.expires_at > datetime.now(UTC))
        .order_by(ConsoleSessionRow.created_at.desc())
        .limit(limit)
    )
    return (await session.scalars(query)).all()


def cookie_of(request: Request) -> str | None:
    """What the request's cookie holds, where it could be one of ours."""
    found = request.cookies.get(COOKIE, "")
    return found if len(found) == SECRET_LENGTH and found.isascii() else None


def check_origin(scope: Scope) -> None:
    """Refuse what another site sends in somebody's name.

    Hosts are compared and not schemes: behind a proxy that ends TLS the planner may not know its own.

    Raises:
        ForbiddenError: the request does not come from a page of this planner.
    """
    host = dict(scope["headers"]).get(b"host", b"")
    if not host or not values_of(scope, b"origin") or is_foreign(scope, host.decode("latin-1")):
        raise ForbiddenError("foreign-origin", "This did not come from a page of this console; nothing was changed.")

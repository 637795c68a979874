"""The rules of the audit log: an action and its entry commit together, or neither does."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from hope_schema import AuditEntry, AuditPage
from planner_api.db.engine import Database, WriteSession
from planner_api.db.messages import message_of, messages_of
from planner_api.db.tables import AuditRow
from planner_api.devices.audit import repository
from planner_api.web.principal import principal_of

MAX_SUBJECT = 256
MAX_DETAIL = 500
"""Characters of one value of a detail."""
PRUNED_AT_ONCE = 1000


@dataclass(frozen=True)
class Actor:
    """Who acts: the bearer of a request's token, a person at the command line, or the planner itself."""

    name: str
    request_id: str | None = None


PLANNER = Actor("planner")
"""Acts by itself: takes a release back, or on to its next stage; keeps entries for another time than before."""


def local_actor() -> Actor:
    """Who sits at this machine's command line."""
    try:
        return Actor(f"cli:{getpass.getuser()}"[:160])
    except (KeyError, OSError):  # a container's user may have no name
        return Actor("cli")


def actor_of(scope: Mapping[str, Any]) -> Actor:
    """Who sent the request of this ASGI scope."""
    return Actor(principal_of(scope).name, scope.get("state", {}).get("request_id"))


async def record(session: WriteSession, actor: Actor, action: str, subject: str, **detail: object) -> None:
    """Write down an action in the transaction that does it; values of ``None`` are left out of the detail."""
    said = {name: str(value)[:MAX_DETAIL] for name, value in detail.items() if value is not None}
    row = AuditRow(
        at=datetime.now(UTC),
        actor=actor.name,
        action=action,
        subject=subject[:MAX_SUBJECT],
        detail=said,
        request_id=actor.request_id,
    )
    session.add(row)
    await session.flush()


async def page(database: Database, *, limit: int, before: int | None, **where: str | None) -> AuditPage:
    """Entries, newest first."""
    async with database.read() as session:
        rows = await repository.page(session, before=before, limit=limit, **where)
    entries = messages_of(rows, partial(message_of, AuditEntry))
    return AuditPage(entries=entries, next=rows.next(lambda row: row.id))


async def prune(database: Database, days: int) -> None:
    """Forget what is older than so many days, and have the database refuse to delete anything younger."""
    before = datetime.now(UTC) - timedelta(days=days)
    async with database.write() as session:
        kept = await repository.keep_for(session, days)
        if kept not in (None, days):
            await record(session, PLANNER, "audit.retention", f"{days} days", before=f"{kept} days")
    while True:
        async with database.write() as session:
            if await repository.prune(session, before, PRUNED_AT_ONCE) < PRUNED_AT_ONCE:
                return

"""The rules of the audit log: an action and its entry commit together, or neither does.

Each entry holds a hash of itself and of the one before. Who owns the database may change it all, but not so that it
ends in a head that was written down elsewhere.
"""

import getpass
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial

from sqlalchemy import func, select, update

from hope_schema import AuditEntry, AuditPage, AuditProof
from hope_schema.hashing import digest
from planner_api.db import paging
from planner_api.db.engine import Database, WriteSession
from planner_api.db.paging import message_of, messages_of
from planner_api.db.tables import AuditHeadRow, AuditRetentionRow, AuditRow
from planner_api.db.upsert import insert_or_ignore, put
from planner_api.errors import ConflictError
from planner_api.web.principal import Actor

MAX_SUBJECT = 256
MAX_DETAIL = 500
"""Characters of one value of a detail."""
PRUNED_AT_ONCE, VERIFIED_AT_ONCE = 1000, 1000
_HEAD = select(AuditHeadRow.hash).where(AuditHeadRow.id == 1)
"""The hash of the newest entry."""


PLANNER = Actor("planner")
"""Acts by itself: takes a release back, or on to its next stage; keeps entries for another time than before."""


def local_actor() -> Actor:
    try:
        return Actor(f"cli:{getpass.getuser()}"[:160])
    except (KeyError, OSError):  # a container's user may have no name
        return Actor("cli")


async def record(session: WriteSession, actor: Actor, action: str, subject: str, **detail: object) -> None:
    """Write down an action in the transaction that does it; values of ``None`` are left out of the detail."""
    said = {name: _said(value)[:MAX_DETAIL] for name, value in detail.items() if value is not None}
    await insert_or_ignore(session, AuditHeadRow, {"id": 1, "hash": ""}, ["id"])
    previous = (await session.execute(_HEAD.with_for_update())).scalar_one()  # nobody else writes one meanwhile
    row = AuditRow(
        at=datetime.now(UTC),
        actor=actor.name,
        action=action,
        subject=subject[:MAX_SUBJECT],
        detail=said,
        request_id=actor.request_id,
        previous=previous,
    )
    row.hash = _hash(row)
    session.add(row)
    await session.flush()
    await session.execute(update(AuditHeadRow).where(AuditHeadRow.id == 1).values(hash=row.hash))


def _said(value: object) -> str:
    return ", ".join(f"{key}={each}" for key, each in value.items()) if isinstance(value, Mapping) else str(value)


def _hash(row: AuditRow) -> str:
    at = row.at.astimezone(UTC).isoformat(timespec="microseconds")
    return digest([row.previous, at, row.actor, row.action, row.subject, dict(row.detail), row.request_id])


async def verify(database: Database, head: str | None) -> AuditProof:
    """Check that every entry that is kept stands as it was written, one behind the other, and leads on from ``head``.

    Raises:
        ConflictError: an entry was changed, removed or put in between, or the log does not lead to ``head``.
    """
    after, count, before, seen = 0, 0, None, head is None
    while True:
        async with database.read() as session:
            newest = await session.scalar(_HEAD) or ""
            # In one statement with the head, for others write meanwhile; from the last one on, for old ones go.
            query = select(AuditRow, _HEAD.scalar_subquery()).where(AuditRow.id >= after).order_by(AuditRow.id)
            rows = [*(await session.execute(query.limit(VERIFIED_AT_ONCE)))]
        if rows:
            newest = rows[0][1] or ""
        if rows and rows[0][0].id == after:
            del rows[0]
        else:
            before = None
        for row, _ in rows:
            if row.hash != _hash(row):
                raise _broken(f"entry {row.id} was changed")
            if before is not None and row.previous != before:
                raise _broken(f"an entry before {row.id} was removed, or put in")
            after, before, count, seen = row.id, row.hash, count + 1, seen or row.hash == head
        if len(rows) < VERIFIED_AT_ONCE - 1:
            break
    if (before or "") != newest:
        raise _broken("its newest entries were removed")
    if not seen:
        raise _broken("no entry has the head that was written down: those since then were removed, or all written anew")
    return AuditProof(entries=count, head=newest or None)


def _broken(cause: str) -> ConflictError:
    return ConflictError("audit-broken", f"the audit log is not what was written: {cause}")


async def page(database: Database, *, limit: int, before: int | None, **where: str | None) -> AuditPage:
    """Entries whose columns are as ``where`` says, newest first."""
    query = select(AuditRow).filter_by(**{name: wanted for name, wanted in where.items() if wanted is not None})
    async with database.read() as session:
        rows = await paging.page(session, query, AuditRow.id, before, limit, newest_first=True)
    return AuditPage(entries=messages_of(rows, partial(message_of, AuditEntry)), next=rows.next)


async def prune(database: Database, days: int) -> None:
    """Forget what is older than so many days, and have the database refuse to delete anything younger."""
    before = datetime.now(UTC) - timedelta(days=days)
    async with database.write() as session:
        kept = await session.scalar(select(AuditRetentionRow.days))
        if kept != days:
            await put(session, AuditRetentionRow, {"id": 1, "days": days}, key=("id",))
        if kept not in (None, days):
            await record(session, PLANNER, "audit.retention", f"{days} days", before=f"{kept} days")
    newest = select(func.max(AuditRow.id)).scalar_subquery()  # never goes, for the chain ends in it
    doomed = select(AuditRow.id).where(AuditRow.at < before, AuditRow.id < newest).order_by(AuditRow.id)
    await paging.prune(database, AuditRow.id, doomed, PRUNED_AT_ONCE)

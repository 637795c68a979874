"""The inbox of uploads: stored in groups, and each acknowledged when it is and will be folded; every query on it."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, and_, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.concurrency import Gathering
from planner_api.db.engine import Database, WriteSession
from planner_api.db.tables import InboxRow
from planner_api.db.upsert import ignoring
from planner_api.jobs.wanted import Wanted, have
from planner_api.profiles.jobs import FOLD, key_of

BATCH_UPLOADS = 128
BATCH_BYTES = 4 * 2**20
"""One transaction holds at most this much, so that a reader of the log is never far behind."""
TAKEN_BACK = "not used: it was taken back"
"""What is said of an upload that had not been folded by then."""

Upload = Mapping[str, Any]


def gathering(database: Database, *, delay_s: float) -> Gathering[Upload, bool]:
    """What stores uploads, which wait ``delay_s`` for others to be folded together with; each is answered with whether
    it is the first of its device and id.
    """
    return Gathering(
        partial(_write, database, delay_s),
        most=BATCH_UPLOADS,
        weight=lambda upload: len(upload["body"]),
        heaviest=BATCH_BYTES,
    )


async def _write(database: Database, delay_s: float, group: Sequence[Upload]) -> Sequence[bool]:
    # NOTE: in the order of the key, so that two replicas with the same uploads cannot deadlock.
    uploads = [dict(upload) for upload in sorted(group, key=_key)]
    async with database.write() as session:
        insert_into = ignoring(database.dialect, InboxRow, ["device_id", "upload_id"])
        rows = await session.execute(insert_into.returning(InboxRow.device_id, InboxRow.upload_id), uploads)
        fresh = {(device_id, upload_id) for device_id, upload_id in rows}
    # Of what is sent again too: the process that stored it may have ended before it queued the job.
    pairs = {(upload["soc"], upload["frequency"]) for upload in uploads}
    await have(database, *(Wanted(FOLD, key_of(*pair), delay_s=delay_s, again=True) for pair in pairs))
    results = []
    for upload in group:
        results.append(_key(upload) in fresh)
        fresh.discard(_key(upload))
    return results


def _key(upload: Upload) -> tuple[str, str]:
    return upload["device_id"], upload["upload_id"]


def waiting(soc: str, frequency: str) -> ColumnElement[bool]:
    """Uploads that are to be folded into a profile."""
    return and_(InboxRow.soc == soc, InboxRow.frequency == frequency, InboxRow.folded_at.is_(None))


async def pending(session: AsyncSession, soc: str, frequency: str, limit: int) -> Sequence[tuple[int, int]]:
    query = select(InboxRow.id, InboxRow.rows).where(waiting(soc, frequency)).order_by(InboxRow.id).limit(limit)
    return [(row_id, rows) for row_id, rows in await session.execute(query)]


async def count_waiting(session: AsyncSession) -> dict[str, int]:
    return {"waiting": await session.scalar(select(func.count()).where(InboxRow.folded_at.is_(None))) or 0}


async def bodies(session: AsyncSession, ids: Collection[int]) -> Sequence[Any]:
    """Return (id, device, encoding, body, trusted, rows) of those uploads that still wait, in the order they came."""
    columns = InboxRow.id, InboxRow.device_id, InboxRow.encoding, InboxRow.body, InboxRow.trusted, InboxRow.rows
    still = InboxRow.id.in_(ids), InboxRow.folded_at.is_(None)
    return (await session.execute(select(*columns).where(*still).order_by(InboxRow.id))).all()


async def take_back(session: WriteSession, soc: str, frequency: str, device_id: str | None, now: datetime) -> None:
    """Let what a device (None: what any) sent to a profile wait no more: it is not used."""
    theirs = update(InboxRow).where(waiting(soc, frequency))
    if device_id is not None:
        theirs = theirs.where(InboxRow.device_id == device_id)
    await session.execute(theirs.values(folded_at=now, body=None, error=TAKEN_BACK))


async def were_taken_back(session: WriteSession, ids: Collection[int]) -> bool:
    """Whether any of these uploads waits no more; none is taken back until the transaction ends."""
    query = select(InboxRow.folded_at).where(InboxRow.id.in_(ids)).order_by(InboxRow.id).with_for_update()
    return any(at is not None for at in await session.scalars(query))


async def mark_folded(session: WriteSession, ids: Collection[int], unused: Mapping[int, str], now: datetime) -> None:
    """Empty the bodies of folded uploads; their ids stay, so that a replay is still known, and why some was unused."""
    await session.execute(update(InboxRow).where(InboxRow.id.in_(ids)).values(folded_at=now, body=None))
    for row_id, reason in unused.items():
        await session.execute(update(InboxRow).where(InboxRow.id == row_id).values(error=reason))


async def mark_unusable(session: WriteSession, errors: Mapping[int, str], now: datetime) -> None:
    """Say why an upload could not be folded; its body is kept for whoever looks into it."""
    for row_id, error in errors.items():
        await session.execute(update(InboxRow).where(InboxRow.id == row_id).values(folded_at=now, error=error))

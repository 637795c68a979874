"""Every query on devices, their tokens and claims, but what a batch of reports stores (``devices/reports.py``)."""

import statistics
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from hope_schema.base import LEAST_US
from planner_api.db.engine import WriteSession
from planner_api.db.paging import chunks
from planner_api.db.tables import SERVED_VERSION, ClaimRow, DeviceRow, DriftRow, InboxRow, PlanRow, TokenRow, UsageRow
from planner_api.db.upsert import insert_or_ignore, upserting
from planner_api.jobs.news import publish

REVOKED = "revoked"
"""Topic: the hash of a token that was revoked."""
DESCRIBED = "described"
"""Topic: a device has other labels, or says that it is another SoC."""


async def find_tokens(session: AsyncSession, token_hashes: Collection[str]) -> dict[str, Any]:
    """``id``, ``scope``, ``device_id``, ``expires_at`` of tokens by hash, but of those revoked, or whose device was."""
    rows = await session.execute(
        select(TokenRow.token_hash, TokenRow.id, TokenRow.scope, TokenRow.device_id, TokenRow.expires_at)
        .outerjoin(DeviceRow, DeviceRow.id == TokenRow.device_id)
        .where(TokenRow.token_hash.in_(token_hashes), TokenRow.revoked_at.is_(None), DeviceRow.revoked_at.is_(None))
    )
    return {row.token_hash: row for row in rows}


def valid_claim(claim_hash: str) -> ColumnElement[bool]:
    return and_(
        ClaimRow.claim_hash == claim_hash,
        ClaimRow.revoked_at.is_(None),
        or_(ClaimRow.expires_at.is_(None), ClaimRow.expires_at > datetime.now(UTC)),
        or_(ClaimRow.uses_left.is_(None), ClaimRow.uses_left > 0),
    )


async def enrol(session: WriteSession, device_id: str, values: Mapping[str, Any]) -> bool:
    """Insert the device, or take over one that holds no valid token; False when it is enrolled already."""
    now = datetime.now(UTC)
    row = {"id": device_id, "enrolled_at": now, **values}
    if await insert_or_ignore(session, DeviceRow, row, ["id"]):
        return True
    await lock(session, device_id)  # of two enrolments with one id the second sees the first's token
    if await valid_tokens(session, device_id):
        return False
    await session.execute(
        update(DeviceRow).where(DeviceRow.id == device_id).values(enrolled_at=now, revoked_at=None, **values)
    )
    await publish(session, DESCRIBED, device_id)
    return True


async def lock(session: WriteSession, device_id: str) -> None:
    """Let one transaction at a time count what a device has to do with (SQLite writers queue anyway)."""
    await session.execute(select(DeviceRow.id).where(DeviceRow.id == device_id).with_for_update())


async def valid_tokens(session: AsyncSession, device_id: str) -> Sequence[str]:
    """Hashes of the device's tokens that are neither revoked nor expired."""
    now = datetime.now(UTC)
    query = select(TokenRow.token_hash).where(
        TokenRow.device_id == device_id,
        TokenRow.revoked_at.is_(None),
        or_(TokenRow.expires_at.is_(None), TokenRow.expires_at > now),
    )
    return (await session.scalars(query)).all()


async def revoke(session: WriteSession, *, token_id: int | None = None, device_id: str | None = None) -> Sequence[str]:
    """Revoke one token, or all of a device and the device itself; the hashes that were valid until now."""
    now = datetime.now(UTC)
    wanted = TokenRow.id == token_id if device_id is None else TokenRow.device_id == device_id
    if device_id is not None:
        await session.execute(update(DeviceRow).where(DeviceRow.id == device_id).values(revoked_at=now))
    rows = await session.scalars(
        update(TokenRow)
        .where(wanted, TokenRow.revoked_at.is_(None))
        .values(revoked_at=now)
        .returning(TokenRow.token_hash)
    )
    return rows.all()


async def use(session: WriteSession, owner: str, quota: str, day: str, amount: int) -> int:
    insert_into = upserting(session.get_bind().dialect.name, UsageRow).values(
        owner=owner, quota=quota, day=day, used=amount
    )
    statement = insert_into.on_conflict_do_update(
        index_elements=["owner", "quota", "day"], set_={"used": UsageRow.used + amount}
    )
    return (await session.execute(statement.returning(UsageRow.used))).scalar_one()


async def saw(session: WriteSession, device_ids: Collection[str]) -> None:
    """Remember that devices were seen now; locked in the order of their ids, as reports lock them."""
    ordered, now = sorted(device_ids), datetime.now(UTC)
    for chunk in chunks(ordered):
        some = select(DeviceRow.id).where(DeviceRow.id.in_(chunk))
        locked = some.order_by(DeviceRow.id).with_for_update()
        await session.execute(update(DeviceRow).where(DeviceRow.id.in_(locked)).values(last_seen_at=now))


DRIFT = DriftRow.measured_us / DriftRow.predicted_us - 1.0
"""Of one report: measured / predicted - 1."""
MEASURED = DriftRow.predicted_us >= LEAST_US, DriftRow.measured_us.is_not(None)
"""Reports that have a drift."""


def newest_of_served(*columns: Any) -> Select[*tuple[Any, ...]]:
    """A query on devices' newest reports that have a drift and are about the version of a plan that devices get."""
    query = select(*columns).select_from(DriftRow).join(PlanRow, PlanRow.id == DriftRow.plan_id)
    return query.where(*MEASURED, DriftRow.plan_version == SERVED_VERSION)


async def drifts(session: AsyncSession, device_ids: Sequence[str]) -> dict[str, float]:
    """Per device: the median drift of its newest reports on what devices get."""
    found: dict[str, list[float]] = {}
    query = newest_of_served(DriftRow.device_id, DRIFT).where(DriftRow.device_id.in_(device_ids))
    for device_id, drift in await session.execute(query):
        found.setdefault(device_id, []).append(drift)
    return {device_id: statistics.median(each) for device_id, each in found.items()}


async def missed(session: AsyncSession, device_ids: Sequence[str]) -> dict[str, float]:
    """Per device: the share of deadlines that it missed in its newest reports; of those that had any."""
    share = func.sum(DriftRow.missed) * 1.0 / func.sum(DriftRow.deadlines)
    had_any = DriftRow.device_id.in_(device_ids), DriftRow.deadlines > 0
    query = select(DriftRow.device_id, share).where(*had_any).group_by(DriftRow.device_id)
    return {device_id: float(found) for device_id, found in await session.execute(query)}


async def unused(session: AsyncSession, device_ids: Sequence[str]) -> dict[str, str]:
    """Per device: what of its newest upload that was not used in full was not, and why."""
    query = (
        select(InboxRow.device_id, InboxRow.error)
        .where(InboxRow.device_id.in_(device_ids), InboxRow.error.is_not(None))
        .order_by(InboxRow.id)
    )
    return {device_id: error for device_id, error in await session.execute(query) if error is not None}

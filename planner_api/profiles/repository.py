"""Every query on profiles, their inbox and their assignments."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, exists, func, insert, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from planner_api.db.engine import WriteSession
from planner_api.db.tables import (
    AssignmentRow,
    ContributionRow,
    DeviceRow,
    PlanRestsOnRow,
    ProfileRow,
    ProfileVersionRow,
    SocRow,
)
from planner_api.db.upsert import insert_or_ignore
from planner_api.profiles import inbox

_NEWEST = (ProfileVersionRow.profile_id == ProfileRow.id) & (ProfileVersionRow.version == ProfileRow.version)
"""Joins a profile with its newest version."""
KEEP_ASSIGNMENTS = timedelta(days=1)
"""How long it is remembered that a device did not deliver what it was asked for."""
HEEDED = 100
"""Assignments of others that one question heeds."""
KEEP_VERSIONS = timedelta(hours=1)
"""How long a version stays that no plan rests on (yet)."""


async def revoked(session: AsyncSession, device_ids: Collection[str]) -> set[str]:
    query = select(DeviceRow.id).where(DeviceRow.id.in_(device_ids), DeviceRow.revoked_at.is_not(None))
    return set(await session.scalars(query))


async def taken_back(session: AsyncSession, profile_id: int) -> dict[str, datetime]:
    """The devices whose figures the next fold is to forget, and since when."""
    query = select(ContributionRow.device_id, ContributionRow.taken_back_at).where(
        ContributionRow.profile_id == profile_id, ContributionRow.taken_back_at.is_not(None)
    )
    return {device_id: at for device_id, at in await session.execute(query) if at is not None}


async def waits(session: AsyncSession, soc: str, frequency: str) -> bool:
    """Whether a profile is to be folded: uploads to it wait, or figures of it are taken back."""
    taken_back = this(soc, frequency), ContributionRow.taken_back_at.is_not(None)
    marked = select(ContributionRow.profile_id).join(ProfileRow).where(*taken_back)
    return bool(await session.scalar(select(or_(exists().where(inbox.waiting(soc, frequency)), marked.exists()))))


def this(soc: str, frequency: str) -> ColumnElement[bool]:
    return and_(
        ProfileRow.frequency == frequency,
        ProfileRow.soc_id == select(SocRow.id).where(SocRow.name == soc).scalar_subquery(),
    )


async def head(session: AsyncSession, soc: str, frequency: str) -> ProfileRow | None:
    return await session.scalar(select(ProfileRow).where(this(soc, frequency)))


async def statistics(session: AsyncSession, profile_id: int) -> bytes | None:
    return await session.scalar(select(ProfileRow.statistics).where(ProfileRow.id == profile_id))


async def ensure(session: WriteSession, soc: str, frequency: str) -> ProfileRow:
    """Return the profile of a SoC at a frequency, making an empty one (version 0) when there is none."""
    found = await head(session, soc, frequency)
    if found is not None:
        return found
    await insert_or_ignore(session, SocRow, {"name": soc}, ["name"])
    soc_id = await session.scalar(select(SocRow.id).where(SocRow.name == soc))
    await insert_or_ignore(session, ProfileRow, {"soc_id": soc_id, "frequency": frequency}, ["soc_id", "frequency"])
    found = await head(session, soc, frequency)
    assert found is not None
    return found


async def store(
    session: WriteSession, profile_id: int, values: Mapping[str, Any], body: bytes | None, now: datetime
) -> None:
    """Store columns of a profile, and the body of a new version (None: it has none)."""
    await session.execute(update(ProfileRow).where(ProfileRow.id == profile_id).values(**values, updated_at=now))
    if body is not None:
        await _store_version(session, profile_id, values["version"], body, now)


async def _store_version(session: WriteSession, profile_id: int, version: int, body: bytes, now: datetime) -> None:
    """Store a new version, and drop old ones that no plan rests on."""
    await session.execute(
        insert(ProfileVersionRow).values(profile_id=profile_id, version=version, body_zstd=body, created_at=now)
    )
    used = (
        select(PlanRestsOnRow.profile_version)
        .join(SocRow, SocRow.name == PlanRestsOnRow.soc)
        .join(ProfileRow, (ProfileRow.soc_id == SocRow.id) & (ProfileRow.frequency == PlanRestsOnRow.frequency))
        .where(ProfileRow.id == profile_id, PlanRestsOnRow.profile_version.is_not(None))
    )
    versions = ProfileVersionRow
    # NOTE: young ones stay too: a solve that loaded one of them may be about to store its plan.
    old = versions.version < version, versions.created_at < now - KEEP_VERSIONS, versions.version.not_in(used)
    await session.execute(delete(versions).where(versions.profile_id == profile_id, *old))


async def snapshot(session: AsyncSession, profile_id: int, version: int) -> bytes | None:
    found = await session.get(ProfileVersionRow, (profile_id, version))
    return None if found is None else found.body_zstd


async def current(session: AsyncSession, soc: str, frequency: str) -> tuple[ProfileRow, bytes] | None:
    query = select(ProfileRow, ProfileVersionRow.body_zstd).join(ProfileVersionRow, _NEWEST)
    row = (await session.execute(query.where(this(soc, frequency)))).first()
    return None if row is None else (row[0], row[1])


async def richest(session: AsyncSession, besides: str) -> bytes | None:
    """Return the newest version of the profile with the most latencies among those of other SoCs that count."""
    query = pairs_query(ProfileVersionRow.body_zstd).join(ProfileVersionRow, _NEWEST).where(SocRow.name != besides)
    body: bytes | None = await session.scalar(query.order_by(ProfileRow.latencies.desc(), ProfileRow.id).limit(1))
    return body


async def assigned_elsewhere(
    session: AsyncSession, profile_id: int, device_id: str, between: tuple[datetime, datetime]
) -> bytes:
    """Return the figures, one after the other, that other devices are measuring just now: their assignments end within
    these moments. Of very many devices it is those that were asked last.
    """
    elsewhere = (
        AssignmentRow.profile_id == profile_id,
        AssignmentRow.device_id != device_id,
        AssignmentRow.expires_at > between[0],
        AssignmentRow.expires_at <= between[1],
    )
    newest = AssignmentRow.expires_at.desc(), AssignmentRow.device_id
    query = select(AssignmentRow.figures).where(*elsewhere).order_by(*newest).limit(HEEDED)
    return b"".join(await session.scalars(query))


async def undelivered(session: AsyncSession, profile_id: int, device_id: str, now: datetime) -> int:
    """How many assignments in a row a device has not delivered half of, the one that it has now too; or how many of
    other devices of its claim ran out, if those are more: many that hoard in turn are as one.
    """
    row = await session.get(AssignmentRow, (profile_id, device_id))
    own = 0 if row is None else row.undelivered + bool(row.figures)
    claim = select(DeviceRow.claim_id).where(DeviceRow.id == device_id).scalar_subquery()
    ran_out = (
        AssignmentRow.profile_id == profile_id,
        AssignmentRow.device_id != device_id,
        AssignmentRow.expires_at <= now,
        AssignmentRow.figures != b"",
        DeviceRow.claim_id == claim,
    )
    others = select(AssignmentRow.device_id).join(DeviceRow, DeviceRow.id == AssignmentRow.device_id).where(*ran_out)
    return max(own, len((await session.scalars(others.limit(HEEDED))).all()))


async def release(session: WriteSession, profile_id: int, rows: Mapping[str, int], now: datetime) -> None:
    """End the assignments of devices that have uploaded so many rows, and forget those that ran out long ago."""
    mine = AssignmentRow.profile_id == profile_id
    for device_id, uploaded in sorted(rows.items()):
        this = mine, AssignmentRow.device_id == device_id
        found = await session.scalar(select(AssignmentRow.figures).where(*this))
        if found is None:
            continue
        delivered = 2 * uploaded >= len(found) // 8
        missed = 0 if delivered else AssignmentRow.undelivered + 1
        await session.execute(update(AssignmentRow).where(*this).values(figures=b"", undelivered=missed))
    await session.execute(delete(AssignmentRow).where(mine, AssignmentRow.expires_at <= now - KEEP_ASSIGNMENTS))


async def standing(session: AsyncSession, profile_id: int) -> tuple[ProfileRow, bytes | None]:
    query = select(ProfileRow, ProfileVersionRow.body_zstd).outerjoin(ProfileVersionRow, _NEWEST)
    profile, body = (await session.execute(query.where(ProfileRow.id == profile_id))).one()
    return profile, body


def pairs_query(*columns: Any) -> Select[*tuple[Any, ...]]:
    """A query on the pairs of SoC and frequency that the fleet knows figures of, of the SoCs it counts."""
    known = ProfileRow.version > 0, SocRow.established_at.is_not(None)
    return select(*columns).select_from(ProfileRow).join(SocRow).where(*known)


async def pairs(session: AsyncSession) -> list[tuple[str, str]]:
    query = pairs_query(SocRow.name, ProfileRow.frequency).order_by(SocRow.name, ProfileRow.frequency)
    return [(row[0], row[1]) for row in await session.execute(query)]


async def count_pairs(session: AsyncSession) -> int:
    return (await session.scalar(pairs_query(func.count()))) or 0

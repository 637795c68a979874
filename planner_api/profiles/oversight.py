"""What an admin sees of a profile and has done to it: who said what, and whose figures are taken back."""

import asyncio
from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from itertools import islice

import numpy as np
from sqlalchemy import or_, select, update

from hope_schema import Contribution, ContributionPage, Vote, VotePage
from planner_api.db import paging
from planner_api.db.engine import Database, WriteSession
from planner_api.db.paging import message_of, messages_of
from planner_api.db.tables import ContributionRow, InboxRow, ProfileRow, SocRow
from planner_api.devices.audit import record
from planner_api.errors import unknown, unknown_profiles
from planner_api.jobs.wanted import URGENT, Wanted, put
from planner_api.models.figures import Latency
from planner_api.profiles import inbox, repository
from planner_api.profiles.folding import refused
from planner_api.profiles.jobs import FOLD, key_of
from planner_api.profiles.statistics import Key, Statistics, device_hash
from planner_api.web.principal import Actor


async def contributions(
    database: Database, soc: str, frequency: str, *, after: str | None, limit: int
) -> ContributionPage:
    """Who had a part in a profile. Raises NotFoundError when there is none."""
    head, statistics = await _load(database, soc, frequency)
    said = await asyncio.to_thread(statistics.said_by)
    async with database.read() as session:
        query = select(ContributionRow).where(ContributionRow.profile_id == head.id)
        rows = await paging.page(session, query, ContributionRow.device_id, after, limit)

    def contribution(row: ContributionRow) -> Contribution:
        figures, alone = said.get(device_hash(row.device_id), (0, 0))
        return message_of(Contribution, row, figures=figures, alone=alone)

    return ContributionPage(contributions=messages_of(rows, contribution), next=rows.next)


async def votes(
    database: Database, soc: str, frequency: str, *, device_id: str | None, offset: int, limit: int
) -> VotePage:
    """Who said what; of one device alone where it is named. Raises NotFoundError when there is no such profile."""
    head, statistics = await _load(database, soc, frequency)
    async with database.read() as session:
        query = select(ContributionRow.device_id).where(ContributionRow.profile_id == head.id)
        names = {device_hash(name): name for name in await session.scalars(query)}
    wanted = None if device_id is None else device_hash(device_id)
    behind = islice(_votes(statistics, wanted), offset, None)
    found = await asyncio.to_thread(lambda: paging.Page(behind, limit, lambda some: offset + len(some)))
    page = tuple(
        Vote(figure=_words(key), device_id=names.get(device), us=None if us == np.inf else us)
        for key, device, us in found
    )
    return VotePage(votes=page, next=found.next)


async def agreement(
    database: Database, soc: str, frequency: str, wanted: Collection[Latency]
) -> dict[Latency, tuple[int, int]]:
    """Per latency: how many devices' votes are kept, and how many of those are believed.

    Raises:
        NotFoundError: there is no such profile.
    """
    _, statistics = await _load(database, soc, frequency)
    votes = statistics.latencies
    known = [key for key in wanted if key in votes.index]

    def work() -> dict[Latency, tuple[int, int]]:
        rows = votes.rows(known)
        voters = (votes.device[rows] != 0).sum(axis=1)
        believed = voters - refused(votes.us[rows])
        return dict(zip(known, zip(voters.tolist(), believed.tolist(), strict=True), strict=True))

    return await asyncio.to_thread(work) if known else {}


async def forget(database: Database, soc: str, frequency: str, device_id: str | None, actor: Actor) -> None:
    """Have what a device said in a profile (None: what all said) forgotten. Raises NotFoundError when there is none."""
    async with database.write() as session:
        head = await repository.head(session, soc, frequency)
        if head is None:
            raise unknown_profiles((soc, frequency))
        await _take_back(session, soc, frequency, device_id)
        await record(session, actor, "profile.forget", f"{soc}/{frequency}", devices=device_id)


async def forget_device(session: WriteSession, device_id: str) -> int:
    """Have what a device said forgotten in every profile; return in how many."""
    folded = select(SocRow.name, ProfileRow.frequency).select_from(ProfileRow).join(SocRow).join(ContributionRow)
    folded = folded.where(ContributionRow.device_id == device_id, ContributionRow.uploads > 0)
    waiting = select(InboxRow.soc, InboxRow.frequency).where(
        InboxRow.device_id == device_id, InboxRow.folded_at.is_(None)
    )
    said = sorted((soc, frequency) for soc, frequency in await session.execute(folded.union(waiting)))
    for soc, frequency in said:
        await _take_back(session, soc, frequency, device_id)
    return len(said)


async def _take_back(session: WriteSession, soc: str, frequency: str, device_id: str | None) -> None:
    """Have the next fold forget what a device (None: what all) said in a profile; what waits for it is not used."""
    now = datetime.now(UTC)
    profile = select(ProfileRow.id).where(repository.this(soc, frequency)).scalar_subquery()
    theirs = update(ContributionRow).where(ContributionRow.profile_id == profile, ContributionRow.uploads > 0)
    if device_id is not None:
        theirs = theirs.where(ContributionRow.device_id == device_id)
    # First what waits, as a fold does that is under way: it stores all that was said before this, or nothing.
    await inbox.take_back(session, soc, frequency, device_id, now)
    await session.execute(theirs.values(taken_back_at=now))
    await put(session, Wanted(FOLD, key_of(soc, frequency), priority=URGENT, again=True))


async def establish(database: Database, soc: str, actor: Actor) -> None:
    """Vouch for a SoC, so that planning ahead counts it. Raises NotFoundError where nobody ever uploaded for it."""
    folded = select(ProfileRow.id).join(SocRow).where(SocRow.name == soc, ProfileRow.version > 0)
    uploaded = select(InboxRow.id).where(InboxRow.soc == soc)
    async with database.write() as session:
        if not await session.scalar(select(or_(folded.exists(), uploaded.exists()))):
            raise unknown("soc", soc)
        await vouch(session, soc, actor)


async def vouch(session: WriteSession, soc: str, actor: Actor) -> None:
    """Let planning ahead count a SoC, and write down who had it so."""
    vouched = update(SocRow).where(SocRow.name == soc, SocRow.established_at.is_(None))
    if await session.touches(vouched.values(established_at=datetime.now(UTC)).returning(SocRow.id)):
        await record(session, actor, "soc.establish", soc)


async def _load(database: Database, soc: str, frequency: str) -> tuple[ProfileRow, Statistics]:
    async with database.read() as session:
        head = await repository.head(session, soc, frequency)
        if head is None:
            raise unknown_profiles((soc, frequency))
        dumped = await repository.statistics(session, head.id)
    return head, await asyncio.to_thread(Statistics.load, dumped)


def _votes(statistics: Statistics, device: int | None) -> Iterator[tuple[Key, int, float]]:
    for family in statistics.families.values():
        for row, key in enumerate(family.keys):
            for name, us in zip(family.device[row].tolist(), family.us[row].tolist(), strict=True):
                if name and device in (None, name):
                    yield key, name, us


def _words(key: Key) -> tuple[str, ...]:
    if len(key) == 4:
        dtype, shape, source, target = key
        return f"{dtype}[{','.join(map(str, shape))}]", source, target
    return tuple(map(str, key))

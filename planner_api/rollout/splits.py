"""Which version a device gets while a release is under way: from memory, as soon as the device is known."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import or_, select

from hope_schema import GroupSelector
from planner_api.db.engine import Database
from planner_api.db.tables import DeviceRow, ReleasePartRow, ReleaseRow
from planner_api.devices.groups import selector_of, takes, within
from planner_api.devices.repository import DESCRIBED
from planner_api.jobs.news import News
from planner_api.plans.stored import PlanCache
from planner_api.remembered import Remembered
from planner_api.rollout import repository

LATELY = timedelta(minutes=5)
"""How long after its end a release is still looked for, by a process that may have lost its database meanwhile."""
MAX_DEVICES = 200_000
"""Devices whose labels and SoC are remembered at once."""


@dataclass(frozen=True)
class Split:
    """What a release under way means for one plan or one alias."""

    release_id: str
    before: int
    after: int
    share: float
    group: str
    selector: GroupSelector
    soc: str | None
    """The plan's; None: the device must be asked about."""


class Splits:
    """The releases under way, as this process knows them. Used from one event loop."""

    def __init__(self, database: Database, cache: PlanCache, news: News) -> None:
        self._database = database
        self._cache = cache
        self._known: dict[str, int] = {}
        self._turn = asyncio.Lock()
        self._devices: Remembered[str, tuple[dict[str, str], str]] = Remembered(MAX_DEVICES)
        self.plans: dict[str, Split] = {}
        self.aliases: dict[tuple[str, str], Split] = {}
        news.on(DESCRIBED, self._devices.forget)

    async def look(self) -> None:
        """Take in what was done to releases; of two looks at once the later one counts."""
        async with self._turn:
            async with self._database.read() as session:
                lately = or_(ReleaseRow.state.in_(repository.ACTIVE), ReleaseRow.ended_at >= datetime.now(UTC) - LATELY)
                rows = (await session.scalars(select(ReleaseRow).where(lately))).all()
                revisions = {row.id: row.revision for row in rows}
                if revisions == self._known:
                    return
                parts = await repository.parts(session, [*revisions])
            before = set(self.plans)
            self._take_in(rows, parts)
            # NOTE: a release may have ended, or begun, unseen: of whatever differs nothing remembered is served on.
            for plan_id in before | {part.plan_id for part in parts if part.plan_id is not None}:
                self._cache.forget((plan_id, None))
            self._known = revisions

    def _take_in(self, rows: Iterable[ReleaseRow], parts: Iterable[ReleasePartRow]) -> None:
        active = {row.id: row for row in rows if row.state in repository.ACTIVE}
        self.plans = {
            part.plan_id: _split(active[part.release_id], part.before, part.after, part.soc)
            for part in parts
            if part.plan_id is not None and part.release_id in active
        }
        self.aliases = {
            (row.name, row.alias): _split(row, row.before, row.after)
            for row in active.values()
            if row.name is not None and row.alias is not None and row.before is not None and row.after is not None
        }

    async def plan_version(self, plan_id: str, device_id: str | None) -> int | None:
        """The version of a plan that a device gets; None for a plan that no release is moving."""
        split = self.plans.get(plan_id)
        return None if split is None else await self._version(split, device_id)

    async def alias_version(self, name: str, alias: str, device_id: str | None) -> int | None:
        """The version of a model that an alias means for a device; None for an alias that no release is moving."""
        split = self.aliases.get((name, alias))
        return None if split is None else await self._version(split, device_id)

    async def _version(self, split: Split, device_id: str | None) -> int:
        """Return the version that a device gets; one that does not say who it is gets the version before."""
        if device_id is None or not within(split.share, device_id, split.release_id):
            return split.before
        labels, soc = dict[str, str](), ""
        if split.selector.labels or (split.selector.socs and not split.soc):
            labels, soc = await self._described(device_id)
        return split.after if takes(split.selector, split.group, device_id, split.soc or soc, labels) else split.before

    async def _described(self, device_id: str) -> tuple[dict[str, str], str]:
        """A device's labels and SoC; nothing of one that nobody knows."""
        if (known := self._devices.get(device_id)) is not None:
            return known
        generation = self._devices.generation
        async with self._database.read() as session:
            device = await session.get(DeviceRow, device_id)
        if device is None:
            return {}, ""
        found = device.labels or {}, device.soc or ""
        self._devices.put(device_id, found, generation)
        return found


def _split(row: ReleaseRow, before: int, after: int, soc: str | None = None) -> Split:
    return Split(row.id, before, after, row.stages[row.stage], row.group or "", selector_of(row.selector), soc)

"""The rules of releases: begin, hold, go on, end; by admins, and by the planner itself where harm is proven."""

import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from sqlalchemy import select, update

from hope_schema import GroupSelector, Release, ReleasePage, ReleasePartPage, ReleaseRequest
from hope_schema.releases import Rollout
from hope_schema.wording import plural
from planner_api.db.engine import Database, WriteSession, found
from planner_api.db.paging import chunks, messages_of, page
from planner_api.db.tables import GroupRow, ModelRow, ReleasePartRow, ReleaseRow
from planner_api.devices.audit import PLANNER, record
from planner_api.devices.groups import selector_of
from planner_api.errors import ConflictError, InvalidError, unknown
from planner_api.models import repository as models
from planner_api.rollout import repository
from planner_api.rollout.aliases import resolve
from planner_api.rollout.judging import harm, judge, next_step, part_view, release_view, waits_for
from planner_api.rollout.splits import Splits
from planner_api.rollout.taking import count_takers, parts_of_alias, take_alias, take_plans
from planner_api.web.principal import Actor

SEEN = timedelta(days=7)
"""Devices that were seen within this time are counted when a release begins; the others may never report."""
MAX_REASON = 500
Action = Literal["pause", "resume", "approve", "rollback"]
"""Stay at this stage; go on; go to the next one now, from the last one to the end; return to the version before."""
_TAKEN_FROM: dict[Action, tuple[str, ...]] = {
    "pause": ("running", "waiting"),
    "resume": ("paused",),
    "approve": ("running", "waiting"),
    "rollback": (*repository.ACTIVE, "done"),
}
"""The states of a release in which an action takes it."""


class Releases:
    """Releases, as admins and the planner's own look-out handle them.

    This process's splits are told at once of what it does; other processes look for it.
    """

    def __init__(self, database: Database, splits: Splits) -> None:
        self._database = database
        self._splits = splits

    async def look(self) -> None:
        """Take in what other processes did to releases, and steer them."""
        await self._splits.look()
        await self.steer()

    async def set_rollout(self, model_hash: str, rollout: Rollout, actor: Actor) -> None:
        """Say how new versions of a model's plans reach devices.

        What is held now stays held until it is released, or until a next version waits for no release.

        Raises:
            NotFoundError: an unknown model.
        """
        async with self._database.write() as session:
            this = ModelRow.hash == model_hash
            before = await session.scalar(select(ModelRow.rollout).where(this).with_for_update())
            if before is None:
                raise unknown("model", model_hash)
            await session.execute(update(ModelRow).where(this).values(rollout=rollout))
            await record(session, actor, "model.rollout", model_hash, rollout=rollout, before=before)

    async def begin(self, request: ReleaseRequest, actor: Actor) -> Release:
        """Begin a release, all or nothing.

        Raises:
            NotFoundError: an unknown model, name, version, alias or group.
            ConflictError: there is nothing to release, or another release of it is under way.
        """
        release_id, now = f"r-{secrets.token_hex(12)}", datetime.now(UTC)
        async with self._database.read() as session:
            is_hash = await models.exists(session, request.model)
        version = None if is_hash else await resolve(self._database, request.model)
        model_hash = request.model if version is None else version.model_hash
        values: dict[str, Any] = {"id": release_id, "model": request.model, "model_hash": model_hash}
        async with self._database.write() as session:
            group = None if request.group is None else await found(session, GroupRow, request.group, "group")
            selector = GroupSelector() if group is None else selector_of(vars(group))
            # Nobody else begins a release of this model until the transaction ends.
            this = select(ModelRow.hash).where(ModelRow.hash == model_hash)
            await session.execute(this.with_for_update(key_share=True))
            if request.alias is None:
                parts = await take_plans(
                    session, release_id, model_hash, selector.socs, again=request.again, alone=actor is PLANNER
                )
            elif version is None:
                why = "an alias belongs to a name: say the model as 'name:version'"
                raise InvalidError("alias-of-nothing", why, causes=[f"alias: {why}"])
            else:
                moved = await take_alias(session, release_id, version, request.alias, again=request.again)
                parts = await parts_of_alias(session, model_hash, selector.socs, moved["before"], moved["after"])
                values |= moved
            socs = {part["soc"] for part in parts}
            takers = await count_takers(session, release_id, request.group, selector, socs, request.stages, now - SEEN)
            values |= {
                "group": request.group,
                "selector": selector.model_dump(mode="json"),
                "stages": list(request.stages),
                **takers,
                "created_at": now,
                "stage_since": now,
                **request.model_dump(include={"reported", "hold_s", "approval", "tolerance", "error_rate"}),
            }
            session.add(ReleaseRow(**values))
            await session.flush()
            for some in chunks(parts):  # the event loop goes on between them
                session.add_all(ReleasePartRow(release_id=release_id, **part) for part in some)
                await session.flush()
            about = {"alias": request.alias, "group": request.group, "parts": len(parts), "share": request.stages[0]}
            await record(session, actor, "release.begin", release_id, model=request.model, **about)
        await self._splits.look()
        return await self.get(release_id)

    async def act(self, release_id: str, action: Action, actor: Actor) -> Release:
        """Do what an admin decides about a release.

        Raises:
            NotFoundError: an unknown release.
            ConflictError: one in another state, or, where it is to be taken back, that nothing follows any more.
        """
        async with self._database.write() as session:
            row = await self._locked(session, release_id, _TAKEN_FROM[action])
            match action:
                case "approve":
                    await self._advance(session, row, "approved", actor)
                case "rollback":
                    await self._take_back(session, row, "by hand", actor)
                case "pause" | "resume":
                    row.state = "paused" if action == "pause" else "running"
                    row.revision += 1
                    await record(session, actor, f"release.{action}", release_id, share=row.stages[row.stage])
        await self._splits.look()
        return await self.get(release_id)

    async def steer(self) -> None:
        """Take back what does harm, move on what is ready, and begin what goes out by itself.

        Any process may do so at any time: a step is taken with the release locked and looked at again.
        """
        async with self._database.read() as session:
            ids = await repository.under_way(session)
            ready = await repository.ready_by_themselves(session)
        changed = [await self._steer(release_id) for release_id in ids]
        for model_hash in ready:
            # Another process looks at the same moment: of two that begin one release the second finds nothing to do.
            with suppress(ConflictError):
                await self.begin(ReleaseRequest(model=model_hash), PLANNER)
        if any(changed):
            await self._splits.look()

    async def get(self, release_id: str) -> Release:
        async with self._database.read() as session:
            row = await found(session, ReleaseRow, release_id, "release")
            return release_view(row, *await repository.said(session, release_id))

    async def page(self, *, before: str | None, limit: int) -> ReleasePage:
        async with self._database.read() as session:
            last = None if before is None else await found(session, ReleaseRow, before, "release")
            rows = await repository.releases(session, before=last, limit=limit)
            said = {row.id: await repository.said(session, row.id) for row in rows}
        return ReleasePage(releases=messages_of(rows, lambda row: release_view(row, *said[row.id])), next=rows.next)

    async def parts(self, release_id: str, *, after: str | None, limit: int) -> ReleasePartPage:
        async with self._database.read() as session:
            await found(session, ReleaseRow, release_id, "release")
            query = select(ReleasePartRow).where(ReleasePartRow.release_id == release_id)
            rows = await page(session, query, ReleasePartRow.part, after, limit)
        return ReleasePartPage(parts=messages_of(rows, part_view), next=rows.next)

    async def _locked(self, session: WriteSession, release_id: str, states: Sequence[str]) -> ReleaseRow:
        row = await repository.lock(session, release_id)
        if row is None:
            raise unknown("release", release_id)
        if row.state not in states:
            cure = "resume it first" if row.state == "paused" else f"this takes one that is {' or '.join(states)}"
            raise ConflictError("release-state", f"release {release_id} is {row.state.replace('_', ' ')}; {cure}")
        return row

    async def _steer(self, release_id: str) -> bool:
        async with self._database.read() as session:
            row = await session.get(ReleaseRow, release_id)
            if row is None or next_step(row, *await repository.said(session, release_id)) is None:
                return False
        async with self._database.write() as session:
            locked = await repository.lock(session, release_id)
            if locked is None or locked.state not in repository.ACTIVE:
                return False
            parts, claims = await repository.said(session, release_id)
            step, found = next_step(locked, parts, claims), judge(parts, claims)
            if step == "take back":
                await self._take_back(session, locked, harm(parts, found), PLANNER)
            elif step == "wait":
                locked.state = "waiting"
                locked.revision += 1
                share, reason = locked.stages[locked.stage], waits_for(locked, found.reported)
                await record(session, PLANNER, "release.wait", release_id, share=share, reason=reason)
            elif step == "advance":
                await self._advance(session, locked, f"{plural(found.reported, 'device')} reported", PLANNER)
        return True

    async def _advance(self, session: WriteSession, row: ReleaseRow, reason: str, actor: Actor) -> None:
        row.revision += 1
        if row.stage + 1 < len(row.stages):
            row.stage, row.state, row.stage_since = row.stage + 1, "running", datetime.now(UTC)
            await record(session, actor, "release.stage", row.id, share=row.stages[row.stage], reason=reason)
            return
        row.state, row.reason, row.ended_at = "done", reason[:MAX_REASON], datetime.now(UTC)
        await repository.let_go(session, row, keep=True)
        await record(session, actor, "release.done", row.id, reason=reason)

    async def _take_back(self, session: WriteSession, row: ReleaseRow, reason: str, actor: Actor) -> None:
        if row.state != "done":
            await repository.let_go(session, row, keep=False)
        elif not await repository.take_back(session, row):
            detail = f"nothing follows release {row.id} any more: something newer was released since"
            raise ConflictError("release-superseded", detail)
        row.state, row.reason, row.ended_at = "rolled_back", reason[:MAX_REASON], datetime.now(UTC)
        row.revision += 1
        await record(session, actor, "release.rollback", row.id, reason=reason, share=row.stages[row.stage])

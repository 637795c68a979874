"""The rules for profiles: uploads are accepted at once, folded by one folder each, and asked for in small parts."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import msgspec
import numpy as np
from cachetools import LRUCache
from sqlalchemy import func, select

from hope_schema import MissingRequest, UploadReceipt
from planner_api.compression import zstd
from planner_api.concurrency import Turns
from planner_api.db.engine import Database
from planner_api.db.paging import prune
from planner_api.db.tables import AssignmentRow, ContributionRow, DeviceRow, InboxRow, ModelRow, ProfileRow, SocRow
from planner_api.db.upsert import insert_or_ignore
from planner_api.devices import repository as devices
from planner_api.devices.quota import Quotas
from planner_api.errors import ForbiddenError, InvalidError, RefusedError, UnavailableError, unknown_profiles
from planner_api.jobs.kind import JobError
from planner_api.jobs.process import JobProcess
from planner_api.jobs.queue import Queue
from planner_api.models import service as models
from planner_api.profiles import answering, inbox, oversight, repository
from planner_api.profiles.jobs import FOLD, PROFILE, key_of
from planner_api.profiles.lacking import Asked, Lack, Looking, answer
from planner_api.profiles.reading import UploadHead
from planner_api.settings import EMBEDDED_WAIT_S, Settings
from planner_api.web.inflate import Body
from planner_api.web.principal import ANONYMOUS, Actor, Principal

MAX_KINDS = 64
"""Kinds of processor that one question may name."""
SMALL_FIGURES_BYTES, SMALL_PROFILE = 64 * 1024, 20_000
"""A question is answered by a thread where a model's figures, compressed and times the kinds asked about, take no more
bytes, and the profile has no more figures: that takes some ten milliseconds."""
LOOK_S, LOOK_MEMORY_BYTES = 30.0, 512 * 2**20
"""Time and memory that a child may take for a larger one."""
ATTEMPTS = 3
"""How often a question is looked into while others are asked for the same."""
MOST_ASSIGNED = 10_000
"""Figures of one assignment that others are not asked for meanwhile."""
MOST_HALVED = 10
"""How often the time for an assignment is halved; after that a device has none until it delivers."""
REMEMBERED_CALLERS = 20_000
"""Callers and profiles that need not be looked up again."""
FOLD_WAIT_S = 5.0
"""Longest wait for uploads to be folded; then what stands there already has to do."""
PRUNED_AT_ONCE = 10_000
"""Upload ids forgotten in one transaction."""
KEEP_UPLOAD_IDS = timedelta(days=30)
"""How long a folded upload's id is remembered, so that sending it again counts once."""


class Profiles:
    """Uploads, folding and missing figures of all SoCs and frequencies."""

    def __init__(self, database: Database, settings: Settings, queue: Queue, quotas: Quotas | None = None) -> None:
        self._database = database
        self._settings = settings
        self._queue = queue
        self._quotas = quotas or Quotas(settings)
        self._known: LRUCache[tuple[str, str], str | None] = LRUCache(REMEMBERED_CALLERS)
        """Callers, each with the key of a profile that it has to do with: what of its newest upload was not used."""
        self._inbox = inbox.gathering(database, delay_s=settings.fold_interval_s)
        refused = self._quotas.refused
        self._callers = Turns("questions", slots=None, each=1, waiting=4, refused=refused)
        self._small_questions = Turns("questions", slots=2, each=1, waiting=16, refused=refused)
        self._questions = Turns("questions", slots=1, each=1, waiting=4, refused=refused)
        self._looking = Looking()
        self._child = JobProcess(memory_bytes=LOOK_MEMORY_BYTES, warm=Looking.__module__)
        queue.news.on(PROFILE, self._folded)

    async def accept(
        self, head: UploadHead, body: Body, caller: Principal = ANONYMOUS, request_id: str | None = None
    ) -> UploadReceipt:
        """Store an upload in the inbox, as it came, and have it folded; sending it again changes nothing.

        ``request_id`` is what the audit log knows the request by.

        Raises:
            ForbiddenError, TooOftenError: a caller beyond a quota.
        """
        unused = await self._admit(caller, head.soc, head.frequency, request_id)
        self._quotas.count_upload(caller, len(body.raw))
        encoding, raw = (body.encoding, body.raw) if body.encoding != "identity" else ("zstd", zstd(body.raw))
        values = {
            **msgspec.structs.asdict(head),
            "encoding": encoding,
            "body": raw,
            "trusted": not self._settings.tokens_required,
            "received_at": datetime.now(UTC),
        }
        stored = await self._inbox.add(values)
        if not stored:
            async with self._database.read() as session:
                sent = InboxRow.device_id == head.device_id, InboxRow.upload_id == head.upload_id
                unused = await session.scalar(select(InboxRow.error).where(*sent))
        return UploadReceipt(upload_id=head.upload_id, rows=head.rows, duplicate=not stored, unused=unused)

    async def _admit(self, caller: Principal, soc: str, frequency: str, request_id: str | None = None) -> str | None:
        """Let a caller have to do with a profile: a device within its quota, anybody else as its word is enough.

        Returns what of its newest upload was not used.

        Raises:
            ForbiddenError: a device that names more profiles than it may.
        """
        key = caller.name, key_of(soc, frequency)
        if key in self._known:
            return self._known[key]
        unused = None
        async with self._database.read() as session:
            query = select(ContributionRow.unused).join(ProfileRow).where(repository.this(soc, frequency))
            said = (await session.execute(query.where(ContributionRow.device_id == (caller.device_id or "")))).first()
        if caller.device_id is None:
            async with self._database.write() as session:
                await insert_or_ignore(session, SocRow, {"name": soc}, ["name"])
                await oversight.vouch(session, soc, Actor(caller.name, request_id))
        elif said is not None:
            unused = said.unused
        else:
            async with self._database.write() as session:
                most = self._settings.profiles_per_device
                await devices.lock(session, caller.device_id)
                count = select(func.count()).where(ContributionRow.device_id == caller.device_id)
                if (await session.scalar(count) or 0) >= most:
                    limit = f"{most} pairs of SoC and frequency"
                    raise self._quotas.forbidden("profiles", limit)
                profile = await repository.ensure(session, soc, frequency)
                values = {"profile_id": profile.id, "device_id": caller.device_id}
                await insert_or_ignore(session, ContributionRow, values, ["profile_id", "device_id"])
        self._known[key] = unused
        return unused

    def _folded(self, profile: str | None) -> None:
        """Forget what was not used of devices' uploads: there is news of it."""
        for key in [key for key in self._known if key[0].startswith("device:") and profile in (None, key[1])]:
            del self._known[key]

    async def prune(self) -> int:
        doomed = select(InboxRow.id).where(InboxRow.folded_at < datetime.now(UTC) - KEEP_UPLOAD_IDS)
        doomed = doomed.order_by(InboxRow.folded_at, InboxRow.id)
        return await prune(self._database, InboxRow.id, doomed, PRUNED_AT_ONCE)

    async def folded(self, soc: str, frequency: str) -> None:
        """Have what waits for a profile folded, and wait for it, but not for ever."""
        longest_s = EMBEDDED_WAIT_S if self._settings.embedded else FOLD_WAIT_S
        await self._queue.ended((FOLD, key_of(soc, frequency)), timeout_s=longest_s)

    async def read(self, soc: str, frequency: str, caller: Principal = ANONYMOUS) -> bytes:
        """Return a profile as it stands, as compressed JSON; what waits to be folded goes on waiting.

        Raises:
            ForbiddenError: the caller is a device of another SoC.
            NotFoundError: nothing is known.
        """
        async with self._database.read() as session:
            device = await session.get(DeviceRow, caller.device_id or "")
            found = await repository.current(session, soc, frequency)
        own = None if device is None else device.soc
        if caller.device_id is not None and own != soc:
            raise ForbiddenError("foreign-profile", f"this token reads the profile of '{own}', not of '{soc}'")
        if found is None:
            raise unknown_profiles((soc, frequency))
        return found[1]

    async def missing(
        self, request: MissingRequest, caller: Principal = ANONYMOUS, charge: Callable[[float], None] = lambda _s: None
    ) -> bytes:
        """Return what nobody has measured yet of a model on a SoC, as JSON, and ask this device for its part of it.

        A device that names ``max_items`` gets at most so many, and none that others were asked for just now; one
        that does not is willing to measure all of it. A device with a token of its own is also asked for some figures
        that others said already, until enough agree on them. Latencies of which the predictions say that they would
        tell the most of the model come first.

        Raises:
            NotFoundError: an unknown model.
            InvalidError: more figures than an upload may have rows, or more kinds of processor than a device has.
            ForbiddenError: a device that names more profiles than it may.
            TooOftenError, UnavailableError: a caller that asks much at once, or a planner that is too busy.
        """
        async with self._callers.turn(caller.name):
            return await self._missing(request, caller, charge)

    async def _missing(self, request: MissingRequest, caller: Principal, charge: Callable[[float], None]) -> bytes:
        figures = await models.read(self._database, request.model_hash, ModelRow.figures_zstd)
        kinds = tuple(dict.fromkeys(processor.kind for processor in request.processors))
        if len(kinds) > MAX_KINDS:
            detail = f"{len(kinds)} kinds of processor are asked about; at most {MAX_KINDS} at a time"
            raise InvalidError("too-many-figures", detail)
        if caller.device_id is not None:
            await self._admit(caller, request.soc, request.frequency)
        await self.folded(request.soc, request.frequency)
        async with self._database.write() as session:
            profile_id = (await repository.ensure(session, request.soc, request.frequency)).id
        for attempt in range(ATTEMPTS):
            async with self._database.read() as session:
                profile, snapshot = await repository.standing(session, profile_id)
                others = await repository.assigned_elsewhere(session, profile_id, request.device_id, self._assigned())
            asked = Asked(
                profile_id=profile_id,
                name=f"{profile.uploads}-{profile.updated_at}",
                version=profile.version,
                snapshot=snapshot or b"",
                figures=figures,
                kinds=kinds,
                places=tuple(processor.place for processor in request.processors),
                device=None if caller.device_id is None else request.device_id,
                confirmations=self._settings.confirmations,
                most=request.max_items,
                taken=others,
            )
            lack = await self._look(asked, caller.name, profile.latencies + profile.transfers, charge)
            if await self._assign(request, profile_id, asked, lack, last=attempt == ATTEMPTS - 1):
                break
        return lack.reply

    async def _look(self, asked: Asked, owner: str, known: int, charge: Callable[[float], None]) -> Lack:
        """Find out what is missing: here where that is little, else in a child, one question at a time.

        Raises:
            InvalidError: more figures than an upload may have rows.
            UnavailableError: it takes too long, or too much memory.
        """
        small = len(asked.figures) * len(asked.kinds) <= SMALL_FIGURES_BYTES and known <= SMALL_PROFILE
        async with (self._small_questions if small else self._questions).turn(owner):
            began = time.monotonic()
            try:
                if small or self._settings.embedded:
                    return await asyncio.to_thread(self._looking.answer, asked, answering.asker(self._database))
                name = f"{answer.__module__}:{answer.__qualname__}"
                return await self._child.run(name, asked, partial(answering.answer, self._database), LOOK_S, Lack)
            except RefusedError as error:
                raise InvalidError("too-many-figures", str(error)) from None
            except JobError as error:
                if error.permanent:
                    raise InvalidError("too-many-figures", str(error)) from None
                raise UnavailableError("the planner has no time for this question; ask again") from error
            finally:
                if not small:
                    charge(time.monotonic() - began)

    async def stop(self) -> None:
        await self._child.kill()

    def _assigned(self) -> tuple[datetime, datetime]:
        """Between which moments an assignment ends that stands; a clock was set back since one that ends later."""
        now = datetime.now(UTC)
        return now, now + timedelta(seconds=self._settings.assignment_s)

    async def _assign(self, request: MissingRequest, profile_id: int, asked: Asked, lack: Lack, *, last: bool) -> bool:
        """Note what a device was asked for; False where others were asked for some of it meanwhile.

        The time that a device has is halved each time that it, or others of its claim, did not upload half of what
        they were asked for before.
        """
        now, until = self._assigned()
        async with self._database.write() as session:
            # Nobody else assigns figures of this profile meanwhile (SQLite writers queue anyway).
            await session.execute(select(ProfileRow.id).where(ProfileRow.id == profile_id).with_for_update())
            if request.max_items is not None and not last:
                others = await repository.assigned_elsewhere(session, profile_id, request.device_id, (now, until))
                if others != asked.taken and await asyncio.to_thread(meets, others, asked.taken, lack.unknown):
                    return False
            undelivered = await repository.undelivered(session, profile_id, request.device_id, now)
            lease = (until - now) / 2**undelivered if undelivered <= MOST_HALVED else timedelta()
            row = AssignmentRow(profile_id=profile_id, device_id=request.device_id, expires_at=now + lease)
            row.figures, row.undelivered = lack.hashes[: 8 * MOST_ASSIGNED], undelivered
            await session.merge(row)
        return True


def meets(others: bytes, before: bytes, unknown: bytes) -> bool:
    """Whether ``others``, hashes of figures, and not ``before`` have one of ``unknown``."""
    new, old, mine = (np.frombuffer(packed, np.uint64) for packed in (others, before, unknown))
    return bool(np.isin(np.setdiff1d(new, old), mine).any())

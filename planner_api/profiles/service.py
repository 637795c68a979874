"""The rules for profiles: uploads are accepted at once, folded by one folder each, and asked for in small parts."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from hope_schema import (
    Missing,
    MissingLatency,
    MissingRequest,
    MissingTransfer,
    TensorType,
    UploadReceipt,
)
from hope_schema.base import MAX_ROWS
from planner_api.compression import zstd
from planner_api.db.engine import Database
from planner_api.devices import repository as devices
from planner_api.devices.audit.service import Actor
from planner_api.devices.quota import Quotas
from planner_api.errors import ForbiddenError, InvalidError, profile_unknown
from planner_api.jobs.queue import Queue
from planner_api.models.figures import Figures, Latency, Transfer, figure_hash
from planner_api.models.service import load_figures
from planner_api.profiles import oversight, repository
from planner_api.profiles.inbox import Inbox
from planner_api.profiles.jobs import FOLD, PROFILE, key_of
from planner_api.profiles.known import Known
from planner_api.profiles.lacking import Lacking
from planner_api.profiles.reading import UploadHead
from planner_api.settings import Settings
from planner_api.web.body import Body
from planner_api.web.principal import ANONYMOUS, Principal

REMEMBERED_CALLERS = 100_000
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
        self._known: OrderedDict[tuple[str, str], str | None] = OrderedDict()
        """Callers, each with the key of a profile that it has to do with: what of its newest upload was not used."""
        self._inbox = Inbox(database, delay_s=settings.fold_interval_s)
        self._lacking = Lacking(database)
        queue.news.on(PROFILE, self._folded)

    async def accept(self, head: UploadHead, body: Body, caller: Principal = ANONYMOUS) -> UploadReceipt:
        """Store an upload in the inbox, as it came, and have it folded; sending it again changes nothing.

        Raises:
            ForbiddenError, TooOftenError: a caller beyond a quota.
        """
        unused = await self._admit(caller, head.soc, head.frequency)
        self._quotas.count_upload(caller, len(body.raw))
        encoding, raw = (body.encoding, body.raw) if body.encoding != "identity" else ("zstd", zstd(body.raw))
        values = {
            **msgspec.structs.asdict(head),
            "encoding": encoding,
            "body": raw,
            "received_at": datetime.now(UTC),
        }
        stored = await self._inbox.add(values)
        if not stored:
            async with self._database.read() as session:
                unused = await repository.upload_error(session, head.device_id, head.upload_id)
        return UploadReceipt(upload_id=head.upload_id, rows=head.rows, duplicate=not stored, unused=unused)

    async def _admit(self, caller: Principal, soc: str, frequency: str) -> str | None:
        """Let a caller have to do with a profile: a device within its quota, anybody else as its word is enough.

        Returns what of its newest upload was not used.

        Raises:
            ForbiddenError: a device that names more profiles than it may.
        """
        key = caller.name, key_of(soc, frequency)
        if key in self._known:
            return self._known[key]
        now, unused = datetime.now(UTC), None
        async with self._database.read() as session:
            said = await repository.contribution(session, soc, frequency, caller.device_id or "")
        if caller.device_id is None:
            async with self._database.write() as session:
                await repository.name_soc(session, soc, now)
                await oversight.vouch(session, soc, Actor(caller.name))
        elif said is not None:
            (unused,) = said
        else:
            async with self._database.write() as session:
                most = self._settings.profiles_per_device
                await devices.lock(session, caller.device_id)
                if await repository.count_contributed(session, caller.device_id) >= most:
                    limit = f"{most} pairs of SoC and frequency"
                    raise self._quotas.forbidden("profiles", limit)
                profile = await repository.ensure(session, soc, frequency, now)
                await repository.contribute(session, profile.id, caller.device_id, now)
        self._known[key] = unused
        if len(self._known) > REMEMBERED_CALLERS:
            self._known.popitem(last=False)
        return unused

    def _folded(self, profile: str | None, _detail: str) -> None:
        """Forget what was not used of devices' uploads: there is news of it."""
        for key in [key for key in self._known if key[0].startswith("device:") and profile in (None, key[1])]:
            del self._known[key]

    async def prune(self) -> int:
        """Forget upload ids that are too old to be sent again; return how many."""
        before, total = datetime.now(UTC) - KEEP_UPLOAD_IDS, 0
        while True:
            async with self._database.write() as session:
                pruned = await repository.prune_inbox(session, before, PRUNED_AT_ONCE)
            total += pruned
            if pruned < PRUNED_AT_ONCE:
                return total

    async def folded(self, soc: str, frequency: str) -> None:
        """Have what waits for a profile folded, and wait for it, but not for ever."""
        await self._queue.ended((FOLD, key_of(soc, frequency)), timeout_s=FOLD_WAIT_S)

    async def read(self, soc: str, frequency: str, caller: Principal = ANONYMOUS) -> bytes:
        """Return a profile as compressed JSON.

        Raises:
            ForbiddenError: the caller is a device of another SoC.
            NotFoundError: nothing is known.
        """
        if caller.device_id is not None:
            async with self._database.read() as session:
                own = await devices.soc_of(session, caller.device_id)
            if own != soc:
                raise ForbiddenError("foreign-profile", f"this token reads the profile of '{own}', not of '{soc}'")
        await self.folded(soc, frequency)
        async with self._database.read() as session:
            found = await repository.current(session, soc, frequency)
        if found is None:
            raise profile_unknown(soc, frequency)
        return found[1]

    async def missing(self, request: MissingRequest, caller: Principal = ANONYMOUS) -> Missing:
        """Return what nobody has measured yet of a model on a SoC, and ask this device for its part of it.

        A device that names ``max_items`` gets at most so many, and none that others were asked for just now; one
        that does not is willing to measure all of it. A device with a token of its own is also asked for some figures
        that others said already, until enough agree on them. Latencies of which the predictions say that they would
        tell the most of the model come first.

        Raises:
            NotFoundError: an unknown model.
            InvalidError: more figures than an upload may have rows.
            ForbiddenError: a device that names more profiles than it may.
        """
        kinds = list(dict.fromkeys(processor.kind for processor in request.processors))
        places = [processor.place for processor in request.processors]
        async with self._database.read() as session:
            figures = await load_figures(session, request.model_hash)
        _refuse_too_many(figures, kinds, places)
        if caller.device_id is not None:
            await self._admit(caller, request.soc, request.frequency)
        await self.folded(request.soc, request.frequency)
        async with self._database.read() as session:
            found = await repository.current(session, request.soc, request.frequency)
        if caller.device_id is None and found is not None and Known.read(found[1]).covers(figures, kinds, places):
            return Missing(profile_version=found[0].version)
        async with self._database.read() as session:
            head = await repository.head(session, request.soc, request.frequency)
        device = None if caller.device_id is None else request.device_id
        most = self._settings.confirmations
        unknown, unsure = await self._lacking.open_figures(head, figures, kinds, places, device, most)
        version = 0 if head is None else head.version
        if not unknown and not unsure:
            return Missing(profile_version=version)
        latencies = [key for key in unknown if len(key) == 2]
        if latencies and found is not None:
            counts = dict(zip(figures.signatures, figures.counts, strict=False))
            ordered = await self._lacking.ordered(found[1], latencies, counts)
            unknown = [*ordered, *(key for key in unknown if len(key) == 4)]
        chosen = await self._assign(request, unknown, unsure)
        elsewhere = 0 if request.max_items is None else max(0, len(unknown) - len(chosen))
        return await asyncio.to_thread(_reply, version, chosen, elsewhere)

    async def _assign(
        self, request: MissingRequest, unknown: list[Latency | Transfer], unsure: list[Latency | Transfer]
    ) -> list[Latency | Transfer]:
        now = datetime.now(UTC)
        until = now + timedelta(seconds=self._settings.assignment_s)
        chosen = unknown + unsure
        hashes = await asyncio.to_thread(lambda: [*map(figure_hash, chosen)])
        async with self._database.write() as session:
            head = await repository.ensure(session, request.soc, request.frequency, now)
            await repository.lock(session, head.id)
            left: Sequence[int] = range(len(chosen))
            if request.max_items is not None:
                others = await repository.assigned_elsewhere(session, head.id, request.device_id, now)
                taken = {packed[at : at + 8] for packed in others for at in range(0, len(packed), 8)}
                free = [at for at in left if at >= len(unknown) or hashes[at] not in taken]
                left = free[: request.max_items]
            await repository.assign(session, head.id, request.device_id, b"".join(hashes[at] for at in left), until)
        return [chosen[at] for at in left]


def _reply(version: int, chosen: list[Latency | Transfer], elsewhere: int) -> Missing:
    return Missing(
        profile_version=version,
        latencies=tuple(MissingLatency(signature=key[0], kind=key[1]) for key in chosen if len(key) == 2),
        transfers=tuple(
            MissingTransfer(
                tensor=TensorType.model_validate({"dtype": key[0], "shape": key[1]}), source=key[2], target=key[3]
            )
            for key in chosen
            if len(key) == 4
        ),
        elsewhere=elsewhere,
    )


def _refuse_too_many(figures: Figures, kinds: list[str], places: list[str]) -> None:
    """Raise InvalidError for a question about more figures than an upload may have rows."""
    count = len(figures.signatures) * len(kinds) + figures.count_transfers(places)
    if count > MAX_ROWS:
        raise InvalidError(
            "too-many-figures",
            f"this model has {count} figures on {len(kinds)} kinds of processor in {len(set(places))} places; at most "
            f"{MAX_ROWS} are asked for: name fewer processors at a time",
        )

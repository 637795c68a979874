"""The rules for profiles: uploads are accepted at once, folded by one folder each, and asked for in small parts."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

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
from planner_api.db.tables import ProfileRow
from planner_api.devices import repository as devices
from planner_api.devices.quota import Quotas
from planner_api.errors import DatabaseAwayError, InvalidError, profile_unknown
from planner_api.models.figures import Figures, Latency, Transfer, figure_hash
from planner_api.models.service import load_figures
from planner_api.profiles import repository
from planner_api.profiles.inbox import Inbox
from planner_api.profiles.known import Known
from planner_api.profiles.predictions import Predictions
from planner_api.profiles.reading import UploadHead
from planner_api.profiles.repository import ProfileHead
from planner_api.settings import Settings
from planner_api.shared import SharedCalls
from planner_api.web.body import Body
from planner_api.web.principal import ANONYMOUS, Principal

if TYPE_CHECKING:
    from planner_api.profiles.batch import Folded, Stored
    from planner_api.profiles.folding import Folder

log = structlog.get_logger(__name__)

REMEMBERED_FOLDERS = 8
"""Profiles whose statistics stay in memory between two folds."""
REMEMBERED_CALLERS = 100_000
"""Callers and profiles that need not be looked up again."""
ESTABLISHED_BY = 3
"""Devices that must have uploaded for a SoC before the fleet counts it."""
FENCE_ATTEMPTS = 5
FOLDED_AT_ONCE = 100
"""Profiles that are folded in one round."""
PRUNED_AT_ONCE = 10_000
"""Upload ids forgotten in one transaction."""
KEEP_UPLOAD_IDS = timedelta(days=30)
"""How long a folded upload's id is remembered, so that sending it again counts once."""


class Profiles:
    """Uploads, folding and missing figures of all SoCs and frequencies."""

    def __init__(self, database: Database, settings: Settings, quotas: Quotas | None = None) -> None:
        self._database = database
        self._settings = settings
        self._quotas = quotas or Quotas(settings)
        self._known: OrderedDict[tuple[str, str, str], str | None] = OrderedDict()
        """Callers that have to do with a profile, and what of their newest upload was not used."""
        self._inbox = Inbox(database)
        self.predictions = Predictions(database)
        self._folds = SharedCalls[bool]()
        self._share = settings.figures_per_device if settings.tokens_required else None
        self._folders: OrderedDict[int, tuple[int, Folder]] = OrderedDict()

    async def accept(self, head: UploadHead, body: Body, caller: Principal = ANONYMOUS) -> UploadReceipt:
        """Store an upload in the inbox, as it came; sending it again changes nothing.

        Raises:
            ForbiddenError, TooOftenError: a caller beyond a quota.
        """
        await self._admit(caller, head.soc, head.frequency)
        self._quotas.count_upload(caller, len(body.raw))
        encoding, raw = (body.encoding, body.raw) if body.encoding != "identity" else ("zstd", zstd(body.raw))
        values = {
            **msgspec.structs.asdict(head),
            "encoding": encoding,
            "body": raw,
            "received_at": datetime.now(UTC),
        }
        stored = await self._inbox.add(values)
        unused = self._known.get((caller.name, head.soc, head.frequency))
        if not stored:
            async with self._database.read() as session:
                unused = await repository.upload_error(session, head.device_id, head.upload_id)
        return UploadReceipt(upload_id=head.upload_id, rows=head.rows, duplicate=not stored, unused=unused)

    async def _admit(self, caller: Principal, soc: str, frequency: str) -> None:
        """Let a caller have to do with a profile: a device within its quota, anybody else as its word is enough.

        Raises:
            ForbiddenError: a device that names more profiles than it may.
        """
        key = (caller.name, soc, frequency)
        if key in self._known:
            return
        now = datetime.now(UTC)
        async with self._database.write() as session:
            if caller.device_id is None:
                await repository.establish(session, soc, now)
            elif not await repository.has_contributed(session, soc, frequency, caller.device_id):
                most = self._settings.profiles_per_device
                await devices.lock(session, caller.device_id)
                if await repository.count_contributed(session, caller.device_id) >= most:
                    limit = f"{most} pairs of SoC and frequency"
                    raise self._quotas.forbidden("profiles", limit)
                profile = await repository.ensure(session, soc, frequency, now)
                await repository.contribute(session, profile.id, caller.device_id, now)
        self._known[key] = None
        if len(self._known) > REMEMBERED_CALLERS:
            self._known.popitem(last=False)

    async def fold_pending(self, *, quiet_s: float = 0.0, latest_s: float = 0.0) -> list[tuple[str, str]]:
        """Fold what waits; return the (SoC, frequency) pairs whose profile has a new version.

        A pair that received an upload within ``quiet_s`` is left for later, unless one has waited for ``latest_s``:
        folding in the middle of a burst would slow the burst down, and who needs the figures folds them anyway.
        """
        now = datetime.now(UTC)
        quiet_since, waiting_since = now - timedelta(seconds=quiet_s), now - timedelta(seconds=latest_s)
        async with self._database.read() as session:
            pairs = await repository.pending_pairs(
                session, FOLDED_AT_ONCE, quiet_since=quiet_since, waiting_since=waiting_since
            )
        changed = []
        for soc, frequency in pairs:
            try:
                if await self.fold(soc, frequency):
                    changed.append((soc, frequency))
            except DatabaseAwayError:
                raise
            except Exception:
                log.exception("fold_failed", soc=soc, frequency=frequency)
        return changed

    async def prune(self) -> int:
        """Forget upload ids that are too old to be sent again; return how many."""
        before, total = datetime.now(UTC) - KEEP_UPLOAD_IDS, 0
        while True:
            async with self._database.write() as session:
                pruned = await repository.prune_inbox(session, before, PRUNED_AT_ONCE)
            total += pruned
            if pruned < PRUNED_AT_ONCE:
                return total

    async def fold(self, soc: str, frequency: str) -> bool:
        """Fold every waiting upload of one SoC and frequency; return whether its profile has a new version."""
        changed = False
        while await self._has_pending(soc, frequency):
            changed |= await self._folds.get((soc, frequency), lambda: self._fold_batch(soc, frequency))
        return changed

    async def _has_pending(self, soc: str, frequency: str) -> bool:
        async with self._database.read() as session:
            return bool(await repository.pending(session, soc, frequency, limit=1))

    async def _fold_batch(self, soc: str, frequency: str) -> bool:
        """Fold one batch; return whether the profile has a new version.

        Other processes may fold the same profile: whoever stores first wins (``ProfileHead.uploads`` is the fence),
        the other throws its work away and looks again.
        """
        batches = await asyncio.to_thread(_batches)
        for _ in range(FENCE_ATTEMPTS):
            async with self._database.read() as session:
                head = await repository.head(session, soc, frequency)
                waiting = await repository.pending(session, soc, frequency, batches.BATCH_UPLOADS)
                chosen = batches.first_rows(waiting)
                if not chosen:
                    return False
                # NOTE: PostgreSQL lets each statement see what committed before it: another process may have folded
                # these uploads, and emptied their bodies, since the line above.
                uploads = await repository.bodies(session, chosen)
                if len(uploads) < len(chosen):
                    continue
                revoked = await repository.revoked(session, {row.device_id for row in uploads})
            folder = await self._take_folder(head)
            if head is None:
                async with self._database.write() as session:
                    head = await repository.ensure(session, soc, frequency, datetime.now(UTC))
            batch = [(row.id, row.device_id, Body(row.body, row.encoding)) for row in uploads]
            most = self._settings.max_inflated_bytes
            folded, found = await asyncio.to_thread(batches.fold, folder, batch, revoked, most)
            known = folder.statistics
            if self._settings.tokens_required:  # elsewhere everybody is believed
                await self.predictions.doubt(head.id, known, found)
                batches.say_what_is_held(known, folded)
            work: Stored = await asyncio.to_thread(batches.finish, known, found, soc, frequency, head, len(batch))
            if await self._store(head, soc, frequency, folded, work):
                self._folders[head.id] = (head.uploads + len(batch), folder)
                while len(self._folders) > REMEMBERED_FOLDERS:
                    self._folders.popitem(last=False)
                return work.snapshot is not None
        return False

    async def _take_folder(self, head: ProfileHead | None) -> Folder:
        """Return a profile's statistics, from memory where they stand there: nobody else has them until put back."""
        cached = None if head is None else self._folders.pop(head.id, None)
        if cached is not None and head is not None and cached[0] == head.uploads:
            return cached[1]
        async with self._database.read() as session:
            dumped = None if head is None else await repository.statistics(session, head.id)
        folder: Folder = await asyncio.to_thread(lambda: _batches().load(dumped, self._share))
        return folder

    async def _store(self, head: ProfileHead, soc: str, frequency: str, folded: Folded, work: Stored) -> bool:
        now = datetime.now(UTC)
        devices: dict[str, tuple[int, str | None]] = {}
        for row_id, device in folded.devices.items():
            devices[device] = (
                devices.get(device, (0, None))[0] + 1,
                folded.errors.get(row_id) or folded.unused.get(row_id),
            )
        async with self._database.write() as session:
            values = {**work.values, "rejected": ProfileRow.rejected + folded.refused}
            if not await repository.store(session, head, values, work.snapshot, now):
                return False
            read = [row_id for row_id in folded.devices if row_id not in folded.errors]
            await repository.mark_folded(session, read, folded.unused, now)
            await repository.mark_unusable(session, folded.errors, now)
            await repository.release(session, head.id, list(devices), now)
            await repository.contributed(session, head.id, devices, now)
            await repository.establish_agreed(session, soc, ESTABLISHED_BY, now)
        for device, (_, unused) in devices.items():
            if (key := (f"device:{device}", soc, frequency)) in self._known:
                self._known[key] = unused
        return True

    async def read(self, soc: str, frequency: str) -> bytes:
        """Return a profile as compressed JSON. Raises NotFoundError when nothing is known."""
        await self.fold(soc, frequency)
        async with self._database.read() as session:
            found = await repository.find(session, f"{soc}/{frequency}")
        if found is None:
            raise profile_unknown(soc, frequency)
        return found

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
        await self.fold(request.soc, request.frequency)
        async with self._database.read() as session:
            found = await repository.current(session, request.soc, request.frequency)
        if caller.device_id is None and found is not None and Known.read(found[1]).covers(figures, kinds, places):
            return Missing(profile_version=found[0].version)
        async with self._database.read() as session:
            head = await repository.head(session, request.soc, request.frequency)
        folder = await self._take_folder(head)
        device = None if caller.device_id is None else request.device_id
        most = self._settings.confirmations
        unknown, unsure = await asyncio.to_thread(_open_figures, folder, figures, kinds, places, device, most)
        if head is not None:
            self._folders.setdefault(head.id, (head.uploads, folder))
        version = 0 if head is None else head.version
        if not unknown and not unsure:
            return Missing(profile_version=version)
        latencies = [key for key in unknown if len(key) == 2]
        if latencies and found is not None:
            counts = dict(zip(figures.signatures, figures.counts, strict=False))
            ordered = await self.predictions.ordered(found[1], latencies, counts)
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


def _batches() -> ModuleType:
    # NOTE: loaded where folding happens (in a thread, it takes a second), so that a process that only serves plans
    # never loads NumPy.
    from planner_api.profiles import batch

    return batch


def _open_figures(
    folder: Folder, figures: Figures, kinds: list[str], places: list[str], device: str | None, most: int
) -> tuple[list[Latency | Transfer], list[Latency | Transfer]]:
    """Return the figures that nobody has said, and at most ``most`` that a device should say too (None: none)."""
    from planner_api.profiles.folding import wanted
    from planner_api.profiles.statistics import device_hash

    statistics = folder.statistics
    latencies = list(figures.latencies(kinds))
    transfers = list(figures.transfers(places))
    known = statistics.latencies.known(), statistics.transfers.known()
    unknown: list[Latency | Transfer] = [key for key in latencies if key not in known[0]]
    unknown += [key for key in transfers if key not in known[1]]
    if device is None:
        return unknown, []
    name = device_hash(device)
    unsure: list[Any] = [
        *wanted(statistics.latencies, name, latencies, most),
        *wanted(statistics.transfers, name, transfers, most),
    ]
    return unknown, unsure[:most]


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

"""The rules for profiles: uploads are accepted at once, folded by one folder each, and asked for in small parts."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import structlog
from pydantic_core import from_json

from hope_schema import (
    Missing,
    MissingLatency,
    MissingRequest,
    MissingTransfer,
    TensorType,
    UploadReceipt,
)
from planner_api.compression import zstd
from planner_api.db.engine import Database
from planner_api.db.tables import ProfileRow
from planner_api.errors import DatabaseAwayError, PlannerError, profile_unknown
from planner_api.http.body import Body, inflate
from planner_api.models.figures import Latency, Transfer
from planner_api.models.service import load_figures
from planner_api.profiles import repository
from planner_api.profiles.inbox import Inbox
from planner_api.profiles.known import Known
from planner_api.profiles.reading import UploadHead
from planner_api.profiles.repository import ProfileHead
from planner_api.settings import Settings
from planner_api.shared import SharedCalls

if TYPE_CHECKING:
    from planner_api.profiles.folding import Folder

log = structlog.get_logger(__name__)

BATCH_UPLOADS = 256
BATCH_ROWS = 200_000
"""A batch holds at most this many uploads, and rows unless one upload alone has more: it is folded in memory."""
REMEMBERED_FOLDERS = 8
"""Profiles whose statistics stay in memory between two folds."""
FENCE_ATTEMPTS = 5
PRUNED_AT_ONCE = 10_000
"""Upload ids forgotten in one transaction."""
KEEP_UPLOAD_IDS = timedelta(days=30)
"""How long a folded upload's id is remembered, so that sending it again counts once."""


class Profiles:
    """Uploads, folding and missing figures of all SoCs and frequencies."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._inbox = Inbox(database)
        self._folds = SharedCalls[bool]()
        self._folders: OrderedDict[int, tuple[int, Folder]] = OrderedDict()

    async def accept(self, head: UploadHead, body: Body) -> UploadReceipt:
        """Store an upload in the inbox, as it came; sending it again changes nothing."""
        encoding, raw = (body.encoding, body.raw) if body.encoding != "identity" else ("zstd", zstd(body.raw))
        values = {
            **msgspec.structs.asdict(head),
            "encoding": encoding,
            "body": raw,
            "received_at": datetime.now(UTC),
        }
        stored = await self._inbox.add(values)
        return UploadReceipt(upload_id=head.upload_id, rows=head.rows, duplicate=not stored)

    async def fold_pending(
        self, limit: int = 100, *, quiet_s: float = 0.0, latest_s: float = 0.0
    ) -> list[tuple[str, str]]:
        """Fold what waits; return the (SoC, frequency) pairs whose profile has a new version.

        A pair that received an upload within ``quiet_s`` is left for later, unless one has waited for ``latest_s``:
        folding in the middle of a burst would slow the burst down, and who needs the figures folds them anyway.
        """
        now = datetime.now(UTC)
        quiet_since, waiting_since = now - timedelta(seconds=quiet_s), now - timedelta(seconds=latest_s)
        async with self._database.read() as session:
            pairs = await repository.pending_pairs(session, limit, quiet_since=quiet_since, waiting_since=waiting_since)
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
            return await repository.has_pending(session, soc, frequency)

    async def _fold_batch(self, soc: str, frequency: str) -> bool:
        """Fold one batch; return whether the profile has a new version.

        Other processes may fold the same profile: whoever stores first wins (``ProfileHead.uploads`` is the fence),
        the other throws its work away and looks again.
        """
        for _ in range(FENCE_ATTEMPTS):
            async with self._database.read() as session:
                head = await repository.head(session, soc, frequency)
                chosen = _first_rows(await repository.pending(session, soc, frequency, BATCH_UPLOADS))
                if not chosen:
                    return False
                # NOTE: PostgreSQL lets each statement see what committed before it: another process may have folded
                # these uploads, and emptied their bodies, since the line above.
                uploads = await repository.bodies(session, chosen)
                if len(uploads) < len(chosen):
                    continue
                # Taken out before the next await: another profile's fold may drop the oldest of them meanwhile.
                cached = self._folders.pop(head.id, None) if head is not None else None
                folder = cached[1] if cached is not None and head is not None and cached[0] == head.uploads else None
                dumped = await repository.statistics(session, head.id) if head is not None and folder is None else None
            if head is None:
                async with self._database.write() as session:
                    head = await repository.ensure(session, soc, frequency, datetime.now(UTC))
            if folder is None:
                folder = await asyncio.to_thread(_load_folder, dumped)
            batch = [(row.id, row.device_id, Body(row.body, row.encoding)) for row in uploads]
            work = await asyncio.to_thread(
                _fold, folder, batch, soc, frequency, head, self._settings.max_inflated_bytes
            )
            if await self._store(head, [row_id for row_id, _, _ in batch], {device for _, device, _ in batch}, work):
                self._folders[head.id] = (head.uploads + len(batch), folder)
                while len(self._folders) > REMEMBERED_FOLDERS:
                    self._folders.popitem(last=False)
                return work.version > head.version
        return False

    async def _store(self, head: ProfileHead, ids: list[int], devices: set[str], work: _Work) -> bool:
        now = datetime.now(UTC)
        async with self._database.write() as session:
            if not await repository.store_statistics(session, head, {**work.values, "updated_at": now}):
                return False
            await repository.mark_folded(session, [row_id for row_id in ids if row_id not in work.errors], now)
            await repository.mark_unusable(session, work.errors, now)
            if work.snapshot is not None:
                await repository.store_version(session, head.id, work.version, work.snapshot, now)
            await repository.release(session, head.id, devices, now)
        return True

    async def read(self, soc: str, frequency: str) -> bytes:
        """Return a profile as compressed JSON. Raises NotFoundError when nothing is known."""
        await self.fold(soc, frequency)
        async with self._database.read() as session:
            found = await repository.find(session, f"{soc}/{frequency}")
        if found is None:
            raise profile_unknown(soc, frequency)
        return found

    async def missing(self, request: MissingRequest) -> Missing:
        """Return what nobody has measured yet of a model on a SoC, and ask this device for its part of it.

        A device that names ``max_items`` gets at most so many, and none that others were asked for just now; one
        that does not is willing to measure all of it.

        Raises:
            NotFoundError: an unknown model.
        """
        await self.fold(request.soc, request.frequency)
        async with self._database.read() as session:
            figures = await load_figures(session, request.model_hash)
            found = await repository.current(session, request.soc, request.frequency)
            known = None if found is None else Known.read(found[1])
            kinds = list(dict.fromkeys(processor.kind for processor in request.processors))
            places = [processor.place for processor in request.processors]
            # Kinds that too few devices list are not in the profile, but may have been measured all the same.
            unlisted = found is not None and known is not None and not set(kinds) <= set(known.kinds.values())
            dumped = await repository.statistics(session, found[0].id) if found is not None and unlisted else None
        latencies: set[Latency] = set(known.latencies) if known else set()
        transfers: set[Transfer] = set(known.transfers) if known else set()
        if dumped is not None:
            more = await asyncio.to_thread(_measured, dumped)
            latencies, transfers = latencies | more[0], transfers | more[1]
        unknown: list[Latency | Transfer] = [key for key in figures.latencies(kinds) if key not in latencies]
        unknown += [key for key in figures.transfers(places) if key not in transfers]
        version = 0 if found is None else found[0].version
        if not unknown:
            return Missing(profile_version=version)
        chosen = await self._assign(request, unknown)
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
            elsewhere=0 if request.max_items is None else len(unknown) - len(chosen),
        )

    async def _assign(self, request: MissingRequest, unknown: list[Latency | Transfer]) -> list[Latency | Transfer]:
        now = datetime.now(UTC)
        until = now + timedelta(seconds=self._settings.assignment_s)
        async with self._database.write() as session:
            head = await repository.ensure(session, request.soc, request.frequency, now)
            await repository.lock(session, head.id)
            chosen = unknown
            if request.max_items is not None:
                others = await repository.assigned_elsewhere(session, head.id, request.device_id, now)
                taken = {packed[at : at + 8] for packed in others for at in range(0, len(packed), 8)}
                chosen = [key for key in unknown if _figure_hash(key) not in taken][: request.max_items]
            packed = b"".join(map(_figure_hash, chosen))
            await repository.assign(session, head.id, request.device_id, packed, until)
        return chosen


class _Work:
    """What folding a batch produced, ready to be stored."""

    def __init__(self, values: dict[str, object], version: int, snapshot: bytes | None, errors: dict[int, str]) -> None:
        self.values = values
        self.version = version
        self.snapshot = snapshot
        self.errors = errors


def _load_folder(dumped: bytes | None) -> Folder:
    # NOTE: NumPy is imported where folding happens, so that a process that only serves plans never loads it.
    from planner_api.profiles.folding import Folder
    from planner_api.profiles.statistics import Statistics

    return Folder(Statistics.load(dumped))


def _measured(dumped: bytes | None) -> tuple[set[Latency], set[Transfer]]:
    statistics = _load_folder(dumped).statistics
    return set(statistics.latencies.index), set(statistics.transfers.index)


def _fold(
    folder: Folder, batch: list[tuple[int, str, Body]], soc: str, frequency: str, head: ProfileHead, limit: int
) -> _Work:
    """Fold a batch into the folder's statistics (in a thread)."""
    from planner_api.profiles.snapshot import materially_changed, publish

    uploads: list[tuple[str, dict[str, Any]]] = []
    ids: list[int] = []
    errors: dict[int, str] = {}
    for row_id, device, body in batch:
        try:
            uploads.append((device, from_json(bytes(inflate(body, limit=limit)))))
            ids.append(row_id)
        except (PlannerError, ValueError) as error:
            errors[row_id] = str(error)
    folded = folder.fold(uploads)
    errors.update({ids[position]: error for position, error in folded.failed.items()})
    statistics = folder.statistics
    version, snapshot = head.version, None
    if materially_changed(statistics):
        version += 1
        snapshot = zstd(publish(statistics, soc, frequency, version))
    values = {
        "statistics": statistics.dump(),
        "version": version,
        "latencies": len(statistics.latencies.keys),
        "transfers": len(statistics.transfers.keys),
        "rejected": ProfileRow.rejected + folded.refused,
        "devices": max((len(devices) for devices in statistics.processors.values()), default=0),
        "uploads": head.uploads + len(batch),
    }
    return _Work(values, version, snapshot, errors)


def _first_rows(waiting: Iterable[tuple[int, int]]) -> list[int]:
    """Return the ids of the first uploads that together stay within a batch's rows, at least one."""
    ids: list[int] = []
    total = 0
    for row_id, rows in waiting:
        total += rows
        if ids and total > BATCH_ROWS:
            break
        ids.append(row_id)
    return ids


def _figure_hash(key: Latency | Transfer) -> bytes:
    return hashlib.blake2b(repr(key).encode(), digest_size=8).digest()

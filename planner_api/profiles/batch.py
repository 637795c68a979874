"""One batch of uploads on its way into a profile: folded, doubted, published where it matters. Runs in threads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from planner_api.compression import zstd
from planner_api.errors import PlannerError
from planner_api.profiles.folding import Estimates, Folder, estimates
from planner_api.profiles.plausibility import held_of
from planner_api.profiles.repository import ProfileHead
from planner_api.profiles.snapshot import materially_changed, publish
from planner_api.profiles.statistics import Statistics, device_hash
from planner_api.web.body import Body, inflate

BATCH_UPLOADS = 256
BATCH_ROWS = 200_000
"""A batch holds at most this many uploads, and rows unless one upload alone has more: it is folded in memory."""

Sent = tuple[int, str, Body]
"""Row of the inbox, device id, and the upload as it came."""


@dataclass(frozen=True)
class Folded:
    """What became of the uploads of a batch, by their rows in the inbox.

    Attributes:
        devices: whose they were.
        refused: votes that were outliers.
        errors: those that could not be read, and why.
        unused: those that were used in part only, and why.
    """

    devices: dict[int, str]
    refused: int
    errors: dict[int, str]
    unused: dict[int, str]


@dataclass(frozen=True)
class Stored:
    """What is stored of a profile after a batch: its columns, and the body of its new version (None: it has none)."""

    values: dict[str, Any]
    snapshot: bytes | None


def first_rows(waiting: Iterable[tuple[int, int]]) -> list[int]:
    """Return the ids of the first uploads that together stay within a batch's rows, at least one."""
    ids: list[int] = []
    total = 0
    for row_id, rows in waiting:
        total += rows
        if ids and total > BATCH_ROWS:
            break
        ids.append(row_id)
    return ids


def load(dumped: bytes | None, share: int | None) -> Folder:
    """Return a folder of statistics as they were stored."""
    return Folder(Statistics.load(dumped), share)


def fold(folder: Folder, batch: Sequence[Sent], revoked: Collection[str], limit: int) -> tuple[Folded, Estimates]:
    """Fold a batch into the folder's statistics, and estimate; ``limit`` bounds the inflated bytes of an upload."""
    uploads: list[tuple[str, dict[str, Any]]] = []
    ids: list[int] = []
    errors: dict[int, str] = {}
    for row_id, device, body in batch:
        if device in revoked:
            errors[row_id] = "not used: the device was revoked"
            continue
        try:
            uploads.append((device, from_json(bytes(inflate(body, limit=limit)))))
            ids.append(row_id)
        except (PlannerError, ValueError) as error:
            errors[row_id] = str(error)
    folded = folder.fold(uploads)
    errors.update({ids[position]: error for position, error in folded.failed.items()})
    unused = {ids[position]: reason for position, reason in folded.unused.items()}
    found = Folded({row_id: device for row_id, device, _ in batch}, folded.refused, errors, unused)
    return found, estimates(folder.statistics)


def say_what_is_held(statistics: Statistics, folded: Folded) -> None:
    """Note with each upload what is held back of what its device says."""
    for row_id, device in folded.devices.items():
        if row_id not in folded.errors and (held := held_of(statistics, device_hash(device))) is not None:
            folded.unused[row_id] = "; ".join(filter(None, (folded.unused.get(row_id), held)))


def finish(
    statistics: Statistics, found: Estimates, soc: str, frequency: str, head: ProfileHead, uploads: int = 1
) -> Stored:
    """Return what is to be stored of changed statistics; ``uploads`` were folded into them, or 1 stands for the change.

    The fence of concurrent folders moves on by as many.
    """
    changed = materially_changed(statistics, found)
    version = head.version + changed
    snapshot = zstd(publish(statistics, found, soc, frequency, version)) if changed else None
    values = {
        "statistics": statistics.dump(),
        "version": version,
        "uploads": head.uploads + uploads,
        "latencies": len(statistics.latencies.keys),
        "transfers": len(statistics.transfers.keys),
        "devices": max((len(devices) for devices in statistics.processors.values()), default=0),
    }
    return Stored(values, snapshot)

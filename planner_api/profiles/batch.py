"""One batch of uploads on its way into a profile: folded, doubted, published where it matters. Runs in a child."""

from datetime import datetime
from typing import Any
from zipfile import BadZipFile

import msgspec
from pydantic_core import from_json
from zstandard import ZstdError

from planner_api.compression import zstd
from planner_api.errors import PlannerError, RefusedError
from planner_api.jobs.computing import Ask
from planner_api.profiles.facts import Facts
from planner_api.profiles.folding import Folder, estimates
from planner_api.profiles.plausibility import held_of
from planner_api.profiles.predictions import Predictions
from planner_api.profiles.snapshot import materially_changed, publish
from planner_api.profiles.statistics import Statistics, device_hash
from planner_api.web.inflate import Body, inflate

UNREADABLE = (ZstdError, BadZipFile, KeyError, TypeError, ValueError)
"""Statistics raise these where they are damaged, or a later release of the planner wrote them."""

_predictions = Predictions()


class Upload(msgspec.Struct):
    """An upload as it came: its row in the inbox, whose it is, its body, whether it is believed, and its rows."""

    row_id: int
    device_id: str
    body: Body
    trusted: bool
    rows: int
    revoked: bool


class FoldOrder(msgspec.Struct):
    """What is folded into which profile, as it stands.

    ``folded`` counts earlier uploads. Devices in ``taken_back`` are forgotten first. One device that is not trusted may
    say ``share`` figures of a family alone; an upload may inflate to ``most_bytes``. The last of those was taken back
    at ``taken_back_at``; with ``more`` there are uploads that are folded after these.
    """

    profile_id: int
    soc: str
    frequency: str
    version: int
    folded: int
    statistics: bytes | None
    taken_back: tuple[str, ...]
    uploads: tuple[Upload, ...]
    share: int
    most_bytes: int
    taken_back_at: datetime | None
    more: bool


class FoldOutcome(msgspec.Struct):
    """What is stored of a profile after a batch, and what became of its uploads, by their rows in the inbox.

    ``values`` are the profile's columns, ``snapshot`` the body of its new version, if it has one; ``refused`` counts
    outliers. ``errors`` says why an upload could not be read, ``unused`` why one was used in part only.
    """

    values: dict[str, Any] = {}
    snapshot: bytes | None = None
    refused: int = 0
    errors: dict[int, str] = {}
    unused: dict[int, str] = {}


def fold(order: FoldOrder, ask: Ask) -> FoldOutcome:
    """Fold a batch into the statistics of its profile. Raises RefusedError: those cannot be read."""
    try:
        known = Statistics.load(order.statistics)
    except UNREADABLE as error:
        raise RefusedError(f"the statistics of this profile cannot be read: {error!r}") from error
    if order.taken_back:
        known.forget(map(device_hash, order.taken_back))
    outcome = FoldOutcome()
    # What is believed was so where it was accepted, whichever process folds it.
    for trusted in (True, False):
        _fold_some(known, order, [sent for sent in order.uploads if sent.trusted == trusted], outcome)
    found = estimates(known)
    if known.doubted:
        _predictions.doubt(order.profile_id, known, found, Facts(ask))
        _say_what_is_held(known, order, outcome)
    changed = materially_changed(known, found)
    version = order.version + changed
    if changed:
        outcome.snapshot = zstd(publish(known, found, order.soc, order.frequency, version))
    outcome.values = {
        "statistics": known.dump(),
        "version": version,
        "uploads": order.folded + len(order.uploads),
        "latencies": len(known.latencies.keys),
        "transfers": len(known.transfers.keys),
    }
    return outcome


def _fold_some(known: Statistics, order: FoldOrder, sent_ones: list[Upload], found: FoldOutcome) -> None:
    uploads: list[tuple[str, dict[str, Any]]] = []
    ids: list[int] = []
    for sent in sent_ones:
        if sent.revoked:
            found.errors[sent.row_id] = "not used: the device was revoked"
            continue
        try:
            body = inflate(sent.body, limit=order.most_bytes)
            uploads.append((sent.device_id, from_json(bytes(body))))
            ids.append(sent.row_id)
        except (PlannerError, ValueError) as error:
            found.errors[sent.row_id] = str(error)
    if not uploads:
        return
    trusted = sent_ones[0].trusted
    known.doubted |= not trusted
    folded = Folder(known, None if trusted else order.share).fold(uploads)
    found.refused += folded.refused
    found.errors.update({ids[position]: error for position, error in folded.failed.items()})
    found.unused.update({ids[position]: reason for position, reason in folded.unused.items()})


def _say_what_is_held(statistics: Statistics, order: FoldOrder, folded: FoldOutcome) -> None:
    """Note with each upload what is held back of what its device says."""
    for sent in order.uploads:
        held = None if sent.row_id in folded.errors else held_of(statistics, device_hash(sent.device_id))
        if held is not None:
            folded.unused[sent.row_id] = "; ".join(filter(None, (folded.unused.get(sent.row_id), held)))

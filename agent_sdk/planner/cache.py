"""Kept on disk: the last plan for every key, and measured figures that no planner took yet.

The plans are for revalidation and for days without a planner.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from agent_sdk.files import read_whole, replace_whole
from agent_sdk.planner.client import ServedPlan
from hope_schema import Observations, PlanReply, PlanRequest, Processor
from hope_schema.base import Contract, Microseconds
from hope_schema.hashing import digest

MAX_PLANS: Final = 256
"""Plans kept; the ones used longest ago are dropped first."""
MAX_UNSENT: Final = 16
"""Uploads kept for later; the oldest are dropped first."""


class Settled(Contract):
    """What this device found out about a plan version: nothing of it is worth finding out at every start.

    ``trial_us`` is what the plan and each of its rivals took when they were tried side by side.
    """

    trial_us: dict[str, Microseconds]


class _Entry(Contract):
    etag: str
    reply: PlanReply
    settled: Settled | None = None


class PlanCache:
    """Plans by key in a directory; every write is atomic, and a damaged file counts as absent."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @staticmethod
    def key(request: PlanRequest, processors: Sequence[Processor], planner: str) -> str:
        """Return the key of a plan: the request, the kinds of processor it was made for, and who made it.

        The kinds hold runtime versions, so an updated runtime never runs a plan made for the old one.
        """
        kinds = sorted((processor.id, processor.kind, processor.resources) for processor in processors)
        return digest([request.model_dump(mode="json"), kinds, planner])

    def load(self, key: str) -> ServedPlan | None:
        """Return the plan kept under ``key``, or None."""
        entry = self._entry(key)
        return None if entry is None else ServedPlan(entry.reply, entry.etag, "unchanged")

    def store(self, key: str, served: ServedPlan) -> None:
        """Keep a plan under ``key``; what was settled about the same version stays.

        A full or read-only disk is no error: the plan is then asked for again.
        """
        before = self._entry(key)
        same = before is not None and before.reply == served.reply
        settled = before.settled if before is not None and same else None
        self._write(key, _Entry(etag=served.etag, reply=served.reply, settled=settled))

    def settled(self, key: str, served: ServedPlan) -> Settled | None:
        """Return what was settled about exactly this version of the plan under ``key``."""
        entry = self._entry(key)
        return entry.settled if entry is not None and entry.reply == served.reply else None

    def settle(self, key: str, served: ServedPlan, settled: Settled) -> None:
        """Keep what this device found out about a plan version."""
        self._write(key, _Entry(etag=served.etag, reply=served.reply, settled=settled))

    def _entry(self, key: str) -> _Entry | None:
        path = self._path(key)
        try:
            entry = _Entry.model_validate_json(read_whole(path))
        except (OSError, ValidationError):
            return None
        with suppress(OSError):  # whoever may only read the cache can use it all the same
            os.utime(path)
        return entry

    def _write(self, key: str, entry: _Entry) -> None:
        _replace(self._path(key), entry, MAX_PLANS)

    def forget(self, key: str) -> None:
        """Drop the plan kept under ``key``, if any."""
        with suppress(OSError):
            self._path(key).unlink()

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}.json"


class Unsent:
    """Measured figures that the planner has not taken yet, in a directory: measuring them again takes long."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def keep(self, observations: Observations) -> bool:
        """Keep figures until they are dropped; say whether the disk took them."""
        return _replace(self._path(observations), observations, MAX_UNSENT)

    def load(self) -> list[Observations]:
        """Return what is kept; a damaged file is dropped."""
        found = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                found.append(Observations.model_validate_json(read_whole(path)))
            except ValidationError:
                with suppress(OSError):
                    path.unlink()
            except OSError:
                continue
        return found

    def drop(self, observations: Observations) -> None:
        """Forget figures that need not be sent any more."""
        with suppress(OSError):
            self._path(observations).unlink()

    def _path(self, observations: Observations) -> Path:
        return self._directory / f"{digest(observations.upload_id)}.json"


def _replace(path: Path, message: Contract, most: int) -> bool:
    """Replace a file whole and drop all but the newest ``most`` beside it; say whether the disk allowed it."""
    try:
        replace_whole(path, message.model_dump_json().encode())
    except OSError:
        return False
    with suppress(OSError):  # another process may be removing some at the same moment
        files = sorted(path.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for old in files[:-most]:
            old.unlink(missing_ok=True)
    return True

"""The inbox of uploads: stored in groups, and each acknowledged only when it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from planner_api.db.engine import Database
from planner_api.gathering import Gathering
from planner_api.profiles import repository

BATCH_UPLOADS = 128
BATCH_BYTES = 4 * 2**20
"""One transaction holds at most this much, so that a reader of the log is never far behind."""

Upload = Mapping[str, Any]


class Inbox:
    """Stores uploads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._uploads: Gathering[Upload, bool] = Gathering(
            self._write, most=BATCH_UPLOADS, weight=lambda upload: len(upload["body"]), heaviest=BATCH_BYTES
        )

    async def add(self, upload: Upload) -> bool:
        """Store an upload; return False when this device sent this upload id before. Raises what the database does."""
        return await self._uploads.add(upload)

    async def _write(self, group: Sequence[Upload]) -> Sequence[bool]:
        # NOTE: in the order of the key, so that two replicas with the same uploads cannot deadlock.
        uploads = sorted(group, key=_key)
        fresh = await self._database.write_at_once(partial(repository.insert_uploads, uploads=uploads))
        results = []
        for upload in group:
            results.append(_key(upload) in fresh)
            fresh.discard(_key(upload))
        return results


def _key(upload: Upload) -> tuple[str, str]:
    return upload["device_id"], upload["upload_id"]

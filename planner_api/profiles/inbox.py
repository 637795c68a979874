"""The inbox of uploads: stored in groups, and each acknowledged only when it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from planner_api.db.engine import Database
from planner_api.gathering import Gathering
from planner_api.jobs.queue import put
from planner_api.jobs.repository import Wanted
from planner_api.profiles import repository
from planner_api.profiles.jobs import FOLD, key_of

BATCH_UPLOADS = 128
BATCH_BYTES = 4 * 2**20
"""One transaction holds at most this much, so that a reader of the log is never far behind."""

Upload = Mapping[str, Any]


class Inbox:
    """Stores uploads."""

    def __init__(self, database: Database, *, delay_s: float) -> None:
        self._database = database
        self._delay_s = delay_s
        """Seconds that uploads wait for others, to be folded together."""
        self._uploads: Gathering[Upload, bool] = Gathering(
            self._write, most=BATCH_UPLOADS, weight=lambda upload: len(upload["body"]), heaviest=BATCH_BYTES
        )

    async def add(self, upload: Upload) -> bool:
        """Store an upload; return False when this device sent this upload id before. Raises what the database does."""
        return await self._uploads.add(upload)

    async def _write(self, group: Sequence[Upload]) -> Sequence[bool]:
        # NOTE: in the order of the key, so that two replicas with the same uploads cannot deadlock.
        uploads = sorted(group, key=_key)
        async with self._database.write() as session:
            fresh = await (await session.connection()).run_sync(repository.insert_uploads, uploads)
            pairs = {(upload["soc"], upload["frequency"]) for upload in uploads if _key(upload) in fresh}
            await put(session, *(Wanted(FOLD, key_of(*pair), delay_s=self._delay_s, again=True) for pair in pairs))
        results = []
        for upload in group:
            results.append(_key(upload) in fresh)
            fresh.discard(_key(upload))
        return results


def _key(upload: Upload) -> tuple[str, str]:
    return upload["device_id"], upload["upload_id"]

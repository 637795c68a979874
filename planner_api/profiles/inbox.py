"""The inbox of uploads: many requests share one transaction, and each is answered only after it has committed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from planner_api.db.engine import Database
from planner_api.profiles import repository

BATCH_UPLOADS = 128
BATCH_BYTES = 4 * 2**20
"""One transaction holds at most this much, so that a reader of the log is never far behind."""

Upload = Mapping[str, Any]


class Inbox:
    """Stores uploads in groups: while one transaction commits, the next group gathers. Nobody waits for a timer."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[tuple[Upload, asyncio.Future[bool]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def add(self, upload: Upload) -> bool:
        """Store an upload; return False when this device sent this upload id before. Raises what the database does."""
        stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((upload, stored))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_all(), name="inbox")
        return await stored

    async def _write_all(self) -> None:
        while self._waiting:
            group = self._take()
            try:
                await self._write(group)
            except Exception as error:  # noqa: BLE001 - every kind of failure belongs to the requests that wait for it
                for _, stored in group:
                    if not stored.done():
                        stored.set_exception(error)

    def _take(self) -> list[tuple[Upload, asyncio.Future[bool]]]:
        size = count = 0
        for upload, _ in self._waiting[:BATCH_UPLOADS]:
            size += len(upload["body"])
            if count and size > BATCH_BYTES:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    async def _write(self, group: list[tuple[Upload, asyncio.Future[bool]]]) -> None:
        # NOTE: in the order of the key, so that two replicas with the same uploads cannot deadlock.
        group = sorted(group, key=lambda item: _key(item[0]))
        uploads = [upload for upload, _ in group]
        fresh = await self._database.write_at_once(partial(repository.insert_uploads, uploads=uploads))
        for upload, stored in group:
            if not stored.done():
                stored.set_result(_key(upload) in fresh)
            fresh.discard(_key(upload))


def _key(upload: Upload) -> tuple[str, str]:
    return upload["device_id"], upload["upload_id"]

"""What one device may use: counted in the database by day, refused by name, and never in silence.

Quotas bind devices' tokens. Who may do everything (an admin, or anybody where no token is asked for) has none.
"""

import time
from collections import Counter
from datetime import UTC, datetime

from sqlalchemy import delete

from planner_api.db.engine import Database, WriteSession
from planner_api.db.tables import UsageRow
from planner_api.devices import repository
from planner_api.errors import ForbiddenError, TooOftenError
from planner_api.settings import Settings
from planner_api.web.principal import Principal

DAY_S = 86_400
MAX_OWNERS = 200_000
"""Devices whose uploads are counted in memory at once."""


class Quotas:
    """The quotas of one process, and what it refused by them."""

    def __init__(self, settings: Settings) -> None:
        self._per_day = {
            "models": settings.models_per_day,
            "model_bytes": settings.model_bytes_per_day,
            "plan_keys": settings.plan_keys_per_day,
            "upload_bytes": settings.upload_bytes_per_day,
        }
        self._uploaded: Counter[str] = Counter()
        self._day = ""
        self.refused: Counter[str] = Counter()

    async def spend(self, session: WriteSession, caller: Principal, **amounts: int) -> None:
        """Count what a caller uses today, with the given transaction. Raises TooOftenError beyond a quota."""
        if caller.role != "device":
            return
        for quota, amount in sorted(amounts.items()):
            used = await repository.use(session, caller.name, quota, _today(), amount)
            if used > self._per_day[quota]:
                raise self.exceeded(quota, f"{self._per_day[quota]} a day")

    def count_upload(self, caller: Principal, size: int) -> None:
        """Count the bytes of an upload in this process alone: a transaction each would cost more than the upload."""
        if caller.role != "device":
            return
        if self._day != _today() or len(self._uploaded) >= MAX_OWNERS:
            self._day = _today()
            self._uploaded.clear()
        self._uploaded[caller.name] += size
        if self._uploaded[caller.name] > self._per_day["upload_bytes"]:
            raise self.exceeded("upload_bytes", f"{self._per_day['upload_bytes']} a day")

    async def prune(self, database: Database) -> None:
        async with database.write() as session:
            await session.execute(delete(UsageRow).where(UsageRow.day < _today()))

    def exceeded(self, quota: str, limit: str, *, retry_after_s: int | None = None) -> TooOftenError:
        """Return the error for a caller beyond a quota of the time; None: it may return tomorrow."""
        wait_s = _until_tomorrow_s() if retry_after_s is None else retry_after_s
        return TooOftenError("quota-exceeded", self._refused(quota, limit), retry_after_s=wait_s)

    def forbidden(self, quota: str, limit: str) -> ForbiddenError:
        """Return the error for a caller beyond a quota that time does not fill again."""
        return ForbiddenError("quota-exceeded", self._refused(quota, limit), retry_after_s=_until_tomorrow_s())

    def _refused(self, quota: str, limit: str) -> str:
        self.refused[quota] += 1
        return f"quota {quota} of this device is used up ({limit}); an admin can raise it"


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _until_tomorrow_s() -> int:
    return DAY_S - int(time.time()) % DAY_S

"""Commands that work on the planner's database itself, not on a running planner."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from sqlalchemy.exc import SQLAlchemyError

from planner_api.db.engine import Database
from planner_api.errors import DatabaseAwayError, PlannerError
from planner_api.settings import Settings
from planner_api.usage import UsageError


def on_database(settings: Settings, command: Callable[[Database], Awaitable[int | None]]) -> int:
    """Run a command on the database of the settings; return its exit status, 1 where the database refuses.

    Raises:
        UsageError: the planner refuses what it asks for.
    """

    async def main() -> int:
        database = Database(settings.database_url)
        try:
            return await command(database) or 0
        finally:
            await database.close()

    try:
        return asyncio.run(main())
    except (DatabaseAwayError, SQLAlchemyError) as error:
        reason = getattr(error, "reason", None) or " ".join(str(getattr(error, "orig", None) or error).split())[:300]
        print(f"hope-planner: {reason}; was the database migrated? hope-planner migrate", file=sys.stderr)
        return 1
    except PlannerError as error:
        raise UsageError(error.detail) from None

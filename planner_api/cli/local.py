"""Commands that work on the planner's database itself, not on a running planner."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from planner_api.db.engine import Database
from planner_api.settings import Settings


def on_database(settings: Settings, command: Callable[[Database], Awaitable[int | None]]) -> int:
    """Run a command on the database of the settings; return its exit status. Raises what the command does."""

    async def main() -> int:
        database = Database(settings.database_url)
        try:
            return await command(database) or 0
        finally:
            await database.close()

    return asyncio.run(main())

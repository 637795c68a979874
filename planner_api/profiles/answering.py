"""What a computation asks while it runs is answered: what only the database knows."""

import asyncio
from collections.abc import Callable

import msgspec

from planner_api.db.engine import Database
from planner_api.models import repository as models
from planner_api.profiles import repository
from planner_api.profiles.facts import Question


def asker(database: Database) -> Callable[[bytes], bytes]:
    """What a thread of this process asks by, which the running event loop answers."""
    loop = asyncio.get_running_loop()
    return lambda question: asyncio.run_coroutine_threadsafe(answer(database, question), loop).result()


async def answer(database: Database, question: bytes) -> bytes:
    asked = msgspec.msgpack.decode(question, type=Question)
    async with database.read() as session:
        if asked.what == "features":
            return msgspec.msgpack.encode(await models.features(session, asked.names))
        if asked.what == "richest":
            return await repository.richest(session, besides=asked.names[0]) or b""
        return await repository.statistics(session, asked.profile_id) or b""

"""What a process does in the background: again and again, and whatever goes wrong with it is logged."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from planner_api.errors import DatabaseAwayError

log = structlog.get_logger(__name__)


def keep_doing(
    chore: Callable[[], Awaitable[object]], name: str, *, every_s: float, first_s: float = 0.0
) -> asyncio.Task[None]:
    """Do a chore until the task is cancelled, first after ``first_s`` and then with pauses of ``every_s`` seconds.

    Whatever it raises is logged; the next round does not suffer.
    """

    async def for_ever() -> None:
        await asyncio.sleep(first_s)
        while True:
            try:
                await chore()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next round may go well
                report(name, error)
            await asyncio.sleep(every_s)

    return asyncio.create_task(for_ever(), name=name)


def report(name: str, error: BaseException) -> None:
    """Log as ``<name>_lost_database`` or ``<name>_failed`` what nobody may be waiting for."""
    if isinstance(error, DatabaseAwayError):
        log.warning(f"{name}_lost_database", error=error.reason)
    else:
        log.error(f"{name}_failed", exc_info=error)


async def end(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks and wait until they have ended; None: one that was never begun."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)

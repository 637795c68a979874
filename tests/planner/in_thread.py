"""What computes for a worker of the tests, without the second that a child takes to start."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from planner_api.errors import RefusedError
from planner_api.jobs.computing import named
from planner_api.jobs.kind import JobError, Kind, Lease, Task
from planner_api.jobs.process import JobProcess, T, Tell
from planner_api.plans import make
from planner_api.profiles import answering, batch
from planner_api.profiles.predictions import Predictions


class InThread(JobProcess):
    """What computes for a worker of the tests: the functions that a child runs, in a thread of this process."""

    def __init__(self, **_limits: Any) -> None:
        """Take what a ``JobProcess`` takes, and limit nothing."""
        super().__init__(memory_bytes=0)

    async def start(self) -> None:
        """Nothing: it is ready."""

    async def run(self, function: str, order: Any, tell: Tell | None, timeout_s: float, answers: type[T]) -> T:
        """See ``JobProcess.run``."""
        loop = asyncio.get_running_loop()

        def ask(question: bytes) -> bytes:
            assert tell is not None
            return asyncio.run_coroutine_threadsafe(tell(question), loop).result()

        try:
            answer: T = await asyncio.to_thread(named(function), order, ask)
            return answer
        except RefusedError as error:
            raise JobError(str(error), permanent=True) from error
        except Exception as error:
            raise JobError(f"{type(error).__name__}: {error}", permanent=False) from error

    async def kill(self) -> None:
        """Nothing: a thread ends by itself."""


async def computed(kind: Kind, lease: Lease, task: Task) -> Any:
    """What a worker stores of a task that it has loaded."""
    answer = await InThread().run(
        kind.function, task.order, partial(answering.answer, kind._database), 60.0, kind.answers
    )
    return await kind.prepare(lease, task, answer)


def forget_all() -> None:
    """Begin anew: what a child remembers is of one database, and here many have their turn in one process."""
    batch._predictions, make._predictions = Predictions(), Predictions()

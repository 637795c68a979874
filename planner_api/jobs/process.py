"""One killable child that does jobs, kept warm between them: importing HiGHS and all costs more than most jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from planner_api.jobs.child import Child
from planner_api.jobs.computing import MODULE, Answer, Order
from planner_api.jobs.kind import JobError

START_TIMEOUT_S = 180.0
"""Longest start of a child: the first one after an installation compiles our modules."""

Tell = Callable[[bytes], Awaitable[bytes]]


class JobProcess(Child):
    """Does one job at a time in a child process under a time and a memory limit. A worker holds one per slot.

    The child is killed when a job outlives its time limit, and is started anew by the next one.

    Args:
        memory_bytes: address space a job may add to what the libraries hold (0: no limit).
        warm: what the child calls when it starts, as ``module:function``; empty: nothing.
    """

    def __init__(self, *, memory_bytes: int, warm: str = "") -> None:
        super().__init__(MODULE, warm, memory_bytes=memory_bytes, start_s=START_TIMEOUT_S, arenas=2)

    async def run(self, function: str, payload: bytes, tell: Tell, timeout_s: float) -> bytes:
        """Run a function of bytes in the child; ``tell`` answers what it asks meanwhile.

        Raises:
            JobError: refused by the function (permanent), or timed out, out of memory or crashed.
        """
        try:
            await self.start()
        except (TimeoutError, asyncio.IncompleteReadError) as error:
            raise JobError("the child process does not start; see the worker's log", permanent=False) from error
        order = msgspec.msgpack.encode(Order(function, payload))
        try:
            async with asyncio.timeout(timeout_s):
                answer = msgspec.msgpack.decode(await self.ask(order, tell), type=Answer)
        except TimeoutError as error:
            await self.kill()
            raise JobError(f"killed after its time limit of {timeout_s:g} s", permanent=False) from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            code = await self.kill()
            raise JobError(f"the child process died (exit status {code})", permanent=False) from error
        except BaseException:
            await self.kill()  # cancelled half-way, or a question that could not be answered
            raise
        if answer.out_of_memory:
            await self.kill()  # a heap that hit its limit is not trusted with the next job
        if answer.error:
            raise JobError(answer.error, permanent=answer.permanent)
        return answer.result

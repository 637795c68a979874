"""One killable child that does jobs, kept warm between them: importing HiGHS and all costs more than most jobs."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from planner_api.jobs.computing import LENGTH, MODULE, QUESTION, Answer, Call
from planner_api.jobs.kind import JobError

START_TIMEOUT_S = 180.0
"""Longest start of a child: the first one after an installation compiles our modules."""
MAX_FRAME = 256 * 1024 * 1024
"""No frame is longer: the schema's own bounds keep honest jobs far below it."""
ENVIRONMENT = {"MALLOC_ARENA_MAX": "2", "OPENBLAS_NUM_THREADS": "1"}
"""Of a child: glibc reserves 64 MiB of address space per arena, which a limit of memory would count; threads of matrix
products wait for each other at full speed, which takes twice the processor time where children work side by side."""

T = TypeVar("T")
Tell = Callable[[bytes], Coroutine[Any, Any, bytes]]


class NoChildError(JobError):
    """A child did not start: that says nothing of the job."""

    def __init__(self) -> None:
        super().__init__("the child process does not start; see the worker's log", permanent=False, late=True)


class JobProcess:
    """Does one job at a time in a child process under a time and a memory limit. A worker holds one per slot.

    The child is started when it is needed first, and anew after it was killed: when a job outlives its time limit,
    and whenever its next answer might belong to another job. Not for concurrent use.

    Args:
        memory_bytes: address space a job may add to what the libraries hold (0: no limit). Linux only.
        warm: what the child calls when it starts, as ``module:function``, or only loads; empty: nothing.
    """

    def __init__(self, *, memory_bytes: int, warm: str = "") -> None:
        self._command = (sys.executable, "-m", MODULE, str(os.getpid()), str(memory_bytes), warm)
        self._process: asyncio.subprocess.Process | None = None
        self._deadline: asyncio.Timeout | None = None
        self._left_s = 0.0  # until then, when the child was told to rest

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Start the child unless it runs, and wait until it has loaded its libraries.

        Raises:
            OSError, asyncio.IncompleteReadError: it does not come up.
        """
        if self.pid is not None:
            return
        await self.kill()
        pipe, environment = asyncio.subprocess.PIPE, {**os.environ, **ENVIRONMENT}
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, env=environment)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await _receive(self._process)
        except BaseException:
            await self.kill()
            raise

    async def run(self, function: str, order: Any, tell: Tell | None, timeout_s: float, answers: type[T]) -> T:
        """Run a function in the child and return what it ``answers``; ``tell`` answers what it asks meanwhile.

        Raises:
            JobError: refused by the function (permanent), or timed out, out of memory or crashed.
            NoChildError: there is no child to run it in.
        """
        try:
            await self.start()
        except (OSError, asyncio.IncompleteReadError) as error:
            raise NoChildError from error
        call = msgspec.msgpack.encode(Call(function, msgspec.msgpack.encode(order)))
        try:
            async with asyncio.timeout(timeout_s) as self._deadline:
                answer = msgspec.msgpack.decode(await self.ask(call, tell), type=Answer)
        except TimeoutError as error:
            await self.kill()
            reason = f"killed after its time limit of {timeout_s:g} s"
            raise JobError(reason, permanent=False, late=True) from error
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            code = await self.kill()
            raise JobError(f"the child process died (exit status {code})", permanent=False) from error
        except BaseException:
            await self.kill()  # cancelled half-way, or a question that could not be answered
            raise
        finally:
            self._deadline = None
        if answer.out_of_memory:
            await self.kill()  # a heap that hit its limit is not trusted with the next job
        if answer.error:
            raise JobError(answer.error, permanent=answer.permanent)
        return msgspec.msgpack.decode(answer.result, type=answers)

    async def ask(self, order: bytes, tell: Tell | None) -> bytes:
        """Send an order to the child that was started and return its answer.

        Raises:
            asyncio.IncompleteReadError, ConnectionError: it died, or asks where nobody answers.
        """
        process = self._process
        assert process is not None
        await _send(process, order)
        while (received := await _receive(process))[:1] == QUESTION:
            if tell is None:
                raise ConnectionError("the child asks, and nobody answers")
            await _send(process, await tell(received[1:]))
        return received[1:]

    def rest(self, resting: bool) -> None:
        """Have the child, if there is one, stand still, or go on; the time limit of its job does so too."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGSTOP if resting else signal.SIGCONT)
        if self._deadline is None or self._deadline.expired():
            return
        ends_at, now = self._deadline.when(), asyncio.get_running_loop().time()
        if resting and ends_at is not None:
            self._left_s = ends_at - now
            self._deadline.reschedule(None)
        elif not resting and ends_at is None:
            self._deadline.reschedule(now + self._left_s)

    async def kill(self) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        return await process.wait()


async def _send(process: asyncio.subprocess.Process, body: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(LENGTH.pack(len(body)) + body)
    await process.stdin.drain()


async def _receive(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    (length,) = LENGTH.unpack(await process.stdout.readexactly(LENGTH.size))
    if length > MAX_FRAME:
        raise asyncio.IncompleteReadError(b"", length)
    return await process.stdout.readexactly(length)

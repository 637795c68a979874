"""Reading large bodies in a process of their own, which is killed when one takes too long or too much memory.

Whatever Python does with a body of megabytes holds up the event loop, in a thread too: objects are made under one
lock. The child gets the bytes as they came and answers with what the route's reading made of them, or the refusal.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import struct
import sys
from collections import Counter
from typing import TypeVar, get_type_hints

import msgspec

from planner_api.errors import UnavailableError
from planner_api.http.body import Body, Encoding, Reading, inflate
from planner_api.http.error import HttpError
from planner_api.locks import Turns

Result = TypeVar("Result")

START_S = 60.0
"""Longest time the child may take to load its modules."""
PATIENCE = 6
"""How many times its processor time reading a body may take on the clock, before the machine counts as too busy."""
WAITING = 8
"""Large bodies of one sender that may wait to be read."""
_LENGTH = struct.Struct(">I")


class Refusal(msgspec.Struct):
    """An ``HttpError`` on its way out of the child."""

    status: int
    kind: str
    detail: str
    causes: tuple[str, ...] = ()


class Task(msgspec.Struct):
    """A body, the name of its reading, its limit when inflated, and the processor time that it may take."""

    reading: str
    raw: bytes
    encoding: Encoding
    limit: int
    seconds: float


class Reader:
    """One child, started when it is needed first, for one body at a time; senders take turns.

    Args:
        limit: most bytes of an inflated body.
        timeout_s: processor time after which the child is killed, for nobody is to blame for what else runs; 0 reads in
            a thread of this process, for who trusts its only sender.
        memory_bytes: address space that a body may add.
        refused: counts refusals, by the quota's name.
    """

    def __init__(self, *, limit: int, timeout_s: float, memory_bytes: int, refused: Counter[str]) -> None:
        self._limit = limit
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._child: asyncio.subprocess.Process | None = None
        self.turns = Turns("bodies_to_read", slots=1, each=1, waiting=WAITING, refused=refused)

    async def read(self, owner: str, reading: Reading[Result], body: Body) -> Result:
        """Return what ``reading``, which returns a ``msgspec.Struct``, makes of the inflated body.

        Raises:
            HttpError: what ``reading`` or ``inflate`` raise; 413 for a body that takes too long or too much memory.
            UnavailableError: the machine has no time for it.
        """
        if not self._timeout_s:
            return await asyncio.to_thread(lambda: reading(inflate(body, limit=self._limit)))
        name = f"{reading.__module__}:{reading.__qualname__}"
        task = Task(name, body.raw, body.encoding, self._limit, self._timeout_s)
        async with self.turns.turn(owner):
            answer = await self._ask(msgspec.msgpack.encode(task))
        if not answer[0]:
            refusal = msgspec.msgpack.decode(answer[1:], type=Refusal)
            raise HttpError(refusal.status, refusal.kind, refusal.detail, causes=refusal.causes)
        result: Result = msgspec.msgpack.decode(answer[1:], type=get_type_hints(reading)["return"])
        return result

    async def stop(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            if child.stdin is not None:
                child.stdin.close()
            await child.wait()

    async def _ask(self, task: bytes) -> bytes:
        try:
            child = await self._running()
            assert child.stdin is not None
            async with asyncio.timeout(PATIENCE * self._timeout_s):
                child.stdin.write(_LENGTH.pack(len(task)) + task)
                await child.stdin.drain()
                return await _frame(child)
        except TimeoutError:
            await self.stop()
            raise UnavailableError(
                "the planner is too busy to read a large body; try again", retry_after_s=10
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            await self.stop()
            raise HttpError(
                413, "body-too-costly", f"the body takes more than {self._timeout_s:g} s or too much memory to read"
            ) from None
        except BaseException:
            await self.stop()  # cancelled half-way: its next answer would belong to this body
            raise

    async def _running(self) -> asyncio.subprocess.Process:
        if self._child is None or self._child.returncode is not None:
            await self.stop()
            self._child = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "planner_api.http.reader", str(os.getpid()), str(self._memory_bytes)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env={**os.environ, "MALLOC_ARENA_MAX": "1"},
            )
            async with asyncio.timeout(START_S):
                await _frame(self._child)
        return self._child


async def _frame(child: asyncio.subprocess.Process) -> bytes:
    assert child.stdout is not None
    (length,) = _LENGTH.unpack(await child.stdout.readexactly(_LENGTH.size))
    return await child.stdout.readexactly(length)


def answer_to(task: Task) -> bytes:
    """Return what the child answers: a byte that says whether it went well, and the result or the refusal."""
    module, _, name = task.reading.partition(":")
    reading = getattr(importlib.import_module(module), name)
    try:
        return b"\x01" + msgspec.msgpack.encode(reading(inflate(Body(task.raw, task.encoding), limit=task.limit)))
    except HttpError as error:
        refusal = Refusal(error.status, error.kind, error.detail, error.causes)
    except MemoryError:
        refusal = Refusal(413, "body-too-costly", "the body takes too much memory to read")
    return b"\x00" + msgspec.msgpack.encode(refusal)


def main(parent: int, memory_bytes: int) -> None:
    """Read bodies until stdin closes."""
    # NOTE: imported here and before the limit: what is loaded is not counted against a body.
    import planner_api.models.reading
    import planner_api.profiles.reading  # noqa: F401
    from planner_api.solving.child import die_with_parent, limit_memory

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then decides about us
    die_with_parent(parent)
    with contextlib.suppress(OSError):
        os.nice(5)
    answers = sys.stdout.buffer
    if sys.platform == "linux":
        limit_memory(memory_bytes)
    ready = b"ready"
    answers.write(_LENGTH.pack(len(ready)) + ready)
    answers.flush()
    tasks = sys.stdin.buffer
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process, in the middle of whatever it computes
    while len(head := tasks.read(_LENGTH.size)) == _LENGTH.size:
        task = msgspec.msgpack.decode(tasks.read(_LENGTH.unpack(head)[0]), type=Task)
        signal.setitimer(signal.ITIMER_PROF, task.seconds)
        answer = answer_to(task)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answers.write(_LENGTH.pack(len(answer)) + answer)
        answers.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

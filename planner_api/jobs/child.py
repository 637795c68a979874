"""A child process of ours that is killed when in doubt: both ends of its pipe, its limits, its end with its parent's.

Frames are ``length (4 bytes, big-endian) + bytes``: data, never pickles, so that a confused child can hand its parent
nothing but text. A task is a frame, and so is its answer; a byte in front of it tells an answer from a question, which
the child may ask while it works and the parent answers with a frame.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import BinaryIO

MAX_FRAME = 256 * 1024 * 1024
"""No frame is longer: the schema's own bounds keep honest tasks far below it."""
_LENGTH = struct.Struct(">I")
_PR_SET_PDEATHSIG = 1
_ANSWER, _QUESTION = b"=", b"?"

Ask = Callable[[bytes], bytes]
"""How a child asks its parent."""


class Child:
    """One child, started when it is needed first and anew after it was killed. Not for concurrent use.

    Args:
        module: run as ``python -m``; it hands what follows to ``serve``.
        memory_bytes: address space that tasks may add to what its libraries hold (0: no limit). Linux only.
        start_s: longest time it may take to load them.
        arenas: of malloc: glibc reserves 64 MiB of address space for each, which the limit would count.
        more: arguments for the module, behind this process's id and the limit.
    """

    def __init__(self, module: str, *more: str, memory_bytes: int, start_s: float, arenas: int) -> None:
        self._command = (sys.executable, "-m", module, str(os.getpid()), str(memory_bytes), *more)
        self._start_s = start_s
        self._environment = {"MALLOC_ARENA_MAX": str(arenas)}
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id, or ``None`` while none runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def start(self) -> None:
        """Start it unless it runs, and wait until it has loaded its libraries.

        Raises:
            TimeoutError, asyncio.IncompleteReadError: it does not come up.
        """
        if self.pid is not None:
            return
        await self.kill()
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, env={**os.environ, **self._environment}
        )
        try:
            async with asyncio.timeout(self._start_s):
                await self._receive(self._process)
        except BaseException:
            await self.kill()
            raise

    async def ask(self, task: bytes, tell: Callable[[bytes], Awaitable[bytes]] | None = None) -> bytes:
        """Send a task to the child that was started and return its answer; ``tell`` answers its questions.

        After any error the child has to be killed: its next answer would belong to this task.

        Raises:
            asyncio.IncompleteReadError, ConnectionError: it died, or asks where nobody answers.
        """
        process = self._process
        assert process is not None
        await self._send(process, task)
        while (received := await self._receive(process))[:1] == _QUESTION:
            if tell is None:
                raise ConnectionError("the child asks, and nobody answers")
            await self._send(process, await tell(received[1:]))
        return received[1:]

    @staticmethod
    async def _send(process: asyncio.subprocess.Process, body: bytes) -> None:
        assert process.stdin is not None
        process.stdin.write(_LENGTH.pack(len(body)) + body)
        await process.stdin.drain()

    async def kill(self) -> int | None:
        """Kill the child, if any, and return its exit status."""
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        return await process.wait()

    @staticmethod
    async def _receive(process: asyncio.subprocess.Process) -> bytes:
        assert process.stdout is not None
        (length,) = _LENGTH.unpack(await process.stdout.readexactly(_LENGTH.size))
        if length > MAX_FRAME:
            raise asyncio.IncompleteReadError(b"", length)
        return await process.stdout.readexactly(length)


def serve(parent: int, memory_bytes: int, load: Callable[[Ask], Callable[[bytes], bytes]]) -> None:
    """Be such a child until stdin closes; what ``load`` returns answers tasks, and what it loads counts for nothing.

    ``load`` gets the function that asks the parent.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then decides about us
    _die_with(parent)
    with contextlib.suppress(OSError):
        os.nice(5)  # answering devices goes first where both share cores
    # Libraries print to fd 1 from C; the answers therefore go to a private copy of it.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def ask(question: bytes) -> bytes:
        _write(answers, _QUESTION + question)
        told = _read(sys.stdin.buffer)
        if told is None:
            raise EOFError("the parent is gone")
        return told

    answer = load(ask)
    if memory_bytes > 0 and sys.platform == "linux":
        _limit_memory(memory_bytes)
    _write(answers, b"ready")
    while (task := _read(sys.stdin.buffer)) is not None:
        _write(answers, _ANSWER + answer(task))


def _read(stream: BinaryIO) -> bytes | None:
    """The next frame; ``None`` at the end of the stream or when it breaks off in the middle of one."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


def _write(stream: BinaryIO, body: bytes) -> None:
    stream.write(_LENGTH.pack(len(body)))
    stream.write(body)
    stream.flush()


def _die_with(parent: int) -> None:
    """Ask the kernel for SIGKILL when the parent dies, and leave at once if it died before we could ask."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _watch(parent: int) -> None:
    """Where there is no PDEATHSIG: a busy child still notices within a second that its parent is gone."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def _limit_memory(extra_bytes: int) -> None:
    """Allow ``extra_bytes`` of address space beyond what the imported libraries hold already."""
    import resource

    with open("/proc/self/statm", encoding="ascii") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + extra_bytes, mapped + extra_bytes))

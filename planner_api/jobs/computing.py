"""What runs inside the killable child: read an order, run the function that it names, answer.

Frames are ``length (4 bytes, big-endian) + bytes``: data, never pickles, so that a confused child can hand its parent
nothing but text. An order is a frame, and so is its answer; a byte in front of it tells an answer from a question,
which the function may ask while it works and the parent answers with a frame.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, BinaryIO, get_type_hints

import msgspec

from planner_api.errors import RefusedError

MODULE = "planner_api.jobs.computing"
LENGTH = struct.Struct(">I")
ANSWER, QUESTION = b"=", b"?"
NEW_OBJECTS = 50_000
"""After so many more a child looks for cycles among them."""
_PR_SET_PDEATHSIG = 1

Ask = Callable[[bytes], bytes]
"""How a function asks the parent of its process."""


class Call(msgspec.Struct):
    """A function's name, as ``module:function``, and its order, encoded."""

    function: str
    order: bytes


class Answer(msgspec.Struct):
    """What the function returned, encoded, or the error; ``permanent``: trying again cannot help."""

    result: bytes = b""
    error: str = ""
    permanent: bool = False
    out_of_memory: bool = False


def named(name: str) -> Any:
    """Return what ``module:function`` names, or ``module``."""
    module, _, function = name.partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, function) if function else loaded


def _answer(ask: Ask, sent: bytes) -> bytes:
    call = msgspec.msgpack.decode(sent, type=Call)
    try:
        function = named(call.function)
        order = msgspec.msgpack.decode(call.order, type=next(iter(get_type_hints(function).values())))
        answer = Answer(msgspec.msgpack.encode(function(order, ask)))
    except MemoryError:
        answer = Answer(error="the child ran out of its memory limit", out_of_memory=True)
    except RefusedError as error:
        answer = Answer(error=str(error)[:2000], permanent=True)
    except Exception as error:  # noqa: BLE001 - the boundary of the process: every failure becomes a stored cause
        answer = Answer(error=f"{type(error).__name__}: {error}"[:2000])
    return msgspec.msgpack.encode(answer)


def serve(parent: int, memory_bytes: int, warm: str) -> None:
    """Be a child until stdin closes; what ``warm`` loads counts for nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then decides about us
    _die_with(parent)
    with contextlib.suppress(OSError):
        os.nice(5)  # answering devices goes first where both share cores
    # Libraries print to fd 1 from C; the answers therefore go to a private copy of it.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

    def ask(question: bytes) -> bytes:
        _write(answers, QUESTION + question)
        told = _read(sys.stdin.buffer)
        if told is None:
            raise EOFError("the parent is gone")
        return told

    if warm and callable(found := named(warm)):
        found()
    # What was loaded by now stays. A large network is hundreds of thousands of objects that live as long as its job:
    # looking through them for cycles every few hundred new ones takes half of its time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
    if memory_bytes > 0 and sys.platform == "linux":
        _limit_memory(memory_bytes)
    _write(answers, b"ready")
    while (task := _read(sys.stdin.buffer)) is not None:
        _write(answers, ANSWER + _answer(ask, task))
        gc.collect()  # what this job leaves in cycles would count against the memory of the next


def _read(stream: BinaryIO) -> bytes | None:
    """The next frame; ``None`` at the end of the stream or when it breaks off in the middle of one."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None


def _write(stream: BinaryIO, body: bytes) -> None:
    stream.write(LENGTH.pack(len(body)))
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


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

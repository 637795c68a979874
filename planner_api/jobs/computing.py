"""What runs inside the killable child: read an order, run the function that it names, answer."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from planner_api.errors import RefusedError
from planner_api.jobs.child import Ask, serve

MODULE = "planner_api.jobs.computing"

Function = Callable[[bytes, Ask], bytes]


class Order(msgspec.Struct):
    """A function's name, as ``module:function``, and its argument."""

    function: str
    payload: bytes


class Answer(msgspec.Struct):
    """What the function returned, or the error; ``permanent``: trying again cannot help."""

    result: bytes = b""
    error: str = ""
    permanent: bool = False
    out_of_memory: bool = False


def named(name: str) -> Any:
    """Return what ``module:function`` names."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def _answer(ask: Ask, sent: bytes) -> bytes:
    order = msgspec.msgpack.decode(sent, type=Order)
    try:
        answer = Answer(named(order.function)(order.payload, ask))
    except MemoryError:
        answer = Answer(error="the child ran out of its memory limit", out_of_memory=True)
    except RefusedError as error:
        answer = Answer(error=str(error)[:2000], permanent=True)
    except Exception as error:  # noqa: BLE001 - the boundary of the process: every failure becomes a stored cause
        answer = Answer(error=f"{type(error).__name__}: {error}"[:2000])
    return msgspec.msgpack.encode(answer)


def _load(warm: str, ask: Ask) -> Callable[[bytes], bytes]:
    if warm:
        named(warm)()
    return partial(_answer, ask)


if __name__ == "__main__":
    parent, memory_bytes, warm = sys.argv[1:]
    serve(int(parent), int(memory_bytes), partial(_load, warm))

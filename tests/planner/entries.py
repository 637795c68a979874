"""What children run in tests: jobs that are honest, slow, greedy for memory, suicidal, noisy; readers of bodies."""

from __future__ import annotations

import os
import signal
import time

import msgspec

from planner_api.errors import RefusedError
from planner_api.jobs.computing import Ask


def honest(payload: bytes, ask: Ask) -> bytes:
    """Gives back what it got."""
    return payload


def curious(payload: bytes, ask: Ask) -> bytes:
    """Asks twice what it got, and gives back the half of it."""
    assert ask(payload) == payload * 2
    answer = ask(payload)
    return answer[: len(answer) // 2]


def noisy(payload: bytes, ask: Ask) -> bytes:
    """Writes to fd 1 as C libraries do; the answer must not suffer."""
    os.write(1, b"HiGHS 1.12 says hello\n" * 100)
    return payload


def held_up(payload: bytes, ask: Ask) -> bytes:
    """Takes until it is answered."""
    ask(payload)
    return payload


def endless(payload: bytes, ask: Ask) -> bytes:
    """Never returns and ignores polite requests."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1.0)


def knotted(job: bytes, _ask: Ask) -> bytes:
    """Leaves 200 MiB behind that only a search for cycles finds."""
    knot: list[object] = [bytearray(200 * 2**20)]
    knot.append(knot)
    return job


def hungry(payload: bytes, ask: Ask) -> bytes:
    """Wants all the memory there is."""
    hoard = []
    while True:
        hoard.append(bytearray(16 * 1024 * 1024))


def suicidal(payload: bytes, ask: Ask) -> bytes:
    """Dies as from a fault in C."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


def refusing(payload: bytes, ask: Ask) -> bytes:
    """Says that the job itself cannot be done."""
    raise RefusedError("no processor supports op 'conv_1'")


def faulty(payload: bytes, ask: Ask) -> bytes:
    """Has a bug."""
    raise ZeroDivisionError("division by zero")


class Length(msgspec.Struct):
    """What a body is read as."""

    count: int


def kept_waiting(text: bytes | bytearray) -> Length:
    """Read as on a machine that has other things to do."""
    time.sleep(0.4)
    return Length(len(text))


def read_for_ever(text: bytes | bytearray) -> Length:
    """Read for longer than any test allows, and end all the same: a test whose defence is gone fails, not hangs."""
    began = time.process_time()
    while time.process_time() - began < 5.0:
        pass
    return Length(0)


class Copy(msgspec.Struct):
    """What a body is read as that says all of it."""

    text: bytes


def read_whole(text: bytes | bytearray) -> Copy:
    """Say all that was read."""
    return Copy(bytes(text))


def read_wrongly(text: bytes | bytearray) -> Length:
    """Have a bug."""
    raise ZeroDivisionError("division by zero")

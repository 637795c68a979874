"""Do the cores run at full speed just now? A measurement taken while they do not says nothing about the code.

A virtual machine shares physical cores and their caches with strangers: for seconds at a time everything takes up to
twice as long, and nothing inside the machine says so. Heat does the same. A *witness* computes something of
known length on every core, before and after what is measured.
"""

from __future__ import annotations

import os
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Self, TypeVar

T = TypeVar("T")

SLOW: Final = 1.2
"""Times its shortest that the witness must take for a core to count as disturbed."""
PAUSE_S: Final = 0.001
"""What every measurement is preceded by: long enough for the workers of the one before to go to sleep."""
_DATA: Final = bytes(256 * 1024)
"""Fits into a core's own cache, and keeps the interpreter lock free for longer than the switch between two threads."""


class Witness:
    """One thread per core that computes on demand. Use it in a ``with`` block.

    Attributes:
        shortest_us: per core, the shortest time that the witness took so far.
    """

    def __init__(self) -> None:
        self.cores = sorted(os.sched_getaffinity(0))
        self.shortest_us = dict.fromkeys(self.cores, float("inf"))
        self._last_us = dict.fromkeys(self.cores, 0.0)
        self._seconds: float | None = 0.0
        self._start = [threading.Semaphore(0) for _ in self.cores]
        self._ready = threading.Semaphore(0)
        self._threads = [
            threading.Thread(target=self._serve, args=(core, start), name=f"hope-witness-{core}", daemon=True)
            for core, start in zip(self.cores, self._start, strict=True)
        ]

    def __enter__(self) -> Self:
        try:
            for thread in self._threads:
                thread.start()
            self.slowness(10 * PAUSE_S)
        except BaseException:  # Ctrl-C
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._seconds = None
        for start in self._start:
            start.release()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def slowness(self, seconds: float = 0.0) -> float:
        """Keep every core at work for so long; how many times its shortest the slowest core took in the end.

        Cores are kept at work, not left idle, because a virtual core that halts may wake up beside another stranger.
        """
        self._seconds = seconds
        for start in self._start:
            start.release()
        for _ in self._start:
            self._ready.acquire()
        return max(self._last_us[core] / self.shortest_us[core] for core in self.cores)

    def steadily(self, call: Callable[[], T], deadline: float) -> tuple[T, bool]:
        """Call between two looks at the cores, and again until neither found a disturbance.

        Gives up at ``deadline`` (``time.monotonic``). Returns the last result, and whether the cores were steady.
        """
        while True:
            before = self.slowness(PAUSE_S)
            if before > SLOW and time.monotonic() < deadline:
                continue
            result = call()
            steady = before <= SLOW and self.slowness() <= SLOW
            if steady or time.monotonic() >= deadline:
                return result, steady

    def _serve(self, core: int, start: threading.Semaphore) -> None:
        with suppress(OSError):  # a core that is gone: the look then tells of another one, but nobody waits for ever
            os.sched_setaffinity(0, {core})
        while True:
            start.acquire()
            seconds = self._seconds
            if seconds is None:
                return
            zlib.crc32(_DATA)  # brings the data back into the core's cache
            end = time.perf_counter_ns() + int(seconds * 1e9)
            while True:
                started = time.perf_counter_ns()
                zlib.crc32(_DATA)
                now = time.perf_counter_ns()
                self._last_us[core] = (now - started) / 1e3
                self.shortest_us[core] = min(self.shortest_us[core], self._last_us[core])
                if now >= end:
                    break
            self._ready.release()

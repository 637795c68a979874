"""Do the cores run at full speed just now? A measurement taken while they do not says nothing about the code.

A virtual machine shares physical cores and their caches with strangers: for seconds at a time everything takes up to
twice as long, and nothing inside the machine says so. Heat does the same. A *witness* computes something of
known length on every core, before and after what is measured. On a host that many share some core is always slow, and
what is delivered there is what they leave: so cores count as disturbed beside what they show while this process rests.

Other processes of this machine are another matter. A witness that wakes up takes the core from them for the
millisecond of its look and notices nothing; but the kernel says how long a thread was kept waiting for its core.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Final, Self, TypeVar

import numpy as np

from agent_sdk import native

T = TypeVar("T")

MOST_CORES: Final = 16
"""Cores looked at, spread over all there are: one thread of this process computes on each."""
SLOW: Final = 1.2
"""Times what it usually shows at rest that the slowest core must show for the cores to count as disturbed."""
REST_S: Final = 0.001
"""What every measurement is preceded by, once the workers of the one before are asleep."""
AWAKE_S: Final = 0.1
"""How long these are waited for at most: ONNX Runtime's look for work for some 50 ms, which is longer than a run."""
ASLEEP: Final = 0.1
"""Up to what part of a core this process may take for its threads to count as asleep."""
LOOKS: Final = 9
"""Looks at cores at rest that a witness begins with."""
KEPT_LOOKS: Final = 99
"""Looks at cores at rest that tell what these usually show: the latest."""
_DATA: Final = np.ones(64 * 1024, dtype=np.float32)
"""Fits into a core's own cache."""


def calm(slowness: float) -> bool:
    """Whether cores so many times as slow as they usually are at rest count as undisturbed."""
    return slowness <= SLOW


def pass_us(seconds: float) -> float:
    """What the last of the passes over the witness's data takes that fit into so many seconds, microseconds."""
    library = native.library()
    assert library is not None
    until = time.monotonic_ns() + int(seconds * 1e9)
    return float(library.hope_pass(_DATA.ctypes.data, _DATA.size, until) / 1e3)


def until_asleep() -> None:
    """Wait until no thread of this process computes: one that looks for more work takes a core from who comes next."""
    until = time.monotonic() + AWAKE_S
    while time.monotonic() < until:
        began, spent = time.perf_counter_ns(), time.process_time_ns()
        time.sleep(REST_S)
        if time.process_time_ns() - spent < ASLEEP * (time.perf_counter_ns() - began):
            return


class Witness:
    """One thread per core that computes on demand. Use it in a ``with`` block.

    Without the native library it looks at no core.

    Attributes:
        shortest_us: per core, the shortest time that the witness took so far.
    """

    def __init__(self) -> None:
        usable = sorted(os.sched_getaffinity(0)) if native.library() is not None else []
        self.cores = usable[:: max(1, -(-len(usable) // MOST_CORES))]
        self.shortest_us = dict.fromkeys(self.cores, float("inf"))
        self._last_us = dict.fromkeys(self.cores, 0.0)
        self._at_rest = deque[Mapping[int, float]](maxlen=KEPT_LOOKS)
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
            for _ in range(LOOKS):
                self.slowness(rest=True)
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

    def slowness(self, *, rest: bool = False) -> float:
        """How slow the slowest core is just now, beside how slow the slowest usually is at rest.

        With ``rest`` the cores are first kept at work for a moment, not left idle: a virtual core that halts may wake
        up beside another stranger.
        """
        look = self._look(REST_S if rest else 0.0)
        if rest:
            self._at_rest.append(look)
        return self._slowest(look) / median(map(self._slowest, self._at_rest)) if self._at_rest else 1.0

    def _slowest(self, look: Mapping[int, float]) -> float:
        return max((us / self.shortest_us[core] for core, us in look.items()), default=1.0)

    def _look(self, seconds: float) -> dict[int, float]:
        self._seconds = seconds
        for start in self._start:
            start.release()
        for _ in self._start:
            self._ready.acquire()
        return dict(self._last_us)

    def kept_waiting(self, call: Callable[[], T]) -> tuple[T, float]:
        """Call, and tell how many times too long it took because a thread of this process had to wait for its core.

        Only for calls whose threads never wait for one another's cores. 1.0 where the kernel does not tell.
        """
        before = self._waits_ns()
        started = time.perf_counter_ns()
        result = call()
        took = time.perf_counter_ns() - started
        after = self._waits_ns()
        longest = max((waited - before.get(thread, 0) for thread, waited in after.items()), default=0)
        return result, took / max(1, took - longest)

    def _waits_ns(self) -> dict[int, int]:
        """How long each thread of this process was ready to run so far, but not running; the witness's own left out.

        These still have to go to sleep when the call begins, and wait for it to make room.
        """
        own = {thread.native_id for thread in self._threads}
        waits = {}
        with suppress(OSError):  # only Linux has it
            for thread in {int(name) for name in os.listdir("/proc/self/task")} - own:
                with suppress(OSError):  # the thread has just ended, or the kernel was built without it
                    waits[thread] = int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1])
        return waits

    def _serve(self, core: int, start: threading.Semaphore) -> None:
        with suppress(OSError):  # a core that is gone: the look then tells of another one, but nobody waits for ever
            os.sched_setaffinity(0, {core})
        while True:
            start.acquire()
            seconds = self._seconds
            if seconds is None:
                return
            self._last_us[core] = pass_us(seconds)
            self.shortest_us[core] = min(self.shortest_us[core], self._last_us[core])
            self._ready.release()

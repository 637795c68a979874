"""Who holds a core, and when: one arbiter per device, for plans' segments and for whatever else computes on it.

Segments enter by the native library (``agent_sdk/native/arbiter.h`` states the rules); what runs outside of lanes holds
resources by ``held``. Where there is no library, everything on a device runs one after the other.
"""

import ctypes
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from time import monotonic, perf_counter_ns
from typing import Final

from agent_sdk.errors import DeviceClosedError, InputError, RunTimeoutError

CLOSED: Final = "the device is closed; open a new one"
BITS: Final = 64
"""Resources that the arbiter tells apart; what a device has beyond that shares bits, and excludes more than it must."""
NO_CORE: Final = -1
SEVERAL_CORES: Final = -2
GLANCE_S: Final = 0.2
"""How long somebody sleeps at most before it looks for signals and for the end of its time."""


class Arbiter:
    """The resources of one device.

    Attributes:
        library: with what lanes run outside the interpreter; None where everything runs in sequence.
        handle: the native arbiter; None likewise.
        hanging: what to say to those who are turned away because a runtime hangs; empty where none does.
        cores: per bit the CPU that it stands for; below 0 where it stands for none, or for several.
    """

    def __init__(self, library: ctypes.CDLL | None) -> None:
        self.library = library
        self.handle: int | None = None
        self.hanging = ""
        self.cores = (ctypes.c_int32 * BITS)(*[NO_CORE] * BITS)
        self._masks: dict[str, int] = {}
        self._bits = 0
        self._naming = threading.Lock()
        self._sequence = threading.Lock()
        self._closed = False
        if library is not None:
            self.handle = library.hope_make_arbiter()
            if not self.handle:
                raise MemoryError("no memory for a device's arbiter")
            weakref.finalize(self, library.hope_free, self.handle).atexit = False
            library.hope_cores(self.handle, ctypes.addressof(self.cores))

    def mask(self, resources: Iterable[str]) -> int:
        """The bits by which resources are claimed."""
        found = 0
        for resource in resources:
            found |= self._masks.get(resource) or self.divide(resource, 1)
        return found

    def divide(self, resource: str, parts: int) -> int:
        """Say into how many parts a resource is held where a part will do; the bits of them all."""
        with self._naming:
            if resource not in self._masks:
                self._masks[resource] = sum(1 << (self._bits + part) % BITS for part in range(parts))
                self._bits += parts
            return self._masks[resource]

    def is_core(self, resource: str, core: int) -> None:
        """Say which CPU a resource is."""
        bit = self.mask([resource]).bit_length() - 1
        self.cores[bit] = core if self.cores[bit] in (NO_CORE, core) else SEVERAL_CORES

    def refusal(self) -> DeviceClosedError:
        return DeviceClosedError(CLOSED if self._closed else self.hanging)

    @property
    def busy(self) -> tuple[str, ...]:
        with self._naming:
            masks = list(self._masks.items())
        held = self.library.hope_busy(self.handle) if self.library is not None else -self._sequence.locked()
        return tuple(resource for resource, mask in masks if held & mask)

    def taken(self, mask: int) -> bool:
        return self.library is not None and bool(mask and self.library.hope_busy(self.handle) & mask)

    @property
    def waiting(self) -> int:
        return self.library.hope_waiting(self.handle) if self.library is not None else 0

    @contextmanager
    def held(self, resources: Iterable[str], *, key: int | None = None, timeout_s: float = -1.0) -> Iterator[None]:
        """Hold resources for the body, all at once, as a segment does; without the library, the whole device.

        Args:
            resources: at least one.
            key: the smallest goes first, equal ones in the order of arrival; None: the time of this call, nanoseconds.
            timeout_s: how long to wait for them; negative: without end.

        Raises:
            DeviceClosedError: the device is closed, or a runtime hangs on one of them.
            RunTimeoutError: others held them all the time.
        """
        end = monotonic() + timeout_s if timeout_s >= 0 else float("inf")
        if self.library is None:
            self._take_all(end)
            try:
                yield
            finally:
                self._sequence.release()
            return
        claim = self.library.hope_make_claim()
        if not claim:
            raise MemoryError("no memory for a claim on a device")
        try:
            self._ask(claim, self.mask(resources), perf_counter_ns() if key is None else check_key(key), end)
            yield
        finally:
            self.library.hope_forgo(self.handle, claim)
            self.library.hope_free(claim)

    def _take_all(self, end: float) -> None:
        while not self._sequence.acquire(timeout=min(GLANCE_S, max(end - monotonic(), 0.0))):
            if self._closed:
                raise self.refusal()
            if monotonic() >= end:
                raise RunTimeoutError("other runs on this device took all of the time allowed")
        if self._closed:
            self._sequence.release()
            raise self.refusal()

    def _ask(self, claim: int, mask: int, key: int, end: float) -> None:
        library = self.library
        assert library is not None
        answer = library.hope_ask(self.handle, claim, mask, key)
        while not answer:
            if monotonic() >= end:
                raise RunTimeoutError("other runs on this device took all of the time allowed")
            # Back in Python a signal's handler runs before the next look, and may raise.
            answer = library.hope_ask_again(claim)
        if answer < 0:
            raise self.refusal()

    def close(self) -> None:
        """Turn away whoever waits, and whoever comes."""
        self._closed = True
        if self.library is not None:
            self.library.hope_shut(self.handle)


class Hold:
    """What a thread holds between two runs: a run leaves it what its last segment held, and its next begins with that.

    Whoever waits gets nothing before the thread has dealt with the end of the run and begun the next, or given it back:
    else both would compute on one core, and the end of the run would wait for the kernel's scheduler.
    """

    def __init__(self, arbiter: Arbiter) -> None:
        self._arbiter = arbiter
        self.mask = ctypes.c_uint64(0)

    def give_back(self) -> None:
        """Hold nothing. Idempotent."""
        if self.mask.value and self._arbiter.library is not None:
            self._arbiter.library.hope_leave(self._arbiter.handle, self.mask.value)
            self.mask.value = 0


def check_key(key: int) -> int:
    """The key itself. Raises InputError where the arbiter cannot hold it."""
    if isinstance(key, bool) or not isinstance(key, int) or not -(2**62) <= key < 2**62:
        raise InputError(
            f"a key is an integer from -2**62 to 2**62 - 1, not {key!r}: nanoseconds of the monotonic clock"
        )
    return key

"""The two ways to carry out a program's lanes: outside the interpreter, or in sequence where there is no library.

Both keep the same record, nanoseconds: per lane how long it stood at the arbiter, and then one reading of the clock at
the start, and after each wait and each call.
"""

import ctypes
import os
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from time import monotonic, monotonic_ns, perf_counter_ns
from typing import Any, Final

import numpy as np

from agent_sdk import native
from agent_sdk.engine.arbiter import Arbiter, Hold
from agent_sdk.engine.code import Code, Instruction, Steps, gone_from
from agent_sdk.engine.program import Work
from agent_sdk.engine.threads import LaneThread
from agent_sdk.errors import RunTimeoutError, SegmentFailedError
from agent_sdk.machine.cores import bind_to

FINISHED: Final = 0xFFFFFFFF
"""Count of finished segments that a lane shows once it runs no more."""
_NEVER_NS: Final = 2**63 - 1
_STOPPED: Final = 1 << 30
"""What a run by one thread returns that was stopped, and in which nothing failed."""
_UNFINISHED: Final = _STOPPED + 1
"""What it returns that waits for long: it holds nothing, and goes on when it is called again."""
_TURNED_AWAY: Final = -(2**63)
"""The status of a step that the arbiter refused."""


def failed(work: Work, error: BaseException) -> BaseException:
    """What is told of work that raised."""
    if not isinstance(error, Exception):
        return error
    told = SegmentFailedError(work.processor, work.index, work.ops, error)
    told.__cause__ = error
    return told


class SequentialLoop:
    """All work in the plan's order, inside the interpreter, with the whole device held."""

    def __init__(self, code: Code, order: Sequence[Work], seats: Sequence[frozenset[int]], arbiter: Arbiter) -> None:
        self._arbiter = arbiter
        self._order = [code[work.lane][work.position] for work in order]
        self._lanes = len(code)
        self._seats = seats
        self._stopped = False

    def alone(self, key: int, *, end: float = inf) -> None:
        """A whole run in the calling thread. Raises what went wrong; nothing where it was stopped.

        After ``end`` (``time.monotonic``) it goes no further: RunTimeoutError.
        """
        self._stopped = False
        asked = perf_counter_ns()
        timeout_s = -1.0 if end == inf else max(end - monotonic(), 0.0)
        with self._arbiter.held(("device",), key=key, timeout_s=timeout_s):
            began = perf_counter_ns()
            self._stamps = [[0 if lane else began - asked, began] for lane in range(self._lanes)]
            before = os.sched_getaffinity(0)
            try:
                self._walk(end)
            finally:
                with suppress(OSError):  # where the thread came from may be gone as well; the kernel has moved it then
                    os.sched_setaffinity(0, before)

    def _walk(self, end: float) -> None:
        there, cores = frozenset[int](), list(self._seats)
        for one in self._order:
            if self._stopped:
                return
            if monotonic() > end:
                raise RunTimeoutError(f"the run took longer than allowed; '{one.work.processor}' was next")
            wanted = cores[one.work.lane] = one.work.cores if one.work.moves else cores[one.work.lane]
            try:
                if wanted != there:
                    bind_to(wanted)
                there = wanted or there
                self._do(one)
            except Exception as error:
                raise failed(one.work, error) from error

    def _do(self, one: Instruction) -> None:
        stamp = self._stamps[one.work.lane].append
        if one.work.comes_late:
            stamp(perf_counter_ns())
        if one.call:
            one.call()
            stamp(perf_counter_ns())

    def stop(self) -> None:
        self._stopped = True

    def stamps(self) -> list[list[int]]:
        return self._stamps


class NativeLoop:
    """Lanes outside the interpreter: the code as steps for ``lanes.c``. What only Python can do is called back.

    Args:
        seats: per lane the CPUs that its thread is bound to first.
        cores: where threads may go that keep losing their CPUs to others; empty: they stay.
        workers: per lane the CPUs of other threads that compute with its own, and wait for it. Each is bound to one,
            but for those in the lane's seat, among which all may move.

    Attributes:
        beside: per lane where its thread may go: not where it would compete with who waits for it.
    """

    def __init__(
        self,
        code: Code,
        seats: Sequence[frozenset[int]],
        arbiter: Arbiter,
        cores: frozenset[int] = frozenset(),
        workers: Sequence[frozenset[int]] = (),
    ) -> None:
        library = arbiter.library
        assert library is not None
        self._library = library
        self._alone = library.hope_alone
        workers = workers or [frozenset()] * len(seats)
        self.beside = [cores - (own - seat) for own, seat in zip(workers, seats, strict=True)]
        self._masks = [(_mask(seat), _mask(free)) for seat, free in zip(seats, self.beside, strict=True)]
        self._lanes = len(code)
        self._run = library.hope_open(arbiter.handle, self._lanes)
        if not self._run:
            raise MemoryError("no memory for a run's counters")
        weakref.finalize(self, library.hope_close, self._run).atexit = False
        steps = Steps(code, arbiter)
        self._told = steps.told
        self._errors = steps.errors
        self._keep: list[Any] = [arbiter, steps.keep]
        self._offsets: Sequence[np.ndarray] = ()
        self._clock: list[np.ndarray] = []
        self._unseated = [steps.tell(row[0].work, gone_from(seat)) for row, seat in zip(code, seats, strict=True)]
        for lane, row in enumerate(steps.rows):
            array = (native.Step * len(row))(*row)
            self._clock.append(np.zeros(1 + sum(step.operation == native.STAMP for step in row), np.int64))
            self._keep.append(array)
            clock = self._clock[lane].ctypes.data
            masks, gang = self._masks[lane], bool(workers[lane])
            library.hope_lane(self._run, lane, array, len(row), clock, *masks, gang, self._unseated[lane])

    def _order(self, offsets: Sequence[np.ndarray]) -> None:
        self._offsets = offsets
        for lane in range(self._lanes):
            self._library.hope_keys(self._run, lane, offsets[lane].ctypes.data if offsets else None)

    def begin(self, key: int, offsets: Sequence[np.ndarray] = (), *, occasions: int = 0) -> bool:
        """Start a run, whose lanes are walked by ``drive`` and ``hand_out``; whether their threads step aside in it.

        Args:
            key: where its segments stand at the arbiter: the smallest goes first.
            offsets: what each piece of work of each lane adds to that.
            occasions: ``MEANWHILE`` where there is something to do then.
        """
        self._errors.clear()
        if offsets is not self._offsets:
            self._order(offsets)
        return bool(self._library.hope_begin(self._run, occasions, key))

    def drive(self, lane: int, *, interruptible: bool) -> None:
        """Walk a lane to its end, or until the run is stopped; what fails stops it and is kept."""
        # Back in Python a signal's handler runs before the lane waits on.
        while self._library.hope_drive(self._run, lane, interruptible):
            pass

    def hand_out(self, threads: Mapping[int, LaneThread]) -> None:
        """Have lanes, once in a run, walked by threads that rest, from their seats on."""
        count, rests = len(threads), [thread.rest for thread in threads.values()]
        self._library.hope_hand_out(
            self._run, count, (ctypes.c_void_p * count)(*rests), (ctypes.c_int32 * count)(*threads)
        )

    def alone(
        self,
        key: int,
        offsets: Sequence[np.ndarray] = (),
        *,
        occasions: int = 0,
        interruptible: bool = False,
        hold: Hold | None = None,
    ) -> None:
        """A whole run of one lane in the calling thread, as ``begin`` and ``drive`` would make it.

        It begins with what the thread holds, and leaves it what it held at its end. Raises what went wrong first, or
        KeyboardInterrupt where it was stopped.
        """
        if self._errors:
            self._errors.clear()
        if offsets is not self._offsets:
            self._order(offsets)
        held = None if hold is None else ctypes.addressof(hold.mask)
        failures = self._alone(self._run, occasions, key, interruptible, False, held)
        while failures == _UNFINISHED:  # a signal's handler runs before the lane waits on
            failures = self._alone(self._run, occasions, key, interruptible, True, held)
        if failures < 0:
            work, explain = self._told[self._unseated[0]]
            raise failed(work, explain(-failures))
        if failures:
            raise KeyboardInterrupt if failures == _STOPPED else self.failures()[0]

    def wait(self, timeout_s: float = -1) -> bool:
        """Sleep until the lanes that were handed out run no more; False when ``timeout_s`` is over, if not negative.

        May be left by what a signal's handler raises.
        """
        until = _NEVER_NS if timeout_s < 0 else monotonic_ns() + int(timeout_s * 1e9)
        # Back in Python a signal's handler runs before the next wait, and may raise.
        while (found := self._library.hope_await(self._run, until)) < 0:
            pass
        return bool(found)

    def leave_behind(self, lane: int) -> bool:
        """Wait no more for a lane that was handed out; False where it runs no more.

        Who wants what it holds is turned away, until its runtime comes back.
        """
        return bool(self._library.hope_leave_behind(self._run, lane))

    def stop(self) -> None:
        self._library.hope_stop(self._run)

    @property
    def stopped(self) -> bool:
        return bool(self._library.hope_stopped(self._run))

    def done(self, lane: int) -> int:
        """How many segments of a lane are finished; ``FINISHED`` when a resting thread has walked it."""
        count: int = self._library.hope_done(self._run, lane)
        return count

    def failures(self) -> list[BaseException]:
        """What went wrong in segments, first things first."""
        found = []
        answer = (ctypes.c_int64 * 3)()
        for lane in range(self._lanes):
            if self._library.hope_failure(self._run, lane, answer):
                order, index, status = answer
                work, explain = self._told[index]
                raised = self._errors.pop(index, None) or explain(status)
                found.append((order, raised if status == _TURNED_AWAY else failed(work, raised)))
        return [error for _, error in sorted(found, key=lambda pair: pair[0])]

    def stamps(self) -> list[list[int]]:
        return [clock.tolist() for clock in self._clock]


def _mask(cores: frozenset[int]) -> bytes | None:
    return sum(1 << core for core in cores).to_bytes(native.MASK_BYTES, "little") if cores else None

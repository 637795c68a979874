"""The two ways to carry out a program's lanes: outside the interpreter, and inside it where no library can be built.

Both walk the same code and keep the same record: per lane one reading of the clock at the start, and after each wait,
each preparation and each call.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import monotonic, monotonic_ns, perf_counter_ns
from typing import Any, Final

import numpy as np
from typing_extensions import override

from agent_sdk import native
from agent_sdk.device.cores import bind_to, bound_to, gone
from agent_sdk.engine.errors import SegmentFailedError
from agent_sdk.engine.program import Work
from agent_sdk.engine.queue import Queue
from agent_sdk.engine.wait import FINISHED, Progress
from agent_sdk.runtimes.base import Bound, BoundCall, NativeCall, ProcessorLost

_NEVER_NS: Final = 2**63 - 1
_FAILED: Final = 1
"""What a step returns that Python makes, when it has raised."""


@dataclass(frozen=True)
class Instruction:
    """A piece of work, ready to be done.

    Attributes:
        work: which.
        cores: the CPUs that the thread moves to first; empty where it stays.
        copies: what brings tensors from one memory to another, one after the other.
        call: the launch, if it computes.
        check: a look at what it made, in the first run.
    """

    work: Work
    cores: frozenset[int]
    copies: tuple[Bound, ...]
    call: BoundCall | None
    check: Callable[[], None] | None


Code = Sequence[Sequence[Instruction]]


class Loop(ABC):
    """The lanes of one program; one run at a time, each lane of it driven by one thread."""

    @abstractmethod
    def begin(self, *, first: bool) -> None:
        """Start a run; in the first one what segments make is looked at."""

    @abstractmethod
    def drive(self, lane: int, *, interruptible: bool) -> None:
        """Walk a lane to its end, or until the run is stopped; what fails stops it and is kept.

        ``interruptible`` says that this is the main thread and that Ctrl-C stops the run.
        """

    @abstractmethod
    def hand_out(self, queues: Mapping[int, Queue], driven: Callable[[int], None]) -> None:
        """Have lanes driven by queues' threads, which have nothing else to do, from their seats on.

        A lane runs no more before ``driven`` is called with it in that thread.
        """

    @abstractmethod
    def alone(self, *, first: bool) -> None:
        """A whole run of the only lane in the calling thread, bound to the lane's seat meanwhile.

        Nothing stops it. Raises what went wrong, also where the thread may not run there.
        """

    @abstractmethod
    def finish(self, lane: int) -> None:
        """Say that a lane runs no more."""

    @abstractmethod
    def wait(self, lanes: Sequence[int], timeout_s: float = -1) -> bool:
        """For the caller: sleep until lanes run no more; False when ``timeout_s`` is over, if it is not negative.

        May be left by what a signal's handler raises.
        """

    @abstractmethod
    def stop(self) -> None:
        """Have every lane end at its next segment."""

    @property
    @abstractmethod
    def stopped(self) -> bool:
        """Whether that was asked for."""

    @abstractmethod
    def done(self, lane: int) -> int:
        """How many segments of a lane are finished; ``FINISHED`` when it runs no more."""

    @abstractmethod
    def failures(self) -> list[BaseException]:
        """What went wrong in segments, first things first."""

    @abstractmethod
    def stamps(self) -> list[Sequence[int]]:
        """Per lane the readings of the clock, nanoseconds."""


def loop_for(code: Code, seats: Sequence[frozenset[int]], library: ctypes.CDLL | None) -> Loop:
    """The native loop where there is a library for it. ``seats``: where each lane begins; nothing where it is."""
    return PythonLoop(code, seats) if library is None else NativeLoop(code, library, seats)


def failed(work: Work, error: BaseException) -> BaseException:
    """What is told of work that raised."""
    if not isinstance(error, Exception):
        return error
    told = SegmentFailedError(work.processor, work.index, work.ops, error)
    told.__cause__ = error
    return told


class PythonLoop(Loop):
    """Lanes inside the interpreter."""

    def __init__(self, code: Code, seats: Sequence[frozenset[int]]) -> None:
        self._code = code
        self._seats = seats

    @override
    def begin(self, *, first: bool) -> None:
        self._first = first
        self._progress = Progress(len(self._code))
        self._stamps: list[list[int]] = [[] for _ in self._code]
        self._failures: list[BaseException] = []

    @override
    def drive(self, lane: int, *, interruptible: bool) -> None:
        progress, now, stamp = self._progress, perf_counter_ns, self._stamps[lane].append
        stamp(now())
        for count, one in enumerate(self._code[lane], 1):
            try:
                if one.cores:
                    bind_to(one.cores)
                if one.work.waits:
                    for wait in one.work.waits:
                        progress.wait(lane, wait.lane, wait.count)
                    stamp(now())
                if progress.stopped:
                    return
                if one.copies or (one.cores and not one.work.waits):
                    for copy in one.copies:
                        copy()
                    stamp(now())
                if one.call:
                    one.call()
                if self._first and one.check:
                    one.check()
            except BaseException as error:  # noqa: BLE001  told to the caller of the run
                self._failures.append(failed(one.work, error))
                progress.stop()
                return
            if one.call:
                stamp(now())
            progress.finish(lane, count)

    @override
    def hand_out(self, queues: Mapping[int, Queue], driven: Callable[[int], None]) -> None:
        for lane, queue in queues.items():
            queue.submit(partial(self._serve, lane, driven))

    def _serve(self, lane: int, driven: Callable[[int], None]) -> None:
        try:
            bind_to(self._seats[lane])
        except ProcessorLost as error:
            self._failures.append(failed(self._code[lane][0].work, error))
            self._progress.stop()
        self.drive(lane, interruptible=False)
        self.finish(lane)
        driven(lane)

    @override
    def alone(self, *, first: bool) -> None:
        self.begin(first=first)
        try:
            with bound_to(self._seats[0]):
                self.drive(0, interruptible=False)
        except ProcessorLost as error:
            raise failed(self._code[0][0].work, error) from None
        if self._failures:
            raise self._failures[0]

    @override
    def finish(self, lane: int) -> None:
        self._progress.finish(lane, FINISHED)

    @override
    def wait(self, lanes: Sequence[int], timeout_s: float = -1) -> bool:
        end = monotonic() + timeout_s
        return all(
            self._progress.wait(Progress.CALLER, lane, FINISHED, -1 if timeout_s < 0 else max(end - monotonic(), 0.0))
            for lane in lanes
        )

    @override
    def stop(self) -> None:
        self._progress.stop()

    @property
    @override
    def stopped(self) -> bool:
        return self._progress.stopped

    @override
    def done(self, lane: int) -> int:
        return self._progress.done[lane]

    @override
    def failures(self) -> list[BaseException]:
        return self._failures

    @override
    def stamps(self) -> list[Sequence[int]]:
        return [*self._stamps]


class NativeLoop(Loop):
    """Lanes outside the interpreter: the code as steps for ``lanes.c``. What only Python can do is called back."""

    def __init__(self, code: Code, library: ctypes.CDLL, seats: Sequence[frozenset[int]]) -> None:
        self._library = library
        self._alone = library.hope_alone
        self._masks = [_mask(seat) for seat in seats]
        self._lanes = len(code)
        self._run = library.hope_open(self._lanes)
        if not self._run:
            raise MemoryError("no memory for a run's counters")
        weakref.finalize(self, library.hope_close, self._run).atexit = False
        steps = _Steps(code)
        self._told = steps.told
        self._errors = steps.errors
        self._keep: list[Any] = [steps.keep]
        self._clock: list[np.ndarray] = []
        self._unseated = [steps.tell(row[0].work, _gone_from(seat)) for row, seat in zip(code, seats, strict=True)]
        for lane, row in enumerate(steps.rows):
            array = (native.Step * len(row))(*row)
            self._clock.append(np.zeros(sum(step.operation == native.STAMP for step in row), np.int64))
            self._keep.append(array)
            clock = self._clock[lane].ctypes.data
            library.hope_lane(self._run, lane, array, len(row), clock, self._masks[lane], self._unseated[lane])

    @override
    def begin(self, *, first: bool) -> None:
        self._errors.clear()
        self._library.hope_begin(self._run, first)

    @override
    def drive(self, lane: int, *, interruptible: bool) -> None:
        self._library.hope_drive(self._run, lane, interruptible)

    @override
    def hand_out(self, queues: Mapping[int, Queue], driven: Callable[[int], None]) -> None:
        for lane, queue in queues.items():
            queue.follow(partial(driven, lane))
        count, rests = len(queues), [queue.rest for queue in queues.values()]
        self._library.hope_hand_out(
            self._run, count, (ctypes.c_void_p * count)(*rests), (ctypes.c_int32 * count)(*queues)
        )

    @override
    def alone(self, *, first: bool) -> None:
        failures = self._alone(self._run, first, self._masks[0])
        if failures < 0:
            work, explain = self._told[self._unseated[0]]
            raise failed(work, explain(-failures))
        if failures:
            raise self.failures()[0]

    @override
    def finish(self, lane: int) -> None:
        self._library.hope_finish(self._run, lane)

    @override
    def wait(self, lanes: Sequence[int], timeout_s: float = -1) -> bool:
        array = (ctypes.c_int32 * len(lanes))(*lanes)
        until = _NEVER_NS if timeout_s < 0 else monotonic_ns() + int(timeout_s * 1e9)
        # Back in Python a signal's handler runs before the next wait, and may raise.
        while (found := self._library.hope_await(self._run, len(lanes), array, until)) < 0:
            pass
        return bool(found)

    @override
    def stop(self) -> None:
        self._library.hope_stop(self._run)

    @property
    @override
    def stopped(self) -> bool:
        return bool(self._library.hope_stopped(self._run))

    @override
    def done(self, lane: int) -> int:
        count: int = self._library.hope_done(self._run, lane)
        return FINISHED if count == 0xFFFFFFFF else count

    @override
    def failures(self) -> list[BaseException]:
        found = []
        answer = (ctypes.c_int64 * 3)()
        for lane in range(self._lanes):
            if self._library.hope_failure(self._run, lane, answer):
                order, index, status = answer
                segment, explain = self._told[index]
                raised = self._errors.pop(index, None)
                found.append((order, failed(segment, raised or explain(status))))
        return [error for _, error in sorted(found, key=lambda pair: pair[0])]

    @override
    def stamps(self) -> list[Sequence[int]]:
        return [clock.tolist() for clock in self._clock]


def _mask(cores: frozenset[int]) -> bytes | None:
    """As C's ``cpu_set_t``; None for no cores."""
    return sum(1 << core for core in cores).to_bytes(native.MASK_BYTES, "little") if cores else None


def _gone_from(cores: frozenset[int]) -> Callable[[int], BaseException]:
    """What a thread's failure to move there means."""
    return lambda status: gone(cores, os.strerror(status))


class _Steps:
    """Code as the steps of ``lanes.c``.

    Attributes:
        rows: per lane.
        told: what a failed step belongs to, and what its status means.
        errors: what steps made by Python have raised in this run.
        keep: what the steps point to.
    """

    def __init__(self, code: Code) -> None:
        self.told: list[tuple[Work, Callable[[int], BaseException]]] = []
        self.errors: dict[int, BaseException] = {}
        self.keep: list[Any] = []
        calls: dict[int, Callable[[], Any]] = {}
        errors = self.errors  # nothing below may refer to this object, which only the garbage collector could free then

        def call_back(index: int) -> int:
            try:
                calls[index]()
            except BaseException as error:  # noqa: BLE001  told to the caller of the run
                errors[index] = error
                return _FAILED
            return 0

        self._calls = calls
        called_back = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_ssize_t)(call_back)
        self._call_back = native.address(called_back)
        self.keep += [called_back, calls]
        self.rows = [self._row(row) for row in code]

    def _row(self, row: Sequence[Instruction]) -> list[native.Step]:
        steps = [native.Step(native.STAMP)]
        for count, one in enumerate(row, 1):
            waits, lent, prepared = one.work.waits, one.work.lent, bool(one.copies)
            if one.cores:
                steps.append(self._bind(one))
                prepared |= not waits
            if waits:
                if lent:
                    steps.append(native.Step(native.LENT, a=lent.lane, b=lent.count))
                steps += [native.Step(native.WAIT, a=wait.lane, b=wait.count) for wait in waits if wait != lent]
                steps.append(native.Step(native.STAMP))
            if prepared:
                steps += [step for copy in one.copies for step in self._call(one.work, copy)]
                steps.append(native.Step(native.STAMP))
            if one.call:
                steps += self._call(one.work, one.call)
                if one.check:
                    steps.append(self._python(one.work, one.check, native.CALL_ONCE))
                steps.append(native.Step(native.STAMP))
            steps.append(native.Step(native.DONE, a=count))
        return steps

    def tell(self, work: Work, explain: Callable[[int], BaseException]) -> int:
        """The index by which a failure of this work is told."""
        self.told.append((work, explain))
        return len(self.told) - 1

    def _bind(self, one: Instruction) -> native.Step:
        bits = sum(1 << core for core in one.cores)  # in words of 64 bits, least significant bytes first
        size = (max(one.cores) // 64 + 1) * 8
        mask = ctypes.create_string_buffer(bits.to_bytes(size, "little"), size)
        self.keep.append(mask)
        index = self.tell(one.work, _gone_from(one.cores))
        return native.Step(native.BIND, index, ctypes.addressof(mask), len(mask))

    def _python(self, work: Work, call: Callable[[], Any], operation: int = native.CALL) -> native.Step:
        index = self.tell(work, lambda status: RuntimeError(f"a step made by Python returned {status}"))
        self._calls[index] = call
        return native.Step(operation, index, function=self._call_back, arguments=(index,))

    def _call(self, work: Work, bound: Bound) -> list[native.Step]:
        if not bound.native:
            return [self._python(work, bound)]
        return [self._native(work, bound, place, call) for place, call in enumerate(bound.native)]

    def _native(self, work: Work, bound: Bound, place: int, call: NativeCall) -> native.Step:
        index = self.tell(work, lambda status: bound.failure(place, status))
        operation = native.CALL_POINTER if call.returns_pointer else native.CALL_AGAIN if call.again else native.CALL
        return native.Step(operation, index, a=call.again, function=call.function, arguments=call.arguments)

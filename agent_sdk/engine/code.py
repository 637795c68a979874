"""What a lane does, one instruction per piece of work, and the same as steps of ``lanes.c``."""

import ctypes
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agent_sdk import native
from agent_sdk.engine.arbiter import Arbiter
from agent_sdk.engine.program import Work
from agent_sdk.machine.cores import gone
from agent_sdk.runtimes.base import Bound, NativeCall

FAILED: Final = 1
"""What a step returns that Python makes, when it has raised."""
MEANWHILE: Final = 1
"""The occasion of a run with something to do while devices compute."""


@dataclass(frozen=True)
class Instruction:
    """A piece of work, ready to be done.

    Attributes:
        call: what does it; None where it is only an order of things.
        meanwhile: what may be done while a device computes it.
    """

    work: Work
    call: Bound | None = None
    meanwhile: Callable[[], None] | None = None


Code = Sequence[Sequence[Instruction]]


def gone_from(cores: frozenset[int]) -> Callable[[int], BaseException]:
    """What a thread's failure to move there means."""
    return lambda status: gone(cores, os.strerror(status))


class Steps:
    """Code as the steps of ``lanes.c``.

    Attributes:
        told: what a failed step belongs to, and what its status means.
        errors: what steps made by Python have raised in this run.
        keep: what the steps point to.
    """

    def __init__(self, code: Code, arbiter: Arbiter) -> None:
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
                return FAILED
            return 0

        self._calls = calls
        self._refused = lambda _, refusal=arbiter.refusal: refusal()
        self._far = {one.work.lane for row in code for one in row if one.work.far}
        called_back = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_ssize_t)(call_back)
        self._call_back = native.address(called_back)
        self.keep += [called_back, calls]
        self.rows = [self._row(row, [arbiter.mask(one.work.resources) for one in row]) for row in code]

    def _row(self, row: Sequence[Instruction], masks: Sequence[int]) -> list[native.Step]:
        steps = [native.Step(native.STAMP)]
        for position, one in enumerate(row):
            mask, spare = masks[position], masks[position] & ~(masks[position + 1] if position + 1 < len(row) else 0)
            if one.work.moves:
                steps.append(self._bind(one.work))
            steps += self._enter(one.work, mask, position)
            if one.work.comes_late:
                steps.append(native.Step(native.STAMP))
            if one.call:
                steps += self._call(one.work, one.call, one.meanwhile)
                steps.append(native.Step(native.STAMP))
            steps.append(native.Step(native.DONE, a=position + 1, b=_signed(spare)))
        return steps

    def _enter(self, work: Work, mask: int, position: int) -> list[native.Step]:
        """Wait for data, then take the resources; the last wait's end claims them."""
        index = self.tell(work, self._refused)
        either = work.either or None
        lent = [native.Step(native.LENT, index, a=work.lent.lane, b=work.lent.count)] if work.lent else []
        waits = [native.Step(native.WAIT, index, a=one.lane, b=one.count) for one in work.waits if one != work.lent]
        steps = [*lent, *waits] if work.waits else []
        for step in steps:
            far = not self._far.isdisjoint((work.lane, step.a)) or None
            step.arguments[:5] = mask or None, step is steps[-1] or None, position or None, either, far
        if mask:
            steps.append(native.Step(native.ENTER, index, a=_signed(mask), b=position, arguments=(either,)))
        return steps

    def tell(self, work: Work, explain: Callable[[int], BaseException]) -> int:
        """The index by which a failure of this work is told."""
        self.told.append((work, explain))
        return len(self.told) - 1

    def _bind(self, work: Work) -> native.Step:
        bits = sum(1 << core for core in work.cores)  # in words of 64 bits, least significant bytes first
        size = (max(work.cores) // 64 + 1) * 8
        mask = ctypes.create_string_buffer(bits.to_bytes(size, "little"), size)
        self.keep.append(mask)
        index = self.tell(work, gone_from(work.cores))
        return native.Step(native.BIND, index, ctypes.addressof(mask), len(mask))

    def _python(self, work: Work, call: Callable[[], Any], occasions: int = 0) -> native.Step:
        operation = native.CALL_IF if occasions else native.CALL
        index = self.tell(work, lambda status: RuntimeError(f"a step made by Python returned {status}"))
        self._calls[index] = call
        return native.Step(operation, index, a=occasions, function=self._call_back, arguments=(index,))

    def _call(self, work: Work, bound: Bound, meanwhile: Callable[[], None] | None) -> list[native.Step]:
        if not bound.native:
            return [self._python(work, bound)]
        steps = [self._native(work, bound, place, call) for place, call in enumerate(bound.native)]
        if meanwhile and bound.launched:
            for behind, step in enumerate(steps[bound.launched :], 1):
                step.b += step.b >= behind  # what it ends stands before the launch
            steps.insert(bound.launched, self._python(work, meanwhile, MEANWHILE))
        return steps

    def _native(self, work: Work, bound: Bound, place: int, call: NativeCall) -> native.Step:
        index = self.tell(work, lambda status: bound.failure(place, status))
        operation = native.CALL_POINTER if call.returns_pointer else native.CALL_AGAIN if call.again else native.CALL
        return native.Step(
            operation, index, a=call.again, b=call.after, function=call.function, arguments=call.arguments
        )


def _signed(mask: int) -> int:
    """64 bits as C's signed type holds them."""
    return mask - (1 << 64) if mask >> 63 else mask

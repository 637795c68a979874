"""Whether the floats that enter a run and leave it are ordinary: lanes look at them where they read and make them.

Where a processor is trusted with ordinary values only (``runtimes/trust.py``), its part in a run whose floats are not
is not believed. The look is a step of the lane, without the interpreter, at what the caches hold.
"""

from collections.abc import Iterable, Mapping
from ctypes import addressof

import numpy as np
from typing_extensions import override

from agent_sdk import native
from agent_sdk.engine.ports import Feeds, Outputs
from agent_sdk.engine.program import Program, ProgramSegment
from agent_sdk.errors import ProcessorError
from agent_sdk.model.bounds import ordinary
from agent_sdk.runtimes.base import Bound, BoundCall, NativeCall


class Look:
    """A look at an array of floats, to be made in each run."""

    def __init__(self, array: np.ndarray) -> None:
        library = native.library()
        self._seen = native.Look(count=array.size, bytes=array.itemsize)
        self.native = (
            () if library is None else (NativeCall(native.address(library.hope_look), (addressof(self._seen),)),)
        )
        self.at(array)

    def at(self, array: np.ndarray) -> None:
        """Look at another array, of the same shape and type, from now on."""
        self._array = array
        self._seen.floats = array.ctypes.data

    def __call__(self) -> None:
        self._seen.odd = not ordinary(self._array)

    @property
    def odd(self) -> bool:
        return bool(self._seen.odd)


class Looking(Bound):
    """Something to be done, with looks at what it reads and at what it makes."""

    def __init__(self, before: Iterable[Look], call: Bound, after: Iterable[Look]) -> None:
        self._before, self._call, self._after = tuple(before), call, tuple(after)
        first, last = ([step for look in looks for step in look.native] for looks in (self._before, self._after))
        self.native = (*first, *call.native, *last) if call.native else ()
        self.launched = len(first) + call.launched if call.launched else 0

    @override
    def __call__(self) -> None:
        for look in self._before:
            look()
        self._call()
        for look in self._after:
            look()

    @override
    def failure(self, place: int, status: int) -> ProcessorError:
        return self._call.failure(place - len(self._before), status)


class Looks:
    """All looks of one flight: at graph inputs of floats and at graph outputs.

    Args:
        read: by input, who reads it on the host first, and the buffer there.
        made: by output that a segment makes on the host, the buffer.
        calls: the segments' calls, of which some look at what stands in a memory of their own.
    """

    def __init__(
        self,
        program: Program,
        read: Mapping[str, tuple[ProgramSegment, np.ndarray]],
        made: Mapping[str, np.ndarray],
        calls: Iterable[BoundCall],
    ) -> None:
        self._looking = [call for call in calls if call.looked and program.trusting]
        seen = frozenset[str]().union(*(call.looked for call in self._looking))
        come = [name for name in program.model.guard.floats if program.trusting]
        gone = [name for name in program.model.held if program.trusting]
        self._read = {name: (read[name][0], Look(read[name][1])) for name in come if name in read}
        self._made = {name: Look(made[name]) for name in gone if name in made and made[name].dtype.kind == "f"}
        self._all = [*(look for _, look in self._read.values()), *self._made.values()]
        self._come = [name for name in come if name not in read and name not in seen]
        self._gone = [name for name in gone if name not in made and name not in seen]
        self._others_odd = False

    def around(self, segment: ProgramSegment, call: Bound) -> Bound:
        before = [look for first, look in self._read.values() if first is segment]
        after = [look for name, look in self._made.items() if name in segment.segment.exports]
        return Looking(before, call, after) if before or after else call

    def moved(self, name: str, array: np.ndarray) -> None:
        """An input is read from another array from now on."""
        if name in self._read:
            self._read[name][1].at(array)

    def at_others(self, feeds: Feeds, outputs: Outputs) -> None:
        """Look at what no lane and no call sees, because it stands on another machine."""
        if self._come or self._gone:
            come, gone = (feeds[name] for name in self._come), (outputs[name] for name in self._gone)
            self._others_odd = not ordinary(*come, *gone)

    @property
    def odd(self) -> bool:
        return self._others_odd or any(look.odd for look in self._all) or any(call.odd for call in self._looking)

"""A program compiled: one executable per segment. What a run writes into belongs to its flight (``flight.py``)."""

import os
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from agent_sdk import native
from agent_sdk.engine.program import Copy, Program, ProgramSegment, Work, memory_of
from agent_sdk.errors import WrongOutput
from agent_sdk.forking import Forks, keep, watch_forks
from agent_sdk.machine.cores import bound_to
from agent_sdk.runtimes.base import Executable, Processor
from hope_schema import TensorType

PROMPT_NS: Final = 100_000
"""The kernel's slices of a gang's workers, as of lanes' threads (``lanes.c``)."""


class Compiled(Forks):
    """The executables of one program.

    Attributes:
        executables: the compiled segments, by index; empty once closed.
        changes: changes of layout, by who makes them, of what type, and whether to the plain one.

    Raises ProcessorError when a processor refuses a segment; what was compiled before is freed.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.executables: list[Executable] = []
        self.changes: dict[tuple[str, TensorType, bool], Executable] = {}
        # Whatever nobody holds any more is freed as if it had been closed.
        self.close = weakref.finalize(self, _close_all, self.executables, self.changes, os.getpid())
        watch_forks(self)
        try:
            for segment in program.segments:
                processor = program.processors[segment.processor]
                with bound_to(_near(processor)), _prompt():
                    executable = processor.compile(segment.segment)
                self.executables.append(executable)
                _check_types(program, segment, executable)
            for copy in (work for work in program.work if isinstance(work, Copy)):
                self.change(copy)
        except BaseException:
            self.close()
            raise

    def change(self, copy: Copy) -> Executable | None:
        """What changes a layout, compiled once for all tensors of a type; None where a copy does not."""
        if copy.changer is None:
            return None
        kind = self.program.graph.tensor[copy.move.tensor].type
        outwards = memory_of(copy.move.target) == copy.move.target
        key = (copy.changer.id, kind, outwards)
        if key not in self.changes:
            made = copy.changer.conversion(kind, outwards=outwards)
            if made is None:
                raise WrongOutput(f"'{copy.changer.id}' has no layout of its own for {kind}")
            self.changes[key] = made
        return self.changes[key]

    def types(self, work: Work) -> Mapping[str, TensorType]:
        """The physical types of what a piece of work reads and writes; of a copy, of what it makes."""
        if isinstance(work, Copy):
            change = self.change(work)
            tensor = work.move.tensor
            return {tensor: change.output_types["y"] if change else self.program.graph.tensor[tensor].type}
        executable = self.executables[work.index]
        return {**executable.input_types, **executable.output_types}

    def in_child(self) -> None:
        keep([*self.executables, *self.changes.values()])


@cache
def memory_nodes() -> int:
    """How many parts this machine's memory has that are not equally near to all cores."""
    return len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))


def _near(processor: Processor) -> frozenset[int]:
    """Where to compile for a processor, so that the weights a runtime packs stand in its cores' own memory."""
    return processor.caller_cores & os.sched_getaffinity(0) if memory_nodes() > 1 else frozenset()


@contextmanager
def _prompt() -> Iterator[None]:
    """Threads that are started meanwhile, a gang's workers, come at once when they wake, as lanes' threads do."""
    library = native.library()
    if library is None:
        yield
        return
    library.hope_slices(PROMPT_NS)
    try:
        yield
    finally:
        library.hope_slices(0)


def _check_types(program: Program, segment: ProgramSegment, executable: Executable) -> None:
    """Refuse an executable that does not make what the graph declares."""
    for name in segment.segment.outputs:
        made, declared = executable.output_types.get(name), program.graph.tensor[name].type
        if made is None or (name in segment.segment.exports and made != declared):
            raise WrongOutput(f"'{segment.processor}' makes {made or 'nothing'} of '{name}', the graph says {declared}")


def _close_all(executables: list[Executable], changes: dict[Any, Executable], process: int) -> None:
    if process == os.getpid():
        for executable in (*executables, *changes.values()):
            executable.close()
        executables.clear()
        changes.clear()

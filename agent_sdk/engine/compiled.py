"""A program compiled: one executable per segment. What a run writes into belongs to its flight (``flight.py``)."""

from __future__ import annotations

import os
import weakref
from functools import cache
from pathlib import Path

from agent_sdk.engine.program import Program, ProgramSegment
from agent_sdk.errors import WrongOutput
from agent_sdk.forking import Forks, keep, watch_forks
from agent_sdk.machine.cores import bound_to
from agent_sdk.runtimes.base import Executable, Processor


class Compiled(Forks):
    """The executables of one program.

    Attributes:
        program: what was compiled.
        executables: the compiled segments, by index; empty once closed.

    Raises ProcessorError when a processor refuses a segment; what was compiled before is freed.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.executables: list[Executable] = []
        # Whatever nobody holds any more is freed as if it had been closed.
        self.close = weakref.finalize(self, _close_all, self.executables, os.getpid())
        watch_forks(self)
        try:
            for segment in program.segments:
                processor = program.processors[segment.processor]
                with bound_to(_near(processor)):
                    executable = processor.compile(segment.segment)
                self.executables.append(executable)
                _check_types(program, segment, executable)
        except BaseException:
            self.close()
            raise

    def in_child(self) -> None:
        """What is compiled stays."""
        keep(self.executables)


@cache
def memory_nodes() -> int:
    """How many parts this machine's memory has that are not equally near to all cores."""
    return len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))


def _near(processor: Processor) -> frozenset[int]:
    """Where to compile for a processor, so that the weights a runtime packs stand in its cores' own memory."""
    return processor.caller_cores & os.sched_getaffinity(0) if memory_nodes() > 1 else frozenset()


def _check_types(program: Program, segment: ProgramSegment, executable: Executable) -> None:
    """Refuse an executable that does not make what the graph declares."""
    for name in segment.segment.outputs:
        made, declared = executable.output_types.get(name), program.graph.tensor[name].type
        if made is None or (name in segment.segment.exports and made != declared):
            raise WrongOutput(f"'{segment.processor}' makes {made or 'nothing'} of '{name}', the graph says {declared}")


def _close_all(executables: list[Executable], process: int) -> None:
    if process == os.getpid():
        for executable in executables:
            executable.close()
        executables.clear()

"""What a dependency across lanes costs: how long after one lane has counted another one that waits for it goes on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from typing import Final

from agent_sdk import native
from agent_sdk.engine import Event, Work
from agent_sdk.engine.arbiter import Arbiter
from agent_sdk.engine.code import Instruction
from agent_sdk.engine.interrupt import DeferredInterrupts
from agent_sdk.engine.lanes import NativeLoop
from agent_sdk.errors import ProcessorLost
from agent_sdk.machine.cores import bind_to, bound_to
from agent_sdk.machine.timing import summarise
from agent_sdk.runtimes.base import Processor

HANDOVERS: Final = 64


def handover_us(processors: Sequence[Processor]) -> float:
    """What it takes that a lane notices what another one has finished, microseconds; zero where one thread serves all.

    Two lanes of a program that computes nothing wait for each other in turn, awake, as lanes mostly are in a run.
    """
    sets = list(dict.fromkeys(processor.caller_cores for processor in processors))
    pair = next(((a, b) for a in sets for b in sets if not a & b), None)
    library = native.library()
    if pair is None or library is None:
        return 0.0
    code = [[_turn(lane, turn) for turn in range(HANDOVERS)] for lane in (0, 1)]
    loop = NativeLoop(code, [frozenset()] * len(code), Arbiter(library))
    loop.begin(0)

    def answer() -> None:
        with suppress(ProcessorLost):  # wherever it runs, it must answer
            bind_to(pair[1])
        loop.drive(1, interruptible=False)

    other = threading.Thread(target=answer, name="hope-handover")
    # Ctrl-C waits for these milliseconds: the other thread would wait for ever.
    with DeferredInterrupts(), ExitStack() as seat:
        with suppress(ProcessorLost):
            seat.enter_context(bound_to(pair[0]))
        other.start()
        loop.drive(0, interruptible=False)
        other.join()
    return summarise([(after - before) / 2e3 for before, after in pairwise(loop.stamps()[0][2:])]).us


def _turn(lane: int, turn: int) -> Instruction:
    """Wait until the other lane has had its turn: lane 0 answers its last one, lane 1 what lane 0 has just done."""
    awaited = turn + lane
    waits = (Event(1 - lane, awaited),) if awaited else ()
    return Instruction(Work(lane=lane, position=turn, processor=f"lane {lane}", waits=waits))

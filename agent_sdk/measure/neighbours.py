"""What working side by side costs, and what a border costs where runtimes leave only plain tensors there.

Cores share memory, caches and clocks: a processor is slower while others work, even on resources that it does not
take. Measured on a stretch of the network itself, once by itself and once while equal processors on the other cores
run the same; per kind of processor, as the planner charges it.
"""

import math
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from itertools import pairwise
from typing import Final

from agent_sdk.errors import ProcessorError
from agent_sdk.machine.cores import bound_to
from agent_sdk.machine.timing import summarise, take_turns
from agent_sdk.model import Model
from agent_sdk.runtimes.alone import bound, time_segment
from agent_sdk.runtimes.base import Processor, Segment, segment_of
from hope_schema import SuperOp, merge

STRETCH: Final = 40
"""Super-ops of the network's middle that are run side by side; more would take long to compile for every neighbour."""
ROUNDS: Final = 5
PAIRS: Final = 3
"""Pairs of super-ops that are cut apart to tell what a border costs."""
MOST: Final = 16.0
"""Nobody is slowed down by more than that; what looks like it is other work."""


def neighbours(processor: Processor, others: Sequence[Processor]) -> list[Processor]:
    """Processors that keep the other cores busy: of the same runtime and memory, as wide as this one if possible."""
    taken = set(processor.spec.resources)
    chosen = []
    alike = [
        other
        for other in others
        if (other.spec.runtime, other.spec.memory) == (processor.spec.runtime, processor.spec.memory)
    ]
    for other in sorted(alike, key=lambda other: abs(math.log(other.spec.threads / processor.spec.threads))):
        if not taken & set(other.spec.resources):
            taken |= set(other.spec.resources)
            chosen.append(other)
    return chosen


def slowdown(processor: Processor, others: Sequence[Processor], model: Model, deadline: float) -> float | None:
    """How many times as long ``processor`` takes while all that it leaves of its memory's resources is at work.

    Where fewer can be kept busy, what they cost is scaled up. None where there is nobody. Raises ProcessorError.
    """
    beside = neighbours(processor, others)
    own = set(processor.spec.resources)
    memory = {name for other in others if other.spec.memory == processor.spec.memory for name in other.spec.resources}
    left = memory - own
    pressure = len({name for other in beside for name in other.spec.resources} & left) / max(1, len(left))
    if not beside or not pressure:
        return None
    segment = segment_of_all(stretch(model), model)
    with ExitStack() as opened:
        call, *calls = [bound(opened.enter_context(closing(each.compile(segment)))) for each in (processor, *beside)]
        with kept_busy(beside, calls) as at_work, bound_to(processor.caller_cores):
            turns = take_turns(
                {"alone": partial(_while, call, at_work, False), "beside": partial(_while, call, at_work, True)},
                rounds=ROUNDS,
                deadline=deadline,
            )
    ratio = summarise(turns.us("beside")).us / max(1e-3, summarise(turns.us("alone")).us)
    return min(MOST, max(1.0, 1.0 + (ratio - 1.0) / pressure))


def like_the_nearest(
    late: Sequence[Processor], others: Sequence[Processor], known: Mapping[str, float]
) -> dict[str, float]:
    """By kind what slows processors that were not measured, as far as they have neighbours and a kind of their runtime
    is ``known``: the figure of the one that is nearest in width, of equals the narrower.
    """
    widths = {one.spec.kind: (one.spec.runtime, one.spec.threads) for one in others if one.spec.kind in known}
    found = {}
    for own in late:
        alike = {kind: threads for kind, (runtime, threads) in widths.items() if runtime == own.spec.runtime}
        if alike and neighbours(own, others):
            nearest = min(alike, key=lambda kind: (abs(math.log(alike[kind] / own.spec.threads)), alike[kind]))
            found[own.spec.kind] = known[nearest]
    return found


def _while(call: Callable[[], None], at_work: Callable[[bool], None], busy: bool) -> None:
    at_work(busy)
    call()


@contextmanager
def kept_busy(processors: Sequence[Processor], calls: Sequence[Callable[[], None]]) -> Iterator[Callable[[bool], None]]:
    """Threads that make a call over and over; yields what sets them to work, or has them rest, and returns when so."""
    go, over = threading.Event(), threading.Event()
    working = [threading.Event() for _ in calls]

    def serve(processor: Processor, call: Callable[[], None], own: threading.Event) -> None:
        with suppress(ProcessorError), bound_to(processor.caller_cores):  # it rests, and weighs on nobody
            while not over.is_set():
                if go.wait(0.05):
                    own.set()
                    call()
                else:
                    own.clear()
        own.clear()

    def set_to_work(busy: bool) -> None:
        if busy == go.is_set():
            return
        (go.set if busy else go.clear)()
        until = time.monotonic() + 1.0
        while any(own.is_set() != busy for own in working) and time.monotonic() < until:
            time.sleep(0.001)

    threads = [
        threading.Thread(target=serve, args=each, name="hope-neighbour", daemon=True)
        for each in zip(processors, calls, working, strict=True)
    ]
    try:
        for thread in threads:
            thread.start()
        yield set_to_work
    finally:
        over.set()
        go.clear()
        for thread in threads:
            if thread.is_alive():
                thread.join()


def end_us(processor: Processor, model: Model, launch_us: float, deadline: float) -> float:
    """What it costs to cut a segment in two, beyond a launch; zero where tensors stay as the runtime has them.

    Raises ProcessorError.
    """
    if processor.hands_over_native:
        return 0.0
    found = []
    for first, second in _pairs(model):
        if time.monotonic() >= deadline:
            break
        whole, *parts = (
            time_segment(processor, segment_of_all(each, model), deadline).us
            for each in ([first, second], [first], [second])
        )
        found.append(sum(parts) - whole - launch_us)
    return max(0.0, statistics.median(found)) if found else 0.0


def _pairs(model: Model) -> list[tuple[SuperOp, SuperOp]]:
    """Some super-ops that read what the one before them makes."""
    row = stretch(model)
    return [(a, b) for a, b in pairwise(row) if set(a.outputs) & set(b.inputs)][:PAIRS]


def stretch(model: Model) -> tuple[SuperOp, ...]:
    """The super-ops in the middle of a network, in a topological order."""
    row = merge(model.graph)
    start = max(0, (len(row) - STRETCH) // 2)
    return row[start : start + STRETCH]


def segment_of_all(super_ops: Sequence[SuperOp], model: Model) -> Segment:
    """Several super-ops, in a topological order, as one segment with plain borders."""
    ops = tuple(op for super_op in super_ops for op in super_op.ops)
    return segment_of(SuperOp(graph=model.graph, ops=ops), model)

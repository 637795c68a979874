"""A segment by itself: compiled, fed with what is drawn for it and timed on a thread bound to its processor's cores."""

from collections.abc import Callable
from contextlib import closing

import numpy as np

from agent_sdk.machine.cores import bound_to
from agent_sdk.machine.timing import ENOUGH_US, Timing, measure
from agent_sdk.model.feeds import feeds_of_segment
from agent_sdk.runtimes.base import Executable, Processor, Segment
from agent_sdk.runtimes.host import aligned_empty


def time_segment(processor: Processor, segment: Segment, deadline: float) -> Timing:
    """Compile a segment and time it alone. Raises like ``Processor.compile`` and like a bound call."""
    with closing(processor.compile(segment)) as executable:
        return time_executable(executable, deadline)


def time_executable(
    executable: Executable,
    deadline: float,
    *,
    enough_us: float = ENOUGH_US,
    after: Callable[[], object] | None = None,
) -> Timing:
    """Time a compiled segment as ``measure`` does, on the calling thread, bound to the processor's cores meanwhile."""
    call = bound(executable)
    with bound_to(executable.processor.caller_cores):
        return measure(call, deadline=deadline, enough_us=enough_us, after=after)


def bound(executable: Executable) -> Callable[[], None]:
    """A compiled segment's launch, on drawn inputs and buffers of its own."""
    processor, generator = executable.processor, np.random.default_rng(0)
    feeds = feeds_of_segment(executable.segment)
    inputs = {}
    for name in executable.segment.inputs:
        kind = executable.input_types[name]
        array = aligned_empty(kind)
        array[...] = feeds.tensor(name, kind, generator)
        inputs[name] = processor.place.from_host(array)
    outputs = {name: processor.place.allocate(kind) for name, kind in executable.output_types.items()}
    return executable.bind(inputs, outputs)

"""A segment by itself: compiled, fed with random numbers and timed on a thread bound to its processor's cores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import numpy as np

from agent_sdk.device.cores import bound_to
from agent_sdk.measure.timing import ENOUGH_US, Timing, measure
from agent_sdk.runtimes.base import Buffer, Executable, Processor, Segment
from agent_sdk.runtimes.host import aligned_empty
from hope_schema import TensorType


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
    """A compiled segment's launch, on random numbers and buffers of its own."""
    processor = executable.processor
    inputs = {name: random_buffer(processor, executable.input_types[name]) for name in executable.segment.inputs}
    outputs = {name: processor.place.allocate(kind) for name, kind in executable.output_types.items()}
    return executable.bind(inputs, outputs)


def random_buffer(processor: Processor, kind: TensorType) -> Buffer:
    """A buffer with seeded random numbers; integers are zero, which is a legal index everywhere."""
    array = aligned_empty(kind)
    if array.dtype.kind == "f":
        array[...] = np.random.default_rng(0).standard_normal(kind.shape, np.float32)
    else:
        array[...] = 0
    return processor.place.from_host(array)

"""What launching a segment costs beyond its kernels, and ending one where a runtime leaves only plain tensors.

A chain of kernels that keep all cores at work, and one of them alone, each after a rest in which a gang's workers fall
asleep as they do while another processor is at work: what does not grow with the chain is the launch.
"""

import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import Final

from agent_sdk.model import Model
from agent_sdk.model.oneop import one_op
from agent_sdk.runtimes.alone import time_executable, time_segment
from agent_sdk.runtimes.base import Processor, Segment, segment_of
from hope_schema import SuperOp, TensorType, merge

CHAIN: Final = 8
"""Kernels by which the longer chain exceeds the shorter one, for telling launches from kernels."""
ROWS: Final = 64
"""Rows per thread of the tensor on which launches are timed: some 50 µs of work for each. Of less the caller has done
all before a worker is awake."""
WIDTH: Final = 512
ROW_BYTES: Final = 4 * WIDTH
REST_S: Final = 0.001
"""Longer than any runtime's workers poll before they sleep."""
STRETCH: Final = 40
"""Super-ops of the network's middle among which some are cut apart."""
PAIRS: Final = 3
"""Pairs of super-ops that are cut apart to tell what a border costs."""


def launch_us(processor: Processor, rows: int, deadline: float) -> float:
    """What a segment on a tensor of this many rows takes beyond its kernels, microseconds. Raises ProcessorError."""
    # Softmaxes: nobody fuses them, and every runtime shares out their rows.
    chain = one_op("Softmax", TensorType(shape=(rows, WIDTH), dtype="float32"), times=2 + CHAIN, axis=-1)
    row = merge(chain.graph)  # never all of it: a gang's workers may move while they compute a whole network
    segments = (segment_of_all(row[:length], chain) for length in (1, 1 + CHAIN))
    one, many = (_rested_us(processor, segment, deadline) for segment in segments)
    return max(0.0, one - (many - one) / CHAIN)


def _rested_us(processor: Processor, segment: Segment, deadline: float) -> float:
    with closing(processor.compile(segment)) as executable:
        return time_executable(executable, deadline, after=partial(time.sleep, REST_S)).us


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
    row = stretch(model, STRETCH)
    return [(a, b) for a, b in pairwise(row) if set(a.outputs) & set(b.inputs)][:PAIRS]


def stretch(model: Model, length: int) -> tuple[SuperOp, ...]:
    """The super-ops in the middle of a network, in a topological order."""
    row = merge(model.graph)
    start = max(0, (len(row) - length) // 2)
    return row[start : start + length]


def segment_of_all(super_ops: Sequence[SuperOp], model: Model) -> Segment:
    """Several super-ops, in a topological order, as one segment with plain borders."""
    ops = tuple(op for super_op in super_ops for op in super_op.ops)
    return segment_of(SuperOp(graph=model.graph, ops=ops), model)

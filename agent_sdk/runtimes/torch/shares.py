"""How much of a device a kernel really occupies: copies of it at once, each on a stream of its own.

On a GPU k copies of a kernel that leaves most of the chip idle take hardly longer than one; once the chip is full, k
times as long. The slope between is the kernel's share: 0 where copies do not feel each other, 1 where they take turns.
A chain of launches on every stream is timed, captured in one graph: what lies between them is in the figure, what a
graph's launch costs is spread over the chain.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from agent_sdk.runtimes.torch.driver import CudaGraphs, Memory
from agent_sdk.runtimes.torch.kernel import Kernel, drawn
from agent_sdk.runtimes.torch.precision import Precision

COPIES: Final = (1, 2, 4)
CHAIN: Final = 16
"""Launches per stream in a graph."""
REPLAYS: Final = 7
LEAST: Final = 1 / 16
"""The smallest share: nobody plans more than 16 kernels at once."""


@dataclass(frozen=True)
class Occupancy:
    """What copies of a kernel take, microseconds a launch, by their number."""

    us: Mapping[int, float]

    @property
    def share(self) -> float:
        """By which part of its own latency another copy beside it makes a launch slower, at most 1."""
        alone = self.us[1]
        if not alone:
            return LEAST
        slower = [(took / alone - 1) / (count - 1) for count, took in self.us.items() if count > 1]
        return min(1.0, max(LEAST, *slower))


def occupancy(kernel: Kernel, precision: Precision, driver: CudaGraphs, copies: Sequence[int], chain: int) -> Occupancy:
    """Time copies of a kernel on as many streams; what only looks at its inputs' memory launches nothing.

    Raises what torch raises.
    """
    if kernel.views.keys() >= set(kernel.outputs):
        return Occupancy(dict.fromkeys(copies, 0.0))
    return Occupancy({count: _timed(kernel, precision, driver, count, chain) for count in copies})


def _timed(kernel: Kernel, precision: Precision, driver: CudaGraphs, count: int, chain: int) -> float:
    memory: Memory = {}
    for copy in range(count):
        given = drawn(kernel, precision, driver.device)
        memory.update(zip((f"{copy}/{name}" for name in kernel.inputs), given, strict=True))
    with precision.switched(), driver.recording(count) as recording:
        driver.fork(count)
        for _ in range(chain):
            for copy in range(count):
                reads = [f"{copy}/{name}" for name in kernel.inputs]
                writes = [f"{copy}/{name}" for name in kernel.outputs]
                driver.launch(copy, kernel, reads, writes, memory)
                driver.free(copy, writes, memory)
        for copy in range(1, count):
            driver.wait(0, driver.signal(copy))
    return device_us(recording.replay, driver) / chain


def device_us(launch: Callable[[], object], driver: CudaGraphs, replays: int = REPLAYS) -> float:
    """Median time on the device of what goes to its first stream, microseconds."""
    stream = driver.stream(0)
    found = []
    with driver.first():
        for _ in range(2):
            launch()
        for _ in range(replays):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(stream)
            launch()
            end.record(stream)
            end.synchronize()
            found.append(begin.elapsed_time(end) * 1e3)
    return float(statistics.median(found))

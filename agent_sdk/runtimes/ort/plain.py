"""ONNX Runtime as its own users run it: the whole network on a number of threads, where it likes them."""

from collections.abc import Iterator
from functools import partial

import onnxruntime as ort
from typing_extensions import override

from agent_sdk.machine.soc import Soc
from agent_sdk.runtimes.host import HostPlace
from agent_sdk.runtimes.ort.graph import FrozenGraphs
from agent_sdk.runtimes.ort.options import SPINS, options
from agent_sdk.runtimes.ort.processor import OrtProcessor

FEWER = (2, 4, 8, 16)
"""Numbers of threads that users set besides all cores; a single thread is what a single core already is."""


class PlainOrt(OrtProcessor):
    """ONNX Runtime with its own defaults but for the number of threads, which are bound nowhere.

    One more default differs: its workers spin for a shorter time when there is nothing to do.
    """

    def __init__(self, soc: Soc, threads: int | None = None, *, frozen: FrozenGraphs | None = None) -> None:
        super().__init__(soc, frozenset(soc.cores), frozen=frozen)
        self.caller_cores = frozenset(self.cores)
        self._threads = threads or len(soc.cores)
        name = "onnxruntime"
        own = name if threads is None else f"{name}/{threads}"
        update = {"id": own, "runtime": name, "place": f"host/{name}", "threads": self._threads}
        self.spec = self.spec.model_copy(update=update)
        self.place = HostPlace(self.spec.place)

    @override
    def options(self, level: ort.GraphOptimizationLevel) -> ort.SessionOptions:
        return options(self._threads, SPINS, level=level)


def plain_configurations(soc: Soc, frozen: FrozenGraphs) -> Iterator[partial[PlainOrt]]:
    """What makes each of them on this machine, that with all cores first."""
    yield partial(PlainOrt, soc, frozen=frozen)
    for threads in FEWER:
        if threads < len(soc.cores):
            yield partial(PlainOrt, soc, threads, frozen=frozen)

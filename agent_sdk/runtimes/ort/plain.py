"""ONNX Runtime as its own users run it: its default number of threads, where it likes them."""

# ruff: noqa: D102  what the overridden methods promise stands in base.py

from __future__ import annotations

import onnxruntime as ort

from agent_sdk.device.soc import Soc
from agent_sdk.runtimes.host import HostPlace
from agent_sdk.runtimes.ort.graph import FrozenGraphs
from agent_sdk.runtimes.ort.processor import OrtProcessor


class PlainOrt(OrtProcessor):
    """ONNX Runtime on all cores with its own defaults. One differs: its workers stop spinning when a run ends."""

    def __init__(self, soc: Soc, *, frozen: FrozenGraphs | None = None) -> None:
        super().__init__(soc, frozenset(soc.cores), frozen=frozen)
        update = {"id": "onnxruntime", "runtime": "onnxruntime", "place": "host/onnxruntime"}
        self.spec = self.spec.model_copy(update=update)
        self.place = HostPlace(self.spec.place)

    @property
    def caller_cores(self) -> frozenset[int]:
        return frozenset(self.cores)

    def _options(self, level: ort.GraphOptimizationLevel) -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = level
        options.add_session_config_entry("session.force_spinning_stop", "1")
        return options

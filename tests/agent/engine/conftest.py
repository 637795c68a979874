"""Real processors of this machine, and a reference to compare with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnxruntime as ort
import pytest

from agent_sdk.engine import Device
from agent_sdk.processors.discovery import discover
from agent_sdk.reader import Model

Reference = Callable[[Model, Mapping[str, np.ndarray]], dict[str, np.ndarray]]


@pytest.fixture
def device() -> Iterator[Device]:
    """Every ONNX Runtime processor of this machine: each core, and all together."""
    with Device(discover("ort")) as opened:
        yield opened


@pytest.fixture(scope="session")
def reference() -> Reference:
    """The whole model, run by ONNX Runtime on one thread."""

    def compute(model: Model, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 3
        session = ort.InferenceSession(model.proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names = list(model.graph.outputs)
        return dict(zip(names, session.run(names, dict(feeds)), strict=True))

    return compute

"""Processors, real and simulated, and a reference to compare with."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from agent_sdk.engine import Device
from agent_sdk.model import Model
from agent_sdk.native import LANES_VARIABLE
from agent_sdk.runtimes.offered import discover
from tests.agent.engine.generate import random_model
from tests.agent.engine.scene import Scene

Reference = Callable[[Model, Mapping[str, np.ndarray]], dict[str, np.ndarray]]


@pytest.fixture(autouse=True, params=["native", "sequence"])
def lanes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Everything here holds for lanes outside the interpreter and in sequence, unless a module says ``NATIVE``."""
    monkeypatch.setenv(LANES_VARIABLE, request.param)
    return str(request.param)


@pytest.fixture(scope="session")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where optimised graphs are kept: not in the user's cache, which holds a limited number of them."""
    return tmp_path_factory.mktemp("frozen")


@pytest.fixture
def device(frozen: Path) -> Iterator[Device]:
    """Every ONNX Runtime processor of this machine: each core, and all together."""
    with Device(discover("ort", cache=frozen)) as opened:
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


@pytest.fixture(scope="module")
def model() -> Model:
    """A model with enough ops for four processors."""
    return random_model(random.Random(8), 24)


@pytest.fixture
def scene(model: Model) -> Iterator[Scene]:
    """Closed afterwards, with every thread joined."""
    before = {t for t in threading.enumerate() if t.name.startswith("hope-")}
    made = Scene(model)
    yield made
    made.device.close()
    assert {t for t in threading.enumerate() if t.name.startswith("hope-")} <= before
    assert all(p.closed for p in made.processors)

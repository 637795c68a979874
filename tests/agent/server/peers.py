"""Other servers of the protocol, real ones, in environments of their own: their packages do not go with ours."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import onnxruntime
import pytest

from tests import ENDING_WITH_TESTS

MLSERVER = """
import onnxruntime
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse

class Network(MLModel):
    async def load(self):
        self.session = onnxruntime.InferenceSession(self.settings.parameters.uri)
        return True

    async def predict(self, payload):
        made = self.session.run(None, {one.name: NumpyCodec.decode_input(one) for one in payload.inputs})
        names = [one.name for one in self.session.get_outputs()]
        outputs = [NumpyCodec.encode_output(name, array) for name, array in zip(names, made)]
        return InferenceResponse(model_name=self.name, outputs=outputs)
"""
TRITON = """
import sys

sys.path.insert(0, "{packages}")
import onnxruntime
import triton_python_backend_utils as backend

class TritonPythonModel:
    def initialize(self, arguments):
        self.session = onnxruntime.InferenceSession("{network}")

    def execute(self, requests):
        answers = []
        for request in requests:
            feed = {{"x": backend.get_input_tensor_by_name(request, "x").as_numpy()}}
            answers.append(backend.InferenceResponse([backend.Tensor("y", self.session.run(None, feed)[0])]))
        return answers
"""
ONNX = """
import sys

sys.path.insert(0, "{packages}")
import onnxruntime
import triton_python_backend_utils as backend

class TritonPythonModel:
    def initialize(self, arguments):
        file = "/".join([arguments["model_repository"], arguments["model_version"], "model.onnx"])
        self.session = onnxruntime.InferenceSession(file)
        self.takes = [one.name for one in self.session.get_inputs()]
        self.gives = [one.name for one in self.session.get_outputs()]

    def execute(self, requests):
        answers = []
        for request in requests:
            feed = {{name: backend.get_input_tensor_by_name(request, name).as_numpy() for name in self.takes}}
            made = self.session.run(self.gives, feed)
            answers.append(backend.InferenceResponse([*map(backend.Tensor, self.gives, made)]))
        return answers
"""
"""A backend by the name of the one for ONNX, which this Triton comes without."""
CONFIG = """
backend: "python"
max_batch_size: 0
input [ { name: "x" data_type: TYPE_FP32 dims: [1, 3, 16, 16] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [1, 10] } ]
"""


def environment(variable: str, package: str) -> Path:
    """The environment that a variable names. Skips the test where it names none."""
    folder = os.environ.get(variable)
    if not folder:
        cure = f"python -m venv DIR; DIR/bin/pip install {package} onnxruntime; export {variable}=DIR"
        pytest.skip(f"no {package} to compare with: {cure}")
    return Path(folder)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at."""
    found = []
    for _ in range(count):
        with socket.create_server(("127.0.0.1", 0)) as free:
            found.append(free.getsockname()[1])
    return found


@contextmanager
def started(command: list[str], port: int, what: str, folder: Path, **variables: str) -> Iterator[None]:
    """A server in a process of its own, once it says over HTTP that this of it is ready."""
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [*ENDING_WITH_TESTS, *command],
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**os.environ, **variables},
            start_new_session=True,
        ) as process,
    ):
        try:
            end = time.monotonic() + 60
            while True:
                try:
                    urlopen(f"http://127.0.0.1:{port}/v2/{what}/ready", timeout=10).close()
                    break
                except OSError:  # it does not listen yet, or says that it is not
                    assert process.poll() is None, (folder / "log").read_text()[-9000:]
                    assert time.monotonic() < end, (folder / "log").read_text()[-9000:]
                    time.sleep(0.1)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):  # on a busy machine one takes longer
                process.wait(20)
            process.kill()


@contextmanager
def mlserver(folder: Path, network: Path) -> Iterator[Mapping[str, int]]:
    """An MLServer with one network of float32, under the name of its file: its ports."""
    python = environment("HOPE_MLSERVER", "mlserver")
    plain = onnxruntime.InferenceSession(network, providers=["CPUExecutionProvider"])
    inputs, outputs = (
        [{"name": port.name, "datatype": "FP32", "shape": port.shape} for port in ports]
        for ports in (plain.get_inputs(), plain.get_outputs())
    )
    http, grpc, metrics = free_ports(3)
    (folder / "network.py").write_text(MLSERVER)
    settings = {"http_port": http, "grpc_port": grpc, "metrics_port": metrics, "parallel_workers": 0, "debug": False}
    (folder / "settings.json").write_text(json.dumps(settings | {"host": "127.0.0.1"}))
    model = {
        "name": network.stem,
        "implementation": "network.Network",
        "parameters": {"uri": str(network)},
        "inputs": inputs,
        "outputs": outputs,
    }
    (folder / "model-settings.json").write_text(json.dumps(model))
    command = [str(python / "bin" / "mlserver"), "start", "."]
    with started(command, http, f"models/{network.stem}", folder, PYTHONPATH=str(folder)):
        yield {"http": http, "grpc": grpc}


@contextmanager
def triton(folder: Path, network: Path, *, explicit: bool = False) -> Iterator[Mapping[str, int]]:
    """A Triton with the network ``branching`` in its Python backend: its ports.

    ``explicit``: it takes files of networks instead.
    """
    python = environment("HOPE_TRITON", "nvidia-pytriton")
    packages = next((python / "lib").glob("python*/site-packages"))
    server = packages / "pytriton" / "tritonserver"
    version = packages.parent.name.removeprefix("python")
    for found in (server / "backends" / "python", server / "python_backend_stubs" / version):
        shutil.copytree(found, folder / "backends" / "python", dirs_exist_ok=True)
    (folder / "backends" / "onnxruntime").mkdir()
    (folder / "backends" / "onnxruntime" / "model.py").write_text(ONNX.format(packages=packages))
    model = folder / "models" / "branching"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(CONFIG)
    (model / "1" / "model.py").write_text(TRITON.format(network=network, packages=packages))
    http, grpc = free_ports(2)
    command = [str(server / "bin" / "tritonserver"), "--model-repository", str(folder / "models")]
    command += ["--backend-directory", str(folder / "backends"), "--allow-metrics", "false"]
    command += ["--http-port", str(http), "--grpc-port", str(grpc), "--http-address", "127.0.0.1"]
    if explicit:
        command += ["--model-control-mode", "explicit"]
    ready = "health" if explicit else "models/branching"
    libraries = str(packages / "nvidia_pytriton.libs")
    with started(command, http, ready, folder, PYTHONPATH=str(packages), LD_LIBRARY_PATH=libraries):
        yield {"http": http, "grpc": grpc}

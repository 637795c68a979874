"""A server in a process of its own, as people start it, and networks for it to serve."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests import ENDING_WITH_TESTS
from tests.agent.models import BRANCHING

HASTY = "tests.agent.haste"

TYPES: Mapping[str, int] = {
    "BOOL": TensorProto.BOOL,
    **{f"{sign}INT{bits}": getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}


@dataclass(frozen=True)
class Running:
    """A server that listens: the ports of both transports, its process, and what it said until then."""

    http: int
    grpc: int
    process: subprocess.Popen[str]
    said: str


@contextmanager
def running(models: Sequence[Path], cache: Path, *options: str, program: str = "agent_sdk.cli") -> Iterator[Running]:
    """Serve networks on free ports of this machine, and end the process by SIGTERM.

    ``program``: the module that serves; ``HASTY`` measures hastily, and neither tries nor plans in children.
    """
    command = [
        *ENDING_WITH_TESTS,
        sys.executable,
        "-m",
        program,
        "serve",
        *(["--models", ",".join(map(str, models))] if models else []),
    ]
    listening = ["--listen", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--processors", "ort@0"]
    environment = {**os.environ, "HOPE_CACHE_DIR": str(cache), "HOPE_SOLVE_BUDGET_S": "0.2"}
    with subprocess.Popen(
        [*command, *listening, *options], stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            ports: dict[str, int] = {}
            said = []
            assert process.stderr is not None
            for line in process.stderr:
                said.append(line)
                if found := re.search(r" at (http|grpc)s?://127\.0\.0\.1:(\d+)", line):
                    ports[found[1]] = int(found[2])
                if len(ports) == 2:
                    break
            assert len(ports) == 2, "".join(said)
            yield Running(ports["http"], ports["grpc"], process, "".join(said))
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            finally:
                process.kill()


def echoes() -> onnx.ModelProto:
    """Gives back a tensor of each type, of any length."""
    ends = {
        end: [helper.make_tensor_value_info(f"{end}_{name}", kind, ["n", 2]) for name, kind in TYPES.items()]
        for end in ("in", "out")
    }
    nodes = [helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]) for name in TYPES]
    graph = helper.make_graph(nodes, "echoes", ends["in"], ends["out"])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def written(folder: Path) -> list[Path]:
    """The networks as files."""
    (folder / "branching.onnx").write_bytes(BRANCHING)
    onnx.save(echoes(), folder / "echoes.onnx")
    return [folder / "branching.onnx", folder / "echoes.onnx"]

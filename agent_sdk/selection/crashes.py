"""Whose compiler crashes at a network, found out in child processes, and how that is said."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from agent_sdk.model import Content, Model
from agent_sdk.model.weights import GRAPH_FILE, LightModels
from agent_sdk.runtimes.base import PACKAGES, Compiler, OutOfMemory, Package, Processor
from agent_sdk.runtimes.probe import Probes

CORES: Final[Mapping[Package, str]] = {"onnxruntime": "CPUExecutionProvider", "openvino": "CPU"}
"""What each package calls the cores."""

Crashed = Mapping[Compiler, str]
"""Whose compiler crashed, and how."""


class Crashes:
    """What became of compilers in children, for one device.

    Args:
        folder: where that is kept.
        processors: the device's.
        lights: where models are written for a child to read.
    """

    def __init__(self, folder: Path, processors: Iterable[Processor], lights: LightModels) -> None:
        self._probes = Probes(folder)
        self._compilers = {own.compiler for own in processors if own.compiler is not None}
        self._lights = lights

    def at_model(self, model: Model) -> Crashed:
        """Who crashes at a model that is compiled in pieces, for whatever it is compiled."""
        with suppress(OutOfMemory):  # told where the model is compiled
            file = self._lights.get(model)[1] / GRAPH_FILE
            return self._probes.crashes(self._compilers, model.graph.model_hash, file)
        return {}

    def at_file(self, content: Content) -> Crashed:
        """Who crashes at a file that is compiled as it is, for the cores. Raises ModelError where it has changed."""
        compilers = {own._replace(target=CORES[own.runtime]) for own in self._compilers}
        with content.opened() as file, tempfile.NamedTemporaryFile(suffix=".onnx") as own:
            if isinstance(file, bytes):
                own.write(file)
                own.flush()
            path = Path(own.name if isinstance(file, bytes) else file)
            return self._probes.crashes(compilers, content.digest, path)


def told(crashed: Crashed) -> list[str]:
    """A sentence for each."""
    return [
        f"{PACKAGES[compiler.runtime]} is left out, because its compiler crashes at this network: {how}"
        for compiler, how in crashed.items()
    ]

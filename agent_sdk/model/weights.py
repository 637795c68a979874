"""A model's weights in one file that every session maps into memory, instead of a copy in each.

Runtimes that load a model from bytes copy its weights, several times over while they do. A *light* model refers to
a file instead: cutting pieces out of it copies no weights, and runtimes map the file, so all of them share its pages.
"""

import fcntl
import logging
import os
import shutil
import threading
import time
import weakref
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Final

import onnx
from onnx import external_data_helper, numpy_helper

from agent_sdk.closing import Closes
from agent_sdk.errors import OutOfMemory
from agent_sdk.forking import Forks, TemporaryFolder, watch_forks
from agent_sdk.machine.topology import control_groups, read_text
from agent_sdk.model import Model
from agent_sdk.model.cutting import CutModel, cut_model
from agent_sdk.model.nodes import shell
from agent_sdk.paths import CACHE_VARIABLE
from hope_schema.hashing import digest

log = logging.getLogger(__name__)

WEIGHTS_FILE: Final = "weights.bin"
INLINE_BYTES: Final = 1024
"""Initialisers up to this size stay in the graph file; shape constants must."""
ALIGNMENT: Final = 64
"""Bytes: a weight that straddles cache lines slows the vector kernels down."""
STALE_S: Final = 60.0
"""Folders older than this that nobody has locked are left over from a process that was killed, and are removed."""
PREFIX: Final = "hope-weights-"
SIDE_BY_SIDE: Final = 1 / 8
"""Part of the available memory that the weights of networks compiled side by side may take; each may hold a copy."""
UNKNOWN_BYTES: Final = 8 * 2**30
"""What counts as available where the system does not tell."""
GRAPH_FILE: Final = "graph.onnx"


def copies_at_once(model: Model) -> int:
    """How many times a model may be compiled side by side on this machine at present; at least once."""
    weights = sum(int(tensor.ByteSize()) for tensor in model.constants.values())
    return max(1, int(SIDE_BY_SIDE * available_bytes()) // max(1, weights))


def available_bytes(root: Path = Path("/")) -> int:
    """Memory that this process can have without anybody swapping, as Linux tells: the machine's, or its groups'."""
    rows = (line.split() for line in read_text(root / "proc/meminfo").splitlines())
    found = [int(row[1]) * 1024 for row in rows if row[:1] == ["MemAvailable:"] and len(row) > 1]
    for group, unified in control_groups(root, "memory"):
        files = ("memory.max", "memory.current") if unified else ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = (read_text(group / name) for name in files)
        if limit.isdigit() and used.isdigit():
            found.append(max(0, int(limit) - int(used)))
    return min(found, default=UNKNOWN_BYTES)


class LightModels(Forks):
    """Light models, each with its weights file in a temporary folder below ``directory`` as long as the model lives.

    Safe to use from several threads. A folder is locked while it is used, so that no other process takes it for a
    killed one's. A file that a session has mapped stays readable after its folder is gone.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.RLock()
        self._open: weakref.WeakKeyDictionary[Model, tuple[Model, TemporaryFolder]] = weakref.WeakKeyDictionary()
        watch_forks(self)

    def get(self, model: Model) -> tuple[Model, Path]:
        """The light form of ``model`` and the folder of its weights. Raises OutOfMemory, also for want of disk."""
        with self._lock:
            if model not in self._open:
                try:
                    self._open[model] = self._made(model, self._directory)
                except OSError as error:
                    self._open[model] = self._elsewhere(model, error)
            light, folder = self._open[model]
            return light, folder.path

    def adopt(self, model: Model, light: Model, folder: Path) -> None:
        """Use a light form that another process has made, and will remove."""
        with self._lock:
            self._open[model] = light, TemporaryFolder.of_another(folder)

    def close(self) -> None:
        """Remove every folder, for a program may end without taking anything down. Idempotent."""
        with self._lock:
            for _, folder in self._open.values():
                folder.remove()
            self._open.clear()

    def _made(self, model: Model, directory: Path | None) -> tuple[Model, TemporaryFolder]:
        if isinstance(model, CutModel):
            whole, beside = self.get(model.source)
            return lightened_parts(cut_model(whole, model.cuts, beside), beside), self._open[model.source][1]
        if directory is not None and not self._open:
            directory.mkdir(parents=True, exist_ok=True)
            _remove_stale(directory)
        folder = TemporaryFolder(PREFIX, directory)
        _lock_while_used(folder)
        return lightened(model, folder.path), folder

    def _elsewhere(self, model: Model, reason: OSError) -> tuple[Model, TemporaryFolder]:
        """Where the directory cannot be written, the system's temporary one may be."""
        try:
            made = self._made(model, None)
        except OSError as error:
            raise OutOfMemory(
                f"the weights of '{model.name}' cannot be written to '{self._directory}': {error.strerror}; make room "
                f"there, or set {CACHE_VARIABLE} to another directory"
            ) from error
        log.warning("weights are not written to '%s' (%s)", self._directory, reason.strerror)
        return made


def _lock_while_used(folder: TemporaryFolder) -> None:
    handle = os.open(folder.path, os.O_RDONLY)
    weakref.finalize(folder, os.close, handle)
    with suppress(OSError):  # where folders cannot be locked, nobody can lock and then remove one either
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _remove_stale(directory: Path) -> None:
    for path in directory.glob(f"{PREFIX}*"):
        with suppress(OSError):  # somebody uses it, or has just removed it
            if time.time() - path.stat().st_mtime > STALE_S:
                handle = os.open(path, os.O_RDONLY)
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
                finally:
                    os.close(handle)


def lightened(model: Model, folder: Path) -> Model:
    """The same model with its large initialisers in ``folder``, written one at a time, and itself beside them."""
    proto = shell(model.proto)
    proto.graph.node.extend(model.proto.graph.node)
    for node in proto.graph.node:
        # Runtimes name what they make after these, which is how their kernels and tensors are recognised again.
        node.name = next(name for name in node.output if name)
    with WeightsFile(folder / WEIGHTS_FILE) as weights:
        proto.graph.initializer.extend(weights.keep(tensor) for tensor in model.constants.values())
    path = folder / GRAPH_FILE
    path.write_bytes(proto.SerializeToString())
    return replace(model, proto=proto, path=path)


def lightened_parts(model: CutModel, folder: Path) -> Model:
    """A light model cut into parts, in the whole's folder: only weights that are not contiguous there are copied."""
    name = digest([cut.model_dump(mode="json") for cut in model.cuts])[:16]
    proto = deepcopy(model.proto)
    with WeightsFile(folder / f"{name}.bin") as parts:
        for tensor in model.constants.values():
            in_file = external_data_helper.uses_external_data(tensor)
            proto.graph.initializer.append(tensor if in_file else parts.keep(tensor))
    path = folder / f"{name}.onnx"
    path.write_bytes(proto.SerializeToString())
    return Model(model.graph, proto, model.name, model.nodes, path, model.taken)


class WeightsFile(Closes):
    """A file of initialisers, each on its own cache line, written one at a time."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self._name = path.name

    def close(self) -> None:
        self._file.close()

    def keep(self, tensor: onnx.TensorProto, folder: Path | None = None) -> onnx.TensorProto:
        """Write a large tensor's data here and return a reference to them; return a small one whole.

        ``folder`` is where the tensor's own external data lie, if it has any.
        """
        if tensor.data_type == onnx.TensorProto.STRING:
            return tensor
        made = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        if external_data_helper.uses_external_data(tensor):
            place = external_data_helper.ExternalDataInfo(tensor)
            with (folder or Path()).joinpath(place.location).open("rb") as file:
                file.seek(place.offset or 0)
                raw = file.read(place.length if place.length else -1)
        elif tensor.HasField("raw_data"):
            raw = tensor.raw_data
        else:
            raw = numpy_helper.from_array(numpy_helper.to_array(tensor)).raw_data  # of which 4 bits share bytes
        if len(raw) <= INLINE_BYTES:
            made.raw_data = raw
            return made
        self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT))
        offset = self._file.tell()
        self._file.write(raw)
        made.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", self._name), ("offset", offset), ("length", len(raw))):
            made.external_data.add(key=key, value=str(value))
        return made

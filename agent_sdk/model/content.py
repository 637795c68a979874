"""A network as it was when it was loaded, for as long as a session lives, whatever becomes of its files meanwhile.

Runtimes map files of weights, and would answer with whatever is written there later; so they are given what is in these
files. What has to be loaded by its path, because it is too much, is checked before and after.
"""

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

import onnx
from google.protobuf.message import EncodeError
from onnx import external_data_helper

from agent_sdk.closing import Closes
from agent_sdk.errors import ModelError, UnplannableError, because, printable
from agent_sdk.model.beside import may_refer
from agent_sdk.model.held import HeldFile
from agent_sdk.model.source import MAX_MODEL_BYTES, ends_early, external, load_external, parse, tensors

Source = str | os.PathLike[str] | bytes | onnx.ModelProto
"""A model: a file's path, the name of a zoo network, an ONNX file's bytes, or a proto."""

MAX_OPEN: Final = 32
"""Files of one network that are kept open; further ones are found again by their path, and must be the same file."""
ENDS_BYTES: Final = 64 * 1024
"""Of a file's beginning and of its end, where its graph stands; what lies between is weights."""
SMALL_BYTES: Final = 1024
"""Weights smaller than this may be shapes; exporters leave them in the network's own file."""
RUNTIMES_OWN: Final = b"ORTM"
"""What ONNX Runtime's own format has at bytes 4 to 8."""


@dataclass(frozen=True)
class Loadable:
    """What a runtime loads a network from.

    Attributes:
        file: a path, or the bytes of the network's file.
        beside: what is in the files of its weights, by the names that it has for them; by a path these are found.
    """

    file: str | bytes
    beside: Mapping[str, bytes] = field(default_factory=dict)


class Content(Closes):
    """A network's file, or what stood for one, and the files beside it that hold its weights.

    Args:
        source: a path, the bytes of a file, or a proto, which is copied now.
        name: what to call it, where it is neither its file's name nor its graph's.

    Attributes:
        path: where it was, absolute; None where there was no file.
        name: what to call it; empty where only its graph has a name.
        fingerprint: SHA-256 of the size, beginning and end of the network's file. It tells networks apart at once,
            however large they are, and nearly always; for certain their graphs do.

    Raises ModelError where there is nothing that could be read.
    """

    def __init__(self, source: Source, name: str | None = None) -> None:
        self.path: Path | None = None
        self._file: HeldFile | None = None
        self._data = b""
        self._beside: dict[str, HeldFile] = {}
        self._missing: ModelError | None = None
        if isinstance(source, onnx.ModelProto):
            self.name, self._data = source.graph.name or "model", _serialised(source)
        elif isinstance(source, bytes):
            self.name, self._data = "", source
        else:
            given = Path(source)
            self.path, self.name = Path(os.path.abspath(given)), given.stem
            self._file = _held(given, self.path)
        self.where = "the given model" if self.path is None else f"'{given}'"
        self.name = name or self.name
        self._hold_beside()
        ends = self._read(0, ENDS_BYTES) + self._read(max(self._size - ENDS_BYTES, 0), ENDS_BYTES)
        self.fingerprint = hashlib.sha256(b"%d " % self._size + ends).hexdigest()

    def close(self) -> None:
        for file in self._files:
            file.close()

    @property
    def _files(self) -> list[HeldFile]:
        return [*filter(None, [self._file]), *self._beside.values()]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the network's file, without those beside it. Raises ModelError."""
        return hashlib.sha256(self._data).hexdigest() if self._file is None else self._file.digest()

    @property
    def _size(self) -> int:
        return len(self._data) if self._file is None else self._file.size

    def _read(self, offset: int = 0, length: int | None = None) -> bytes:
        if self._file is not None:
            return self._file.read(offset, length)
        return self._data[offset:] if length is None else self._data[offset : offset + length]

    @property
    def _runtimes_own(self) -> bool:
        return self._read(4, 4) == RUNTIMES_OWN

    @property
    def suffix(self) -> str:
        """How the name of a file of it has to end for a runtime to know what it is."""
        return ".ort" if self._runtimes_own else ".onnx"

    def proto(self) -> onnx.ModelProto:
        """The model with its weights inside, for the caller to change.

        Raises ModelError where it is not a whole ONNX model, or has changed since; UnplannableError where it is more
        than a plan cuts, or in a runtime's own format.
        """
        if self._runtimes_own:
            raise UnplannableError(
                f"{self.where} is in ONNX Runtime's own format, which that alone runs; "
                "for a plan, give the .onnx file that it was made from"
            )
        proto = parse(self._read(), self.where)
        if self._missing is not None:
            raise self._missing
        load_external(external(proto, self.where), self._weights, self.where)
        for file in self._files:
            file.digest()  # what is behind an answer has the time for it
        return proto

    @contextmanager
    def opened(self) -> Iterator[Loadable]:
        """What a runtime loads the network from as it is, valid until the end.

        Raises ModelError where the network has changed since it was loaded, or while the runtime read it.
        """
        if self._file is None:
            yield Loadable(self._data)
        elif self._runtimes_own or not os.path.exists(self._file.at):
            yield Loadable(self._file.read())
        elif not self._beside and self._missing is None:
            self._file.check()
            yield Loadable(self._file.at)
            self._file.check()
        elif (read := self._in_memory()) is not None:
            yield read
        else:
            for turn in range(2):
                for file in self._files:
                    file.check(by_path=True)
                if turn == 0:
                    yield Loadable(str(self.path))

    def _in_memory(self) -> Loadable | None:
        """All of it, so that nobody else can write there; None where it is too much, or some of it is missing.

        NOTE: mapped instead of read it would load faster, and a file cut short meanwhile would end the process.
        """
        if self._missing is not None or sum(file.size for file in self._files) > MAX_MODEL_BYTES:
            return None
        proto = parse(self._read(), self.where)
        found = list(external(proto, self.where))
        for tensor, location, offset, size in found:
            if offset + size > self._beside[location].size:
                raise ends_early(self.where, location, tensor)
        at_top = sum(map(external_data_helper.uses_external_data, proto.graph.initializer))
        # ONNX Runtime looks for those of inner graphs on disk, and for shapes in the network's own file.
        inside = [one for place, one in enumerate(found) if place >= at_top or one.size < SMALL_BYTES]
        load_external(inside, self._weights, self.where)
        return Loadable(_serialised(proto), {location: file.read() for location, file in self._beside.items()})

    def _hold_beside(self) -> None:
        """Open the files of weights; where one cannot be, a runtime may still load the network by its path."""
        if self._runtimes_own or not may_refer(self._read, self._size):
            return
        try:
            for tensor in tensors(parse(self._read(), self.where).graph):
                if external_data_helper.uses_external_data(tensor):
                    self._hold(external_data_helper.ExternalDataInfo(tensor).location)
        except ModelError as error:
            self._missing = error
        except (OSError, ValueError) as error:
            self._missing = ModelError(f"{self.where}: its external weights cannot be read: {error}")

    def _hold(self, location: str) -> None:
        """Open a file beside the network's: below the folder of its path, or of the file that its path leads to.

        Clients of model hubs keep both as links into one folder of files that are named by their digests.
        """
        if location in self._beside:
            return
        if self._file is None or self.path is None:
            raise ModelError(f"{self.where} keeps weights in external files: give its path, not its bytes")
        refused = ModelError(
            f"{self.where}: its external weights '{printable(location)}' lie outside the model's folder"
        )
        if not location or os.path.isabs(location) or os.path.normpath(location).startswith(os.pardir):
            raise refused
        file = HeldFile(self.path.parent / location, keep=len(self._beside) + 1 < MAX_OPEN)
        folders = (Path(os.path.realpath(self.path.parent)), self._file.real.parent)
        if not any(file.real.is_relative_to(folder) for folder in folders):
            file.close()
            raise refused
        self._beside[location] = file

    def _weights(self, location: str, offset: int, length: int) -> bytes:
        return self._beside[location].read(offset, length)


def _held(given: Path, path: Path) -> HeldFile:
    try:
        if path.is_dir():
            raise ModelError(f"'{given}' is a directory, not a model file")
        if not path.is_file():
            if path.is_symlink():
                raise ModelError(f"'{given}' is a link to '{path.readlink()}', which is no file")
            raise ModelError(f"there is no model file '{given}'")
        file = HeldFile(path)
    except (OSError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        cure = "; raise the limit (ulimit -n)" if getattr(error, "errno", 0) == errno.EMFILE else ""
        raise ModelError(f"the model file '{given}' cannot be read: {because(error)}{cure}") from error
    if file.size > MAX_MODEL_BYTES:
        file.close()
        raise ModelError(f"'{given}' has {file.size} bytes; a model may have at most {MAX_MODEL_BYTES}")
    return file


def _serialised(proto: onnx.ModelProto) -> bytes:
    try:
        return bytes(proto.SerializeToString())
    except (EncodeError, ValueError) as error:
        raise UnplannableError(
            f"the model has more than {MAX_MODEL_BYTES} bytes, the most that fit: {error}"
        ) from error

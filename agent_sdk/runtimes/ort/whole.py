"""A whole network in ONNX Runtime, as its own users run it: any shapes, any types, nothing cut."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from types import MappingProxyType
from typing import Any, Final

import onnxruntime as ort

from agent_sdk.errors import CompilationFailed, InputError, NotWantedError, ProcessorLost, said
from agent_sdk.forking import Forks, keep, watch_forks
from agent_sdk.model.ports import About, ModelMetadata, Port
from agent_sdk.runtimes.base import Package
from agent_sdk.runtimes.faults import machines_fault
from agent_sdk.runtimes.ort.options import SPINS, opened, options
from agent_sdk.tensors import as_arrays

REFUSED: Final = ("InvalidArgument", "INVALID_ARGUMENT", "Required inputs", "Missing Input", "Got invalid dimensions")
"""What the runtime says of a feed that does not fit the network."""

NONE_BESIDE: Final[Mapping[str, bytes]] = MappingProxyType({})
"""The network has all of its weights inside, or they are found by its path."""


class WholeOrt(Forks):
    """One session on so many threads. Raises CompilationFailed or OutOfMemory.

    ``run`` may be called from any number of threads, and in a forked child.

    Args:
        held: holds what they compute on, while one run lasts; by its key at the arbiter.
        beside: what is in the files that hold its weights, by the names that it has for them.

    Attributes:
        about: what ONNX Runtime says of the file.
    """

    runtime: Package = "onnxruntime"

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes,
        threads: int,
        held: Callable[[int | None], AbstractContextManager[None]] = lambda _: nullcontext(),
        beside: Mapping[str, bytes] = NONE_BESIDE,
    ) -> None:
        self._held = held
        own = options(threads, SPINS)
        own.log_severity_level = 4  # what it would log is raised
        if beside:
            own.add_external_initializers_from_files_in_memory(
                list(beside), list(beside.values()), list(map(len, beside.values()))
            )
        given = source if isinstance(source, bytes) else os.fspath(source)
        try:
            self._session: ort.InferenceSession | None = opened(given, own)
        except NotWantedError:
            raise
        except Exception as error:  # the runtime raises its own unrelated classes
            text = said(error)
            refused = CompilationFailed(f"{self.runtime}: ONNX Runtime refuses the network: {text}")
            raise machines_fault(error, self.runtime, text) or refused from error
        self.inputs = tuple(map(_port, self._session.get_inputs()))
        self.outputs = tuple(map(_port, self._session.get_outputs()))
        told = self._session.get_modelmeta()
        metadata = ModelMetadata(**{field.name: getattr(told, field.name) for field in fields(ModelMetadata)})
        optional = tuple(map(_port, self._session.get_overridable_initializers()))
        self.about = About(self.inputs, self.outputs, metadata, optional)
        watch_forks(self)

    def in_child(self) -> None:
        """What is loaded stays, also once this is closed."""
        keep(dict(vars(self)))
        self._held = lambda _: nullcontext()  # the cores' arbiter stays with the parent

    @property
    def session(self) -> ort.InferenceSession:
        """ONNX Runtime's own session. Raises ProcessorLost once this is closed."""
        session = self._session
        if session is None:
            raise ProcessorLost(f"{self.runtime}: the network was closed")
        return session

    def run(
        self,
        feed: Mapping[str, Any],
        names: Sequence[str] | None = None,
        options: ort.RunOptions | None = None,
        *,
        key: int | None = None,
    ) -> dict[str, Any]:
        """Compute these outputs, or all; ``options`` are ONNX Runtime's. Raises InputError or ProcessorLost.

        ``key`` says where it stands among those that wait for the cores; None: the time of this call.
        """
        session = self.session
        names = names or [port.name for port in self.outputs]
        with self._held(key):
            try:
                return dict(zip(names, session.run(names, as_arrays(feed), options), strict=True))
            except (ValueError, TypeError) as error:
                raise InputError(said(error)) from error
            except Exception as error:
                text = said(error)
                if type(error).__name__ in REFUSED or any(mark in text for mark in REFUSED):
                    raise InputError(text) from error
                lost = ProcessorLost(f"{self.runtime}: ONNX Runtime failed while running: {text}")
                raise machines_fault(error, self.runtime, text) or lost from error

    def close(self) -> None:
        self._session = None


def _port(info: ort.NodeArg) -> Port:
    return Port(info.name, info.type, tuple(info.shape))

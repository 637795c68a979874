"""The networks that are served: what they take and give, how they answered, and one inference of one of them."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from agent_sdk.errors import (
    DeviceClosedError,
    DroppedError,
    HopeError,
    InputError,
    OutOfMemory,
    QueueFullError,
    RefusedError,
    RunTimeoutError,
    printable,
)
from agent_sdk.journey.plans import Plans
from agent_sdk.model.ports import Port
from agent_sdk.scheduling.job import Terms
from agent_sdk.scheduling.jobs import Jobs
from agent_sdk.scheduling.request import PRIORITY, Late
from agent_sdk.server.admission import Room
from agent_sdk.server.datatypes import BYTES, NUMPY, OF_PORT
from agent_sdk.server.metrics import Metrics

if TYPE_CHECKING:
    from agent_sdk.server.lending import Lending
    from agent_sdk.server.wire import Form

VERSION: Final = "1"
"""The one version that every network has."""
PLATFORM: Final = "onnx_hope"
UNOFFERED: Final = ("sequence_id", "shared_memory_region", "classification")
"""Parameters of extensions that change what is computed, and that are not offered."""
MOST_ELEMENTS: Final = 2**56
"""Of a tensor, sizes of 0 aside: what NumPy can count in bytes."""
LENT: Final = "lent"
"""What networks of others are counted as."""


Feed = Mapping[str, np.ndarray]
"""Tensors by input."""


class Asked(NamedTuple):
    """What a request asks of its tensors, however it was sent.

    Attributes:
        outputs: names of those that are wanted.
        terms: the deadline, the priority, and what becomes of it where it would be late.
    """

    outputs: tuple[str, ...]
    terms: Terms


class Tensor(NamedTuple):
    """An input as a request describes it."""

    name: str
    datatype: str
    shape: Sequence[int]
    parameters: Mapping[str, object]


@dataclass
class Statistics:
    """How a network has answered so far."""

    succeeded: int = 0
    failed: int = 0
    succeeded_ns: int = 0
    failed_ns: int = 0
    last_ms: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, ns: int, *, well: bool) -> None:
        with self.lock:
            self.last_ms = time.time_ns() // 1_000_000
            if well:
                self.succeeded, self.succeeded_ns = self.succeeded + 1, self.succeeded_ns + ns
            else:
                self.failed, self.failed_ns = self.failed + 1, self.failed_ns + ns


class Served:
    """One network under its name.

    Args:
        name: what it is asked for by.
        inputs, outputs: what has to be given, and what is computed.
        run: computes the outputs by name.
        optional: what may be given as well.
        on_late: what becomes of a request that would miss its timeout.

    Raises InputError where the protocol has no type for a tensor of it.
    """

    def __init__(
        self,
        name: str,
        inputs: Sequence[Port],
        outputs: Sequence[Port],
        run: Callable[[Feed, Terms], Feed],
        optional: Sequence[Port] = (),
        on_late: Late = "drop",
    ) -> None:
        self.name, self.inputs, self.outputs, self.statistics = name, inputs, outputs, Statistics()
        self.run, self._on_late = run, on_late
        self.forms: dict[bytes, Form] = {}
        """Requests of late, as they were read; see ``wire.Form``."""
        self._takes = {port.name: port for port in (*inputs, *optional)}
        for port in (*self._takes.values(), *outputs):
            if port.type not in OF_PORT:
                raise InputError(f"'{name}' cannot be served: the protocol has no type for '{port.name}' ({port.type})")
        self.types = {port.name: OF_PORT[port.type] for port in outputs}
        """The protocol's types of its outputs."""
        sizes = [_size(port) for port in outputs]
        self.answer_bytes = sum(size for size in sizes if size is not None)
        """What all outputs take whose shapes are fixed."""

    @classmethod
    def of_plans(cls, name: str, plans: Plans, jobs: Jobs, on_late: Late = "drop") -> Served:
        """A network that an agent has loaded, whose runs wait their turn among the agent's jobs. Raises InputError."""
        return cls(name, *plans.ends(), partial(jobs.run, plans), plans.whole.about.optional, on_late)

    def check(self, name: str, datatype: str, shape: Sequence[int]) -> None:
        """Raise RefusedError unless the network has such an input, of this type, and this shape where that is fixed."""
        port = self._takes.get(name)
        if port is None:
            raise RefusedError(400, f"'{self.name}' has no input '{name}'; it has {', '.join(self._takes) or 'none'}")
        if datatype != OF_PORT[port.type]:
            raise RefusedError(400, f"input '{name}' of '{self.name}' is {OF_PORT[port.type]}, not {datatype}")
        if any(size < 0 for size in shape) or math.prod(filter(None, shape)) > MOST_ELEMENTS:
            raise RefusedError(400, f"input '{name}' has a shape that no tensor has: {list(shape)}")
        sizes = [size if isinstance(size, int) and size >= 0 else -1 for size in port.shape]
        fits = len(sizes) == len(shape) and all(a in (-1, b) for a, b in zip(sizes, shape, strict=True))
        if not fits:
            raise RefusedError(400, f"input '{name}' of '{self.name}' has shape {sizes}, not {list(shape)}")

    def asked(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[tuple[str, Mapping[str, object]]],
        parameters: Mapping[str, object],
        *,
        ahead: bool = False,
    ) -> Asked:
        """What a request asks for; ``outputs`` are names with their parameters, all outputs without any.

        One that is sent ``ahead`` asks for nothing: it only brings what is to stay here for a later request.

        Raises RefusedError where it contradicts itself, does not fit the network or asks for what is not offered.
        """
        terms = schedule(parameters, self._on_late)
        given, wanted = {tensor.name for tensor in inputs}, tuple(name for name, _ in outputs)
        if len(given) != len(inputs):
            raise RefusedError(400, "an input is given twice")
        for tensor in inputs:
            self.check(tensor.name, tensor.datatype, tensor.shape)
            refuse_unoffered(tensor.parameters)
        missing = [port.name for port in self.inputs if port.name not in given]
        if missing and not ahead:
            raise RefusedError(400, f"'{self.name}' also takes {', '.join(missing)}")
        for name, told in outputs:
            refuse_unoffered(told)
            if name not in self.types:
                raise RefusedError(400, f"'{self.name}' has no output '{name}'; it has {', '.join(self.types)}")
        if len(set(wanted)) != len(wanted):
            raise RefusedError(400, "an output is asked for twice")
        return Asked(() if ahead else wanted or tuple(self.types), terms)

    def metadata(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "versions": [VERSION],
            "platform": PLATFORM,
            "inputs": [_described(port) for port in self.inputs],
            "outputs": [_described(port) for port in self.outputs],
        }


class Models:
    """The networks by name, and inferences of them, from any number of threads.

    Args:
        served: those that are there as long as the server is.
        metrics: what counts inferences.
        lending: those that others send, if anybody may.
    """

    def __init__(self, served: Sequence[Served], metrics: Metrics, lending: Lending | None = None) -> None:
        self._fixed = {one.name: one for one in served}
        self._metrics, self._lending = metrics, lending
        if len(self._fixed) != len(served):
            raise InputError("two networks have the same name: give one of them another, as NAME=FILE")

    @property
    def all(self) -> list[Served]:
        return [*self._fixed.values(), *(self._lending.lent() if self._lending else ())]

    @property
    def lends(self) -> bool:
        return self._lending is not None

    @property
    def lending(self) -> Lending:
        """What others may use. Raises RefusedError where nobody may."""
        if self._lending is None:
            raise RefusedError(400, "this server lends nothing: its networks are those that it was started with")
        return self._lending

    def find(self, name: str, version: str = "") -> Served:
        """The network of this name. Raises RefusedError."""
        found = self._fixed.get(name) or (self._lending and self._lending.find(name))
        if not found:
            raise RefusedError(404, f"no network is called '{printable(name[:128])}'")
        if version not in ("", VERSION):
            raise RefusedError(404, f"'{name}' has version {VERSION} alone, not '{printable(version[:16])}'")
        return found

    def has(self, name: str, version: str = "") -> bool:
        with suppress(RefusedError):
            return bool(self.find(name, version))
        return False

    def infer(self, served: Served, feed: Feed, asked: Asked, room: Room, transport: str) -> list[np.ndarray]:
        """Compute the outputs that are wanted, in their order. Raises RefusedError."""
        if not asked.outputs:
            return []
        began, outcome = time.perf_counter_ns(), "failed"
        try:
            room.take(served.answer_bytes)
            made = _computed(served, feed, asked.terms)
            outputs = [made[name] for name in asked.outputs]
            further = sum([output.nbytes for output in outputs]) - served.answer_bytes
            if further > 0:
                room.take(further)
            outcome = "ok"
            return outputs
        except RefusedError as error:
            outcome = f"refused_{error.status}"
            raise
        except CancelledError as error:
            outcome = "cancelled"
            raise RefusedError(503, "the run was cancelled") from error
        finally:
            took = time.perf_counter_ns() - began
            served.statistics.add(took, well=outcome == "ok")
            self._metrics.inferred(served.name if served.name in self._fixed else LENT, transport, outcome, took * 1e-9)


def _computed(served: Served, feed: Feed, terms: Terms) -> Feed:
    try:
        return served.run(feed, terms)
    except InputError as error:
        raise RefusedError(400, str(error)) from error
    except (DroppedError, RunTimeoutError) as error:
        raise RefusedError(504, str(error)) from error
    except (OutOfMemory, MemoryError) as error:
        raise RefusedError(503, f"no memory was left to compute this: {error}") from error
    except (DeviceClosedError, QueueFullError) as error:
        raise RefusedError(503, str(error)) from error
    except HopeError as error:
        raise RefusedError(500, printable(str(error))) from error


def schedule(parameters: Mapping[str, object], on_late: Late) -> Terms:
    """The deadline and the priority that parameters of the schedule-policy extension mean.

    Raises RefusedError for values that are none, and for parameters of extensions that are not offered.
    """
    refuse_unoffered(parameters)
    timeout_us, level = parameters.get("timeout", 0), parameters.get("priority", 0)
    for name, value in (("timeout", timeout_us), ("priority", level)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
            raise RefusedError(400, f"the parameter '{name}' is a whole number of 0 or more, not {value!r:.32}")
    assert isinstance(timeout_us, int)
    assert isinstance(level, int)
    priority = max(-PRIORITY, PRIORITY + 1 - level) if level else 0  # level 1 is the highest
    try:
        return Terms(timeout_us / 1e3 if timeout_us else None, priority, on_late)
    except InputError as error:
        raise RefusedError(400, str(error)) from None


def refuse_unoffered(parameters: Mapping[str, object]) -> None:
    """Raise RefusedError for parameters of extensions that are not offered."""
    for name in UNOFFERED:
        if parameters.get(name):
            raise RefusedError(400, f"the parameter '{name}' is not offered")


def _described(port: Port) -> dict[str, Any]:
    shape = [size if isinstance(size, int) else -1 for size in port.shape]
    return {"name": port.name, "datatype": OF_PORT[port.type], "shape": shape}


def _size(port: Port) -> int | None:
    datatype = OF_PORT[port.type]
    if port.is_open or datatype == BYTES:
        return None
    return int(np.prod(port.sizes, dtype=np.int64)) * NUMPY[datatype].itemsize

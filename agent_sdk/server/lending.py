"""Processors that agents on other machines may use: what is offered, and the networks that they send to it.

A network comes once, by the model-repository extension, under a name that says what it is: the digest of its file, and
the processor that is to run it, which is the backend of its configuration.
"""

import base64
import binascii
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_sdk.agent import Agent
from agent_sdk.closing import Closes
from agent_sdk.engine import Executor
from agent_sdk.engine.single import whole_run
from agent_sdk.errors import HopeError, InputError, OutOfMemory, RefusedError, printable
from agent_sdk.model import Model, Port, read_model
from agent_sdk.scheduling.job import Terms
from agent_sdk.server.held import Held
from agent_sdk.server.models import Feed, Served
from hope_schema import Missing, Observations, Offer

MOST_LENT: Final = 1024
"""Networks of others at once."""
FILE: Final = "file:"
"""How parameters of a load begin that carry a file (the model-repository extension)."""
LONGEST_S: Final = 60.0
"""Longest time that somebody else may have this machine measure for, at a time."""


class _Config(BaseModel):
    backend: str


class Measuring(BaseModel):
    """What another agent wants to know of a network here."""

    model_config = ConfigDict(frozen=True)
    missing: Missing
    budget_s: float = Field(ge=0.0, le=LONGEST_S)


@dataclass
class _Lent:
    """A network of others; ``users`` is by how many it was sent and not let go of."""

    served: Served
    model: Model
    size: int
    executor: Executor
    users: int = 1


class Lending(Closes):
    """The networks that others have sent; may be used from any number of threads.

    Args:
        agent: whose processors are lent.
        memory: bytes that the files of all of them may have, and so many again the tensors that stay here.

    Attributes:
        held: tensors that stay here.
    """

    def __init__(self, agent: Agent, memory: int) -> None:
        self._agent, self._memory = agent, memory
        self.held = Held(memory)
        self._lent: OrderedDict[str, _Lent] = OrderedDict()
        self._lock = threading.Lock()
        self._loading = threading.Lock()

    def offer(self) -> Offer:
        return Offer(soc=self._agent.soc.name, frequency=self._agent.soc.frequency, processors=self._agent.planned)

    def lent(self) -> list[Served]:
        with self._lock:
            return [one.served for one in self._lent.values()]

    def find(self, name: str) -> Served | None:
        """The network of this name; None where it was not sent, or had to make room."""
        with self._lock:
            if name in self._lent:
                self._lent.move_to_end(name)
                return self._lent[name].served
        return None

    def load(self, name: str, parameters: Mapping[str, object], take: Callable[[int], None]) -> None:
        """Take a network in; those that were used longest ago make room. What is there already has one more user.

        ``take`` is told of bytes before they are held. Raises RefusedError where the name is not the file's, or it
        cannot run on that processor.
        """
        if self._has_another_user(name):
            return
        processor = _backend(parameters)
        if processor not in self._agent.device.processors:
            offered = ", ".join(one.id for one in self._agent.planned)
            raise RefusedError(400, f"there is no processor '{printable(processor[:64])}'; lent are {offered}")
        data = _file(parameters, take)
        if name != (right := f"{hashlib.sha256(data).hexdigest()}.{processor}"):
            raise RefusedError(400, f"the file is not '{printable(name[:128])}': by its digest it is '{right}'")
        if len(data) > self._memory:
            raise RefusedError(413, f"the file has {len(data)} bytes, and this host holds {self._memory} at most")
        take(2 * len(data))  # while it is read
        with self._loading:
            if self._has_another_user(name):
                return
            self._make_room(len(data))
            try:
                made = self._made(name, data, processor)
            except (OutOfMemory, MemoryError) as error:
                raise RefusedError(503, f"this host is full: {error}") from error
            except HopeError as error:
                raise RefusedError(400, printable(str(error))) from error
            with self._lock:
                self._lent[name] = made

    def _has_another_user(self, name: str) -> bool:
        with self._lock:
            found = self._lent.get(name)
            if found is not None:
                found.users += 1
            return found is not None

    def unload(self, name: str) -> None:
        """Let a network go with the last of its users. What is not there is gone already."""
        with self._lock:
            found = self._lent.get(name)
            if found is not None:
                found.users -= 1
        if found is not None and not found.users:
            self._drop(name)

    def _drop(self, name: str) -> None:
        with self._lock:
            found = self._lent.pop(name, None)
        if found is not None:
            found.executor.close()

    def measure(self, name: str, wanted: Measuring) -> Observations:
        """Measure a network that was sent on this machine's processors. Raises RefusedError."""
        with self._lock:
            found = self._lent.get(name)
        if found is None:
            raise RefusedError(404, f"no network is called '{printable(name[:128])}'")
        try:
            return self._agent.measure(found.model, wanted.missing, wanted.budget_s)
        except InputError as error:
            raise RefusedError(400, str(error)) from error
        except HopeError as error:
            raise RefusedError(503, printable(str(error))) from error

    def close(self) -> None:
        for served in self.lent():
            self._drop(served.name)

    def _made(self, name: str, data: bytes, processor: str) -> _Lent:
        model = read_model(data, name=name)
        own = self._agent.device.processors[processor]
        executor = whole_run(model, own, self._agent.device)
        tensor = model.graph.tensor
        inputs, outputs = (
            [Port(port, _shown(tensor[port].dtype), tensor[port].shape) for port in ports]
            for ports in (model.graph.inputs, model.graph.outputs)
        )

        def answer(feed: Feed, _: Terms) -> Feed:
            # NOTE: only ONNX Runtime refuses an index beyond its tensor; others read what lies there.
            if own.trusted is not None and not model.guard.bounds(feed):
                raise InputError("an input holds whole numbers beyond what the network can be asked for")
            return executor.run(feed)[0]

        served = Served(name, inputs, outputs, answer)
        return _Lent(served, model, len(data), executor)

    def _make_room(self, size: int) -> None:
        while True:
            with self._lock:
                full = sum(one.size for one in self._lent.values()) + size > self._memory
                if not self._lent or (not full and len(self._lent) < MOST_LENT):
                    return
                oldest = next(iter(self._lent))
            self._drop(oldest)


def _backend(parameters: Mapping[str, object]) -> str:
    """What a load's configuration has compute its file."""
    try:
        return _Config.model_validate_json(str(parameters.get("config", ""))).backend
    except ValidationError:
        raise RefusedError(400, "a load names its backend in JSON, as the parameter 'config'") from None


def _file(parameters: Mapping[str, object], take: Callable[[int], None]) -> bytes:
    """The one file among a load's parameters, which JSON carries as base64."""
    files = [value for name, value in parameters.items() if name.startswith(FILE)]
    if len(files) != 1 or not isinstance(files[0], str | bytes):
        raise RefusedError(400, "a load carries one file, as the parameter 'file:1/model.onnx'")
    take(len(files[0]))
    if isinstance(files[0], bytes):
        return files[0]
    try:
        return base64.b64decode(files[0], validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedError(400, f"the file is not in base64: {error}") from None


def _shown(dtype: str) -> str:
    return {"float32": "tensor(float)", "float64": "tensor(double)"}.get(dtype, f"tensor({dtype})")

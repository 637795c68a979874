"""An inference as JSON, with tensors in it or as bytes behind it (the binary-tensor extension).

Where a server lends its processors, tensors may also stay there between requests: the parameter ``hold`` of an input or
an output keeps it under that name, and an input with ``held`` is one that was kept. An output that is kept is not in
the answer, unless it is asked for as bytes as well. A request with the parameter ``ahead`` computes nothing: it brings
inputs of a later one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from agent_sdk.errors import RefusedError
from agent_sdk.server.admission import Room
from agent_sdk.server.datatypes import NAMES, from_bytes, from_values, to_bytes
from agent_sdk.server.held import MOST_NAME, Held
from agent_sdk.server.models import VERSION, Feed, Served, Tensor
from agent_sdk.tables import faults

MOST_JSON: Final = 16 * 2**20
"""Most bytes of JSON in a request."""
READ: Final = 24
"""Bytes of memory that a byte of JSON may come to take once it is read."""
MOST_TENSORS: Final = 1024
MOST_SIZES: Final = 32
"""Most dimensions of a tensor."""
WRITTEN: Final = 64
"""Bytes that a value takes while it is written out: as an object, and as text."""
KEPT: Final = 64
"""Forms of requests that are kept read of a network, ``KEPT_BYTES`` each at most; and so many forms of answers."""
KEPT_BYTES: Final = 4096
_Name = Annotated[str, Field(min_length=1, max_length=512)]
_Parameters = Annotated[dict[str, Any], Field(max_length=64)]
_Size = Annotated[int, Field(strict=True, lt=2**63)]


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Input(_Message):
    name: _Name
    datatype: str
    shape: Annotated[tuple[_Size, ...], Field(max_length=MOST_SIZES)]
    parameters: _Parameters = {}
    data: list[Any] | None = None


class _Output(_Message):
    name: _Name
    parameters: _Parameters = {}


class _Request(_Message):
    id: Annotated[str, Field(max_length=1024)] = ""
    parameters: _Parameters = {}
    inputs: Annotated[tuple[_Input, ...], Field(max_length=MOST_TENSORS)]
    outputs: Annotated[tuple[_Output, ...], Field(max_length=MOST_TENSORS)] = ()


class Form:
    """What the JSON of a request says: what is to be computed, and how the answer is to be written.

    Raises:
        RefusedError: it is no request, contradicts itself, or does not fit the network.
    """

    def __init__(self, served: Served, head: bytes) -> None:
        try:
            request = _Request.model_validate_json(head)
        except ValidationError as error:
            raise RefusedError(400, f"this is no inference request: {next(faults(error))}") from None
        self._served, self._identity, self._inputs = served, request.id, request.inputs
        self._length = len(head)
        inputs = [Tensor(one.name, one.datatype, one.shape, one.parameters) for one in request.inputs]
        named = {output.name: output.parameters for output in request.outputs}
        outputs = [(one.name, one.parameters) for one in request.outputs]
        ahead = _flag(request.parameters, "ahead", default=False)
        self.asked = served.asked(inputs, outputs, request.parameters, ahead=ahead)
        self._taken = dict(_named(request.inputs, "held"))
        self._kept = dict(_named((*request.inputs, *request.outputs), "hold"))
        self.holds = ahead or bool(self._taken or self._kept)
        """Whether tensors are to stay here, or have stayed."""
        self._sizes = [0 if tensor.name in self._taken else _binary_size(tensor) for tensor in request.inputs]
        every = _flag(request.parameters, "binary_data_output", default=False)
        self._outputs = [
            (name, served.types[name], _flag(named.get(name, {}), "binary_data", default=every))
            for name in self.asked.outputs
        ]
        """Name, type, and whether it goes into the answer as bytes; of one that stays here, whether it does at all."""

    @classmethod
    def read(cls, served: Served, head: memoryview, room: Room) -> Form:
        """From the JSON; clients say the same again and again, and what holds no tensor is read once."""
        short = len(head) <= KEPT_BYTES
        known = served.forms.get(bytes(head)) if short else None
        if known is not None:
            return known
        take_json(room, len(head))
        made = cls(served, bytes(head))
        if short and None not in made._sizes:
            if len(served.forms) >= KEPT:
                served.forms.clear()
            served.forms[bytes(head)] = made
        return made

    def feed(self, tail: memoryview, held: Held | None = None, owner: object = None) -> Feed:
        """The tensors, some of which stand behind the JSON. Raises RefusedError where those are others than it says.

        Where the request ``holds`` any, those of before are in ``held``, and new ones stay there as the owner's.
        """
        feed: dict[str, np.ndarray] = {}
        at = 0
        for tensor, size in zip(self._inputs, self._sizes, strict=True):
            if held is not None and tensor.name in self._taken:
                feed[tensor.name] = found = held.get(self._taken[tensor.name])
                self._served.check(tensor.name, NAMES[found.dtype], found.shape)
                continue
            if size is None:
                feed[tensor.name] = from_values(tensor.name, tensor.datatype, tensor.shape, tensor.data)
                continue
            if at + size > len(tail):
                raise RefusedError(400, f"the body ends within input '{tensor.name}', which has {size} bytes")
            feed[tensor.name] = from_bytes(tensor.name, tensor.datatype, tensor.shape, tail[at : at + size])
            at += size
        if at != len(tail):
            raise RefusedError(400, f"{len(tail)} bytes stand behind the JSON, but its inputs have {at} of them")
        if held is not None:
            for name in feed.keys() & self._kept.keys():
                # Else all that was sent with it would stay, the JSON too.
                alone = self._length <= feed[name].nbytes == len(tail)
                held.put(self._kept[name], feed[name] if alone else feed[name].copy(), owner)
        return feed

    def answer(
        self, outputs: Sequence[np.ndarray], room: Room, held: Held | None = None, owner: object = None
    ) -> tuple[bytes, list[memoryview]]:
        """The JSON of the answer, and the tensors behind it. Raises RefusedError where there is no room for it."""
        described: list[_Described] = []
        tail: list[memoryview] = []
        values: dict[str, list[Any]] = {}
        for (name, datatype, as_bytes), array in zip(self._outputs, outputs, strict=True):
            if held is not None and name in self._kept:
                held.put(self._kept[name], array, owner)
                if not as_bytes:
                    continue
            size = None
            if as_bytes:
                tail.append(to_bytes(array))
                size = len(tail[-1])
            else:
                room.take(array.size * WRITTEN)
                values[name] = array.ravel().tolist()
            described.append((name, datatype, array.shape, size))
        about = (self._served.name, self._identity, tuple(described))
        return (_written(*about, values) if values else _written_alike(*about)), tail


def take_json(room: Room, size: int, most: int = MOST_JSON, each: int = READ) -> None:
    """Take what JSON comes to take once it is read, ``each`` byte of it so many. Raises RefusedError."""
    if size > most:
        raise RefusedError(413, f"the JSON of a request may have {most} bytes; send tensors as bytes")
    room.take(size * each)


_Described = tuple[str, str, tuple[int, ...], int | None]
"""An output in an answer: name, type, shape, and how many bytes behind the JSON are its."""


def _written(network: str, identity: str, outputs: tuple[_Described, ...], values: Mapping[str, list[Any]]) -> bytes:
    """The JSON of an answer, with the values of outputs that are not sent as bytes."""
    described = [
        {"name": name, "datatype": datatype, "shape": shape}
        | ({"data": values[name]} if size is None else {"parameters": {"binary_data_size": size}})
        for name, datatype, shape, size in outputs
    ]
    head: dict[str, Any] = {"model_name": network, "model_version": VERSION, "outputs": described}
    if identity:
        head["id"] = identity
    return to_json(head, inf_nan_mode="constants")


_written_alike: Final = lru_cache(KEPT)(partial(_written, values={}))
"""What all runs of a network have their answers begin with."""


def _binary_size(tensor: _Input) -> int | None:
    """How many bytes behind the JSON are this tensor's; None where its values stand in it. Raises RefusedError."""
    name, size = tensor.name, tensor.parameters.get("binary_data_size")
    if (size is None) == (tensor.data is None):
        also = "both in the JSON and behind it" if size is not None else "neither in the JSON nor behind it"
        raise RefusedError(400, f"the values of input '{name}' stand {also}")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
        raise RefusedError(400, f"input '{name}' has a 'binary_data_size' that is no number of bytes")
    return size


def _named(tensors: Sequence[_Input | _Output], key: Literal["hold", "held"]) -> Iterator[tuple[str, str]]:
    """The names under which tensors stay, or have stayed, by tensor. Raises RefusedError."""
    for tensor in tensors:
        name = tensor.parameters.get(key)
        if name is None:
            continue
        if not isinstance(name, str) or not 0 < len(name) <= MOST_NAME:
            raise RefusedError(400, f"the parameter '{key}' is a name of up to {MOST_NAME} characters")
        yield tensor.name, name


def _flag(
    parameters: Mapping[str, Any], name: Literal["ahead", "binary_data", "binary_data_output"], *, default: bool
) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise RefusedError(400, f"the parameter '{name}' is true or false, not {value!r:.32}")
    return value

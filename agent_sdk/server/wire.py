"""An inference as JSON, with tensors in it or as bytes behind it (the binary-tensor extension)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agent_sdk.errors import RefusedError, printable
from agent_sdk.server.admission import Room
from agent_sdk.server.datatypes import BYTES, NUMPY, datatype_of, from_bytes, from_values, to_bytes
from agent_sdk.server.models import VERSION, Inference, Served, schedule

MOST_TENSORS: Final = 1024
MOST_SIZES: Final = 32
"""Most dimensions of a tensor."""
WRITTEN: Final = 64
"""Bytes that a value takes while it is written out: as an object, and as text."""
_Name = Annotated[str, Field(min_length=1, max_length=512)]
_Parameters = Annotated[dict[str, Any], Field(max_length=64)]
_Size = Annotated[int, Field(strict=True, ge=0, lt=2**63)]


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


class Asked:
    """A request that was read: what is to be computed, and how the answer is to be written.

    Args:
        served: the network that is asked.
        head: the JSON.
        tail: the bytes behind it.

    Raises:
        RefusedError: it is no request, contradicts itself, or does not fit the network.
    """

    def __init__(self, served: Served, head: bytes, tail: memoryview) -> None:
        try:
            request = _Request.model_validate_json(head)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "the body"
            raise RefusedError(400, f"this is no inference request: {where}: {first['msg']}") from None
        self._served, self._identity = served, request.id
        deadline_ms, priority = schedule(request.parameters)
        feed: dict[str, np.ndarray] = {}
        at = 0
        for tensor in request.inputs:
            if tensor.name in feed:
                raise RefusedError(400, f"input '{printable(tensor.name)}' is given twice")
            served.check(tensor.name, tensor.datatype, tensor.shape)
            schedule({name: value for name, value in tensor.parameters.items() if name == "shared_memory_region"})
            size = _binary_size(tensor)
            if size is None:
                feed[tensor.name] = from_values(tensor.name, tensor.datatype, tensor.shape, tensor.data)
                continue
            if at + size > len(tail):
                raise RefusedError(400, f"the body ends within input '{tensor.name}', which has {size} bytes")
            feed[tensor.name] = from_bytes(tensor.name, tensor.datatype, tensor.shape, tail[at : at + size])
            at += size
        if at != len(tail):
            raise RefusedError(400, f"{len(tail)} bytes stand behind the JSON, but its inputs have {at} of them")
        served.refuse_missing(feed)
        every = _flag(request.parameters, "binary_data_output", default=False)
        named = {output.name: output for output in request.outputs}
        names = served.wanted([output.name for output in request.outputs])
        for output in request.outputs:
            schedule({name: value for name, value in output.parameters.items() if name not in ("timeout", "priority")})
        self._as_bytes = [
            _flag(named[name].parameters, "binary_data", default=every) if name in named else every for name in names
        ]
        self.inference = Inference(feed, names, deadline_ms, priority)

    def answer(self, outputs: Sequence[np.ndarray], room: Room) -> tuple[bytes, list[memoryview]]:
        """The JSON of the answer, and the tensors behind it. Raises RefusedError where there is no room for it."""
        described: list[dict[str, Any]] = []
        tail: list[memoryview] = []
        for name, array, as_bytes in zip(self.inference.outputs, outputs, self._as_bytes, strict=True):
            tensor: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
            if as_bytes:
                tail.append(to_bytes(array))
                tensor["parameters"] = {"binary_data_size": len(tail[-1])}
            else:
                room.take(array.size * WRITTEN)
                tensor["data"] = array.ravel().tolist()
            described.append(tensor)
        head: dict[str, Any] = {"model_name": self._served.name, "model_version": VERSION, "outputs": described}
        if self._identity:
            head["id"] = self._identity
        return json.dumps(head).encode(), tail


def _binary_size(tensor: _Input) -> int | None:
    """How many bytes behind the JSON are this tensor's; None where its values stand in it. Raises RefusedError."""
    name, size = tensor.name, tensor.parameters.get("binary_data_size")
    if tensor.datatype not in NUMPY and tensor.datatype != BYTES:
        raise RefusedError(400, f"input '{name}' is of type '{printable(tensor.datatype[:16])}', which is none")
    if (size is None) == (tensor.data is None):
        also = "both in the JSON and behind it" if size is not None else "neither in the JSON nor behind it"
        raise RefusedError(400, f"the values of input '{name}' stand {also}")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
        raise RefusedError(400, f"input '{name}' has a 'binary_data_size' that is no number of bytes")
    return size


def _flag(parameters: Mapping[str, Any], name: Literal["binary_data", "binary_data_output"], *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise RefusedError(400, f"the parameter '{name}' is true or false, not {value!r:.32}")
    return value

"""A processor of another host: a segment is sent there once, and each run sends its inputs and takes its outputs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from typing_extensions import override

from agent_sdk.errors import OutOfMemory, ProcessorLost, UnsupportedOp, WrongOutput
from agent_sdk.model import extract
from agent_sdk.runtimes.base import BoundCall, Executable, Processor, Segment
from agent_sdk.runtimes.host import HostPlace
from agent_sdk.runtimes.remote.host import RemoteHost
from hope_schema import Processor as ProcessorSpec
from hope_schema import TensorType
from hope_schema.hosts import on_host

DATATYPES: Final[Mapping[str, str]] = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
"""Types of tensors as the protocol calls them."""
GONE: Final = 404
"""How a host answers for a network that it does not have, or has no more."""
FIRST_S: Final = 5.0
"""Longest time of a segment's first runs, of which nobody knows yet how long they take."""
LEAST_S: Final = 0.1
TIMES: Final = 3.0
"""A run may take so many times as long as the longest of late, and ``LEAST_S`` more; then the host counts as lost."""
KNOWN_AFTER: Final = 3
"""Runs after which it is known how long they take."""
FADING: Final = 0.98
"""By how much the longest run of late counts for less with each further one."""


class RemoteProcessor(Processor):
    """A runtime on cores of another machine.

    Args:
        host: the machine.
        lent: the processor as it is called there.
        cores: this machine's, on any of which its answers may be waited for.
    """

    hands_over_native = False

    def __init__(self, host: RemoteHost, lent: ProcessorSpec, cores: frozenset[int]) -> None:
        self.host, self.lent, self._cores = host, lent, cores
        self.spec = ProcessorSpec(
            **lent.model_dump(exclude={"id", "resources", "place", "host"}),
            id=on_host(host.name, lent.id),
            resources=tuple(on_host(host.name, resource) for resource in lent.resources),
            place=on_host(host.name, lent.place),
            host=host.name,
        )
        self.place = HostPlace(self.spec.place)  # where tensors stand before they are sent, and once they have arrived

    @property
    @override
    def caller_cores(self) -> frozenset[int]:
        return self._cores

    @property
    @override
    def on_caller_thread(self) -> bool:
        return False

    @property
    @override
    def details(self) -> str:
        return f"{self.host.name}: {self.host.offer.soc}"

    @override
    def compile(self, segment: Segment) -> RemoteExecutable:
        tensor = segment.model.graph.tensor
        for name in (*segment.inputs, *segment.outputs):
            if tensor[name].dtype not in DATATYPES:
                raise UnsupportedOp(f"{self.id}: the protocol has no tensors of {tensor[name].dtype}")
        return RemoteExecutable(self, segment, self.host.send(self.file(segment), self.lent.id))

    def file(self, segment: Segment) -> bytes:
        """A segment as it is sent. Raises OutOfMemory for one that is too large."""
        proto = extract(segment.model, segment.ops, segment.inputs, segment.outputs)
        try:
            return proto.SerializeToString(deterministic=True)
        except ValueError as error:  # more than 2 GiB
            raise OutOfMemory(f"{self.id}: the segment is too large to be sent: {error}") from error

    @override
    def close(self) -> None:
        self.host.close()


class RemoteExecutable(Executable):
    """A segment that was sent; ``compiled`` is its name there."""

    processor: RemoteProcessor

    def __init__(self, processor: RemoteProcessor, segment: Segment, name: str) -> None:
        super().__init__(processor, segment, name)
        self.head = json.dumps(
            {
                "inputs": [
                    _described(name, kind) | {"parameters": {"binary_data_size": kind.bytes}}
                    for name, kind in self.input_types.items()
                ],
                "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in segment.outputs],
            }
        ).encode()

    @override
    def bind(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> RemoteCall:
        return RemoteCall(self, self.compiled, inputs, outputs)

    def check(self, said: bytes) -> None:
        """Raise WrongOutput where the host answered for another network, or gives other outputs than were wanted."""
        try:
            found = json.loads(said)
            outputs = [(one["name"], one["datatype"], one["shape"]) for one in found["outputs"]]
            sizes = [one["parameters"]["binary_data_size"] for one in found["outputs"]]
            model = found["model_name"]
        except (ValueError, KeyError, TypeError) as error:
            raise WrongOutput(f"{self.where}: the answer is not as the protocol has it: {error!r}") from None
        if model != self.compiled:
            raise WrongOutput(f"{self.where}: the answer is another network's")
        wanted = [(name, DATATYPES[kind.dtype], list(kind.shape)) for name, kind in self.output_types.items()]
        if outputs != wanted or sizes != [kind.bytes for kind in self.output_types.values()]:
            raise WrongOutput(f"{self.where}: the answer has {outputs} instead of {wanted}")

    def send_again(self) -> None:
        """Send it to a host that has it no more. Raises ProcessorError."""
        self.processor.host.send_again(self.compiled, self.processor.file(self.segment))

    @override
    def close(self) -> None:
        if self._compiled is not None:
            self.processor.host.forget(self._compiled)
        super().close()


class RemoteCall(BoundCall):
    """Runs of a segment with certain buffers: what is sent before them stands ready."""

    __slots__ = (
        "_answer",
        "_executable",
        "_inputs",
        "_into",
        "_keep",
        "_longest_s",
        "_received",
        "_request",
        "_runs",
        "_sent",
    )

    def __init__(
        self,
        executable: RemoteExecutable,
        name: str,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
    ) -> None:
        self._executable = executable
        self._keep: dict[str, np.ndarray] = {}
        self._inputs: dict[str, memoryview] = {}
        for each in executable.segment.inputs:
            self.rebind(each, inputs[each])
        self._into = [_bytes(outputs[each]) for each in executable.segment.outputs]
        self._sent = sum(map(len, self._inputs.values()))
        self._received = sum(map(len, self._into))
        self._request = executable.processor.host.run_request(name, executable.head, self._sent)
        self._answer = b""
        self._runs, self._longest_s = 0, 0.0

    @override
    def rebind(self, name: str, buffer: np.ndarray) -> None:
        self._keep[name] = buffer
        self._inputs[name] = _bytes(buffer)

    @override
    def __call__(self) -> None:
        host = self._executable.processor.host
        within_s = FIRST_S if self._runs < KNOWN_AFTER else TIMES * self._longest_s + LEAST_S
        parts: list[bytes | memoryview] = [
            self._request,
            *(self._inputs[name] for name in self._executable.segment.inputs),
        ]
        began = time.perf_counter()
        reply, said = host.ask(parts, self._into, within_s)
        if reply.status == GONE:
            self._executable.send_again()
            began = time.perf_counter()
            reply, said = host.ask(parts, self._into, FIRST_S)
        took_s = time.perf_counter() - began
        host.refuse(reply, said)
        if said != self._answer:  # it says the same each time, but what was never read may say anything
            self._executable.check(said)
            self._answer = said
        host.learn(reply, self._sent, self._received, took_s * 1e6)
        self._runs += 1
        self._longest_s = max(took_s, self._longest_s * FADING)


def _described(name: str, kind: TensorType) -> dict[str, Any]:
    return {"name": name, "datatype": DATATYPES[kind.dtype], "shape": list(kind.shape)}


def _bytes(array: np.ndarray) -> memoryview:
    if not array.flags.c_contiguous:
        raise ProcessorLost("a tensor that does not stand in one piece cannot be sent")
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")

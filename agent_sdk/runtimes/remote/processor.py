"""A processor of another host: a segment is sent there once, and each run sends its inputs and takes its outputs.

What only segments of the same host read stays there, under a name that is made of where its buffer stands here: what
takes over that buffer takes over the name. It goes with the executable, or with the connection.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from typing_extensions import override

from agent_sdk.errors import ProcessorLost, UnsupportedOp, WrongOutput
from agent_sdk.model import extract
from agent_sdk.protocol.datatypes import DATATYPES
from agent_sdk.runtimes.base import BoundCall, Executable, Processor, Segment
from agent_sdk.runtimes.host import HostPlace
from agent_sdk.runtimes.openvino.trusted import OPENVINO
from agent_sdk.runtimes.remote.halved import cast_at_border, crossing, crossing_name, narrow, widen
from agent_sdk.runtimes.remote.host import RemoteHost
from agent_sdk.runtimes.remote.peer import AbsentError, Peer
from agent_sdk.runtimes.torch.trusted import TORCH
from agent_sdk.runtimes.trust import AnyOp, Trust
from hope_schema import Processor as ProcessorSpec
from hope_schema.hosts import on_host

BACKEND: Final = "onnxruntime"
"""What other servers than ours call what computes files of ONNX; it may do so on any hardware."""
FIRST_S: Final = 5.0
"""Longest time of a segment's first runs, of which nobody knows yet how long they take."""
LEAST_S: Final = 0.1
TIMES: Final = 3.0
"""A run may take so many times as long as the longest of late, and ``LEAST_S`` more; then the host counts as lost."""
KNOWN_AFTER: Final = 3
"""Runs after which it is known how long they take."""
FADING: Final = 0.98
"""By how much the longest run of late counts for less with each further one."""


Buffers = Mapping[str, np.ndarray]
"""By tensor."""
TRUSTED: Final[Mapping[str, Trust | None]] = {"ort": None, "ov": OPENVINO, "torch": TORCH, BACKEND: AnyOp()}
"""What runtimes are trusted with, wherever they run: one that is not known here, with nothing."""


class RemotePlace(HostPlace):
    """A host's memory: tensors stand there, and in a buffer here before they are sent and once they have arrived."""

    divisible = False

    def __init__(self, name: str, *, keeps: bool) -> None:
        super().__init__(name)
        self.keeps = keeps


class RemoteProcessor(Processor):
    """A runtime on cores of another machine.

    Args:
        host: the machine.
        lent: the processor as it is called there.
        cores: this machine's, on any of which its answers may be waited for.
    """

    hands_over_native = False

    def __init__(self, host: RemoteHost, lent: ProcessorSpec, cores: frozenset[int]) -> None:
        self.host, self.lent, self.caller_cores = host, lent, cores
        self.details = f"{host.name}: {host.offer.soc}; {host.way}, {100 * host.loss:.1f} % lost"
        self.trusted = TRUSTED.get(lent.runtime.partition("-")[0], Trust())
        self.spec = ProcessorSpec(
            **lent.model_dump(exclude={"id", "resources", "place", "host"}),
            id=on_host(host.name, lent.id),
            resources=tuple(on_host(host.name, resource) for resource in lent.resources),
            place=on_host(host.name, lent.place),
            host=host.name,
        )
        self.place = RemotePlace(self.spec.place, keeps=host.keeps)

    @override
    def compile(self, segment: Segment) -> SentExecutable:
        graph = segment.model.graph
        self.refuse_untrusted((graph.op[op] for op in segment.ops), graph)
        refuse_unless_named(self.id, segment)
        return SentExecutable(self, segment, self.host.send(self.network(segment), self.lent.id))

    def halved(self, segment: Segment) -> frozenset[str]:
        """What crosses as float16: what the plan says, as far as the host's owner allows it."""
        tensor = segment.model.graph.tensor
        allowed = self.host.as_float16 is not None
        return frozenset(name for name in segment.halved if allowed and tensor[name].dtype == "float32")

    def network(self, segment: Segment) -> onnx.ModelProto:
        """A segment as it is sent."""
        own = segment.own
        proto = extract(own.model, own.ops, own.inputs, own.outputs)
        cast_at_border(proto, self.halved(own))
        return proto

    @override
    def close(self) -> None:
        self.host.close()


def refuse_unless_named(processor: str, segment: Segment) -> None:
    """Raise UnsupportedOp where the protocol has no name for the type of a tensor that would cross."""
    for name in (*segment.inputs, *segment.outputs):
        if (dtype := segment.model.graph.tensor[name].dtype) not in DATATYPES:
            raise UnsupportedOp(f"{processor}: the protocol has no tensors of {dtype}")


class RemoteExecutable(Executable, ABC):
    """What a peer computes; ``compiled`` is its name there, ``halved`` what crosses as float16, and stands there so."""

    peer: Peer

    def __init__(self, processor: Processor, segment: Segment, name: str, halved: frozenset[str] = frozenset()) -> None:
        super().__init__(processor, segment, name)
        tensor = segment.model.graph.tensor
        full = {name for name in (*segment.inputs, *segment.outputs) if tensor[name].bytes}
        self._resident, self._stays = segment.resident & full, segment.stays & full
        self.sent = tuple(name for name in segment.inputs if name not in self._resident)
        """What each run sends."""
        self.received = tuple(name for name in segment.outputs if name not in segment.inside & self._stays)
        """What each run receives."""
        self.halved = halved
        self.types = {
            name: crossing(kind) if name in self.halved else kind
            for name, kind in {**self.input_types, **self.output_types}.items()
        }
        """Of its border, as it crosses."""

    def head(self, at: Mapping[str, str]) -> dict[str, Any]:
        """What a run says before its tensors, which stay there as ``at`` says, or have stayed."""
        inputs, outputs = [], []
        for name in self.segment.inputs:
            here = {"held": at[name]} if name in self._resident else {"binary_data_size": self.types[name].bytes}
            stays = {"hold": at[name]} if name in self._stays and name not in self._resident else {}
            inputs.append(self._described(name) | {"parameters": here | stays})
        for name in self.segment.outputs:
            stays = {"hold": at[name]} if name in self._stays else {}
            parameters = stays | {"binary_data": name in self.received}
            outputs.append({"name": self._called(name), "parameters": parameters})
        return {"inputs": inputs, "outputs": outputs}

    def _called(self, name: str) -> str:
        own = self.segment.model.member(name)[2]
        return crossing_name(own) if name in self.halved else own

    def _described(self, name: str) -> dict[str, Any]:
        kind = self.types[name]
        return {"name": self._called(name), "datatype": DATATYPES[kind.dtype], "shape": list(kind.shape)}

    def check(self, said: bytes, received: Sequence[str]) -> None:
        """Raise WrongOutput where the host answered for another network, or gives other outputs than were wanted."""
        try:
            found = json.loads(said)
            outputs = [(one["name"], one["datatype"], one["shape"]) for one in found["outputs"]]
            sizes = [one["parameters"]["binary_data_size"] for one in found["outputs"]]
            model = found["model_name"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise WrongOutput(f"{self.where}: the answer is not as the protocol has it: {error!r}") from None
        if model != self.compiled:
            raise WrongOutput(f"{self.where}: the answer is another network's")
        described = [self._described(name) for name in received]
        wanted = [(one["name"], one["datatype"], one["shape"]) for one in described]
        if outputs != wanted or sizes != [self.types[name].bytes for name in received]:
            raise WrongOutput(f"{self.where}: the answer has {str(outputs)[:400]} instead of {wanted}")

    def run(self, said: Mapping[str, Any], inputs: Buffers, outputs: Buffers) -> RemoteCall:
        """Runs of it, with what they say before their tensors."""
        sent, received = {name: inputs[name] for name in self.sent}, {name: outputs[name] for name in self.received}
        return RemoteCall(self, said, sent, received)

    @abstractmethod
    def bring_back(self) -> None:
        """Have it there again, where the peer has it no more. Raises ProcessorError."""


class SentExecutable(RemoteExecutable):
    """A segment that was sent."""

    processor: RemoteProcessor

    def __init__(self, processor: RemoteProcessor, segment: Segment, name: str) -> None:
        super().__init__(processor, segment, name, processor.halved(segment))
        self.peer = processor.host
        self._held: set[str] = set()

    @override
    def bind(self, inputs: Buffers, outputs: Buffers) -> RemoteCall:
        at = {name: self._at(buffer) for name, buffer in {**inputs, **outputs}.items()}
        new = {at[name] for name in self._stays | self._resident} - self._held
        self.processor.host.hold(new)
        self._held |= new
        return self.run(self.head(at), inputs, outputs)

    @override
    def ahead(self, name: str, source: np.ndarray, target: np.ndarray) -> RemoteCall:
        stays = {"hold": self._at(target), "binary_data_size": self.types[name].bytes}
        head = {"parameters": {"ahead": True}, "inputs": [self._described(name) | {"parameters": stays}]}
        return RemoteCall(self, head, {name: source}, {})

    def _at(self, buffer: np.ndarray) -> str:
        return f"{self.processor.host.here}-{buffer.ctypes.data:x}"

    @override
    def bring_back(self) -> None:
        self.processor.host.send_again(self.compiled, self.processor.network(self.segment))

    @override
    def close(self) -> None:
        if self._compiled is not None:
            self.processor.host.forget(self._compiled)
            self.processor.host.drop(self._held)
        super().close()


class RemoteCall(BoundCall):
    """Runs of a segment that send and receive certain buffers, or send some ahead: what is sent before stands ready."""

    def __init__(
        self, executable: RemoteExecutable, said: Mapping[str, Any], inputs: Buffers, outputs: Buffers
    ) -> None:
        self._executable, self._outputs = executable, tuple(outputs)
        self._keep: dict[str, np.ndarray] = {}
        crossing = executable.halved & {*inputs, *outputs}
        self._halves = {name: np.empty(executable.types[name].shape, np.float16) for name in crossing}
        self._narrowed = tuple(name for name in inputs if name in crossing)
        self._inputs = dict.fromkeys(inputs, memoryview(b""))
        for name, buffer in inputs.items():
            self.rebind(name, buffer)
        self._wide = {name: outputs[name] for name in outputs if name in self._halves}
        self._into = [_bytes(self._halves.get(name, buffer)) for name, buffer in outputs.items()]
        self._sent = sum(map(len, self._inputs.values()))
        self._received = sum(map(len, self._into))
        self._request = executable.peer.run_request(executable.compiled, said, self._sent)
        self._answer = b""
        self._runs, self._longest_s = 0, 0.0
        self.computed = None

    @override
    def rebind(self, name: str, buffer: np.ndarray) -> None:
        if name in self._inputs:
            self._keep[name] = buffer
            self._inputs[name] = _bytes(self._halves.get(name, buffer))

    @override
    def __call__(self) -> None:
        host = self._executable.peer
        for name in self._narrowed:
            narrow(self._halves[name], self._keep[name], name)
        within_s = FIRST_S if self._runs < KNOWN_AFTER else TIMES * self._longest_s + LEAST_S
        parts: list[bytes | memoryview] = [self._request, *self._inputs.values()]
        began = time.perf_counter()
        try:
            timing, said = host.ask(parts, self._into, within_s)
        except AbsentError:
            self._executable.bring_back()
            began = time.perf_counter()
            timing, said = host.ask(parts, self._into, FIRST_S)
        ended = time.perf_counter()
        if said != self._answer:  # it says the same each time, but what was never read may say anything
            self._executable.check(said, self._outputs)
            self._answer = said
        for name, wide in self._wide.items():
            widen(wide, self._halves[name], name)
        self.computed = host.learn(timing, self._sent, self._received, (began, ended))
        self._runs += 1
        self._longest_s = max(ended - began, self._longest_s * FADING)


def _bytes(array: np.ndarray) -> memoryview:
    if not array.flags.c_contiguous:
        raise ProcessorLost("a tensor that does not stand in one piece cannot be sent")
    return array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")

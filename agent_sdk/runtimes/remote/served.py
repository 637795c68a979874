"""A server with networks of its own, as its owner names them: one more runtime that has a whole network.

Any server of the Open Inference Protocol that takes tensors as bytes, over HTTP or gRPC; nothing is sent there but
inputs. Whether it means the network that it is named for is not known: its metadata is compared when a network is made
ready, and its answers are judged like any contender's. A model that is replaced there later is no longer the one that
was judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from pydantic import BaseModel, Field
from typing_extensions import override

from agent_sdk.errors import InputError, ProcessorLost, UnsupportedOp, WrongOutput
from agent_sdk.protocol.datatypes import DATATYPES
from agent_sdk.runtimes.base import Processor, Segment
from agent_sdk.runtimes.remote.peer import HttpPeer, Peer
from agent_sdk.runtimes.remote.processor import RemoteCall, RemoteExecutable, RemotePlace, refuse_unless_named
from agent_sdk.runtimes.remote.settings import HostSettings
from agent_sdk.runtimes.trust import AnyOp
from hope_schema import ModelGraph
from hope_schema import Processor as ProcessorSpec
from hope_schema.hosts import on_host

SERVER: Final = "server"
"""What a server's processor, resource and place are called, behind the server's name."""


class Port(BaseModel):
    """An input or output of a model; a size of -1 is any."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def takes(self, datatype: str, shape: tuple[int, ...]) -> bool:
        """Whether a tensor is one of these."""
        sizes = zip(self.shape, shape, strict=True) if len(self.shape) == len(shape) else [(0, 1)]
        return self.datatype == datatype and all(own in (-1, size) for own, size in sizes)


class Served(BaseModel):
    """What a server says of a model."""

    inputs: tuple[Port, ...] = Field(min_length=1)
    outputs: tuple[Port, ...] = Field(min_length=1)


def server_at(name: str, settings: HostSettings) -> Peer:
    """A server, asked over what its address begins with. Raises InputError, also where gRPC is not installed."""
    if not settings.over_grpc:
        return HttpPeer(name, settings)
    try:
        from agent_sdk.runtimes.remote.channel import GrpcPeer
    except ImportError as error:
        cure = "pip install 'hope-inference[serve]'"
        raise InputError(f"host '{name}' is to be asked over gRPC, which is not installed ({error}): {cure}") from None
    return GrpcPeer(name, settings)


class ServedNetworks(Processor):
    """What a server computes, as a processor that takes nothing but whole networks.

    Args:
        server: where it is.
        serves: what networks are called there, by their names here.
        cores: this machine's, on any of which its answers may be waited for.

    Raises ProcessorLost where it cannot be reached, or takes no tensors as bytes.
    """

    hands_over_native = False
    trusted = AnyOp()
    """It may compute with anything: only ordinary values go there."""

    def __init__(self, server: Peer, serves: Mapping[str, str], cores: frozenset[int]) -> None:
        self.host, self.serves, self.caller_cores = server, dict(serves), cores
        about = server.known()
        self.details = f"{server.name}: {about.name}"
        own = on_host(server.name, SERVER)
        self.spec = ProcessorSpec(
            id=own,
            runtime=about.name,
            version=about.version,
            threads=1,
            core_class=SERVER,
            resources=(own,),
            place=own,
            host=server.name,
        )
        self.place = RemotePlace(own, keeps=False)

    @override
    def compile(self, segment: Segment) -> ServedExecutable:
        graph, here = segment.model.graph, segment.model.name
        name = self.serves.get(here)
        if name is None:
            raise UnsupportedOp(f"{self.id} serves no '{here}', but {', '.join(self.serves)}")
        if {*segment.inputs} != {*graph.inputs} or {*segment.outputs} != {*graph.outputs}:
            raise UnsupportedOp(f"{self.id} has '{here}' only as a whole")
        refuse_unless_named(self.id, segment)
        self.refuse_untrusted((graph.op[op] for op in segment.ops), graph)
        served = self.host.valid(Served, self.host.described(name), "a model")
        what = f"{self.id} has another '{name}' than '{here}' is"
        _compare(served.inputs, segment.inputs, graph, f"{what}: its input")
        if strange := {port.name for port in served.inputs} - {*segment.inputs}:
            raise UnsupportedOp(f"{what}: it also takes {', '.join(sorted(strange))}")
        _compare(served.outputs, segment.outputs, graph, f"{what}: its output")
        rank = [port.name for port in served.outputs]
        ordered = tuple(sorted(segment.outputs, key=rank.index))  # servers answer in an order of their own
        return ServedExecutable(self, replace(segment, outputs=ordered), name)

    @override
    def close(self) -> None:
        self.host.close()


def _compare(ports: tuple[Port, ...], names: tuple[str, ...], graph: ModelGraph, what: str) -> None:
    known = {port.name: port for port in ports}
    for name in names:
        kind, port = graph.tensor[name].type, known.get(name)
        if port is None or not port.takes(DATATYPES[kind.dtype], kind.shape):
            there = "missing" if port is None else f"{port.datatype} {list(port.shape)}"
            raise UnsupportedOp(f"{what} '{name}' is {there}, not {DATATYPES[kind.dtype]} {list(kind.shape)}")


class ServedExecutable(RemoteExecutable):
    """A network that a server has."""

    def __init__(self, processor: ServedNetworks, segment: Segment, name: str) -> None:
        super().__init__(processor, segment, name)
        self.peer = processor.host
        self._version: object = None

    @override
    def bind(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> RemoteCall:
        return self.run(self.head({}), inputs, outputs)

    @override
    def check(self, said: bytes, received: Sequence[str]) -> None:
        """Raise WrongOutput where another model answers than the one that was judged, or with other outputs."""
        super().check(said, received)
        version = json.loads(said).get("model_version")
        if self._version is None:
            self._version = version
        elif version != self._version:
            raise WrongOutput(f"{self.where}: version {version} answers now, and {self._version} was judged")

    @override
    def bring_back(self) -> None:
        raise ProcessorLost(f"{self.processor.id} has no '{self.compiled}' any more")

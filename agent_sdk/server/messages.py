"""The messages of ``inference.proto`` as classes.

They are made from its compiled form beside it, in a pool of their own: a program that also loads another client of the
protocol would otherwise have every message twice in one pool, which protobuf refuses. After a change:
``python -m grpc_tools.protoc -I agent_sdk/server --descriptor_set_out=agent_sdk/server/inference.pb inference.proto``.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

SERVICE: Final = "inference.GRPCInferenceService"
COMPILED: Final = "inference.pb"


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    for file in FileDescriptorSet.FromString(files(__package__).joinpath(COMPILED).read_bytes()).file:
        pool.Add(file)
    return pool


@cache
def message(name: str) -> type[Any]:
    """The class of a message, such as ``ModelInferRequest``."""
    made: type[Message] = GetMessageClass(_pool().FindMessageTypeByName(f"inference.{name}"))
    return made


def methods() -> dict[str, tuple[type[Any], type[Any], bool]]:
    """The service's calls: what each takes and gives, and whether both are streams."""
    return {
        method.name: (message(method.input_type.name), message(method.output_type.name), method.client_streaming)
        for method in _pool().FindServiceByName(SERVICE).methods
    }

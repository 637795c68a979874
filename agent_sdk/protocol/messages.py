"""The messages of ``inference.proto`` as classes.

They are made from its compiled form beside it, in a pool of their own: a program that also loads another client of the
protocol would otherwise have every message twice in one pool, which protobuf refuses. After a change, in this folder:
``python -m grpc_tools.protoc -I . --descriptor_set_out=inference.pb inference.proto``.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Final

import grpc
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

SERVICE: Final = "inference.GRPCInferenceService"
COMPILED: Final = "inference.pb"
MOST_MESSAGE: Final = 2**31 - 1
"""Most bytes that a message of protobuf can have."""
STATUS: Final[Mapping[int, grpc.StatusCode]] = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.RESOURCE_EXHAUSTED,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
"""How a call is refused, by how a request over HTTP is.

UNAVAILABLE is not among them: it is how a connection ends that was idle, after which callers ask again at once.
"""
RAW_INPUTS: Final = b"\x3a"
RAW_OUTPUTS: Final = b"\x32"
"""What stands before each of the raw contents on the wire: their field (7 and 6), with a length."""


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


def with_contents(head: bytes, field: bytes, contents: Iterable[bytes | memoryview]) -> bytes:
    """A message on the wire with raw contents behind it.

    Fields of one message may stand in several parts, so the contents are copied once.
    """
    parts: list[bytes | memoryview] = [head]
    for each in contents:
        parts += (field, _varint(len(each)), each)
    return b"".join(parts)


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)

"""The protocol's calls over gRPC. Tensors are raw contents, or typed ones where a client sends those."""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import BoundedSemaphore
from typing import Any, Final

import grpc
import numpy as np

from agent_sdk.cancel import Cancel
from agent_sdk.errors import InputError, RefusedError
from agent_sdk.protocol.messages import MOST_MESSAGE, RAW_OUTPUTS, SERVICE, STATUS, message, methods, with_contents
from agent_sdk.server.access import Access, Address, Tls
from agent_sdk.server.admission import Admission, Room
from agent_sdk.server.datatypes import BYTES, from_bytes, from_values, to_bytes
from agent_sdk.server.models import VERSION, Asked, Feed, Models, Served, Tensor
from agent_sdk.server.said import questions

log = logging.getLogger(__name__)

CALLS: Final = 64
"""Most calls at once. Each may hold a message before it is admitted, so none has more than its part of the memory."""
MOST_STREAMS: Final = CALLS // 2
"""Most streams among them, which last as long as their clients wish."""
_CONTENTS: Final = {
    "BOOL": "bool_contents",
    **{f"INT{bits}": "int_contents" for bits in (8, 16, 32)},
    **{f"UINT{bits}": "uint_contents" for bits in (8, 16, 32)},
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
Answer = tuple[Any, Sequence[memoryview]]
"""A ``ModelInferResponse`` without contents, and the contents."""


class Grpc:
    """The server of one address; serves from ``start`` until ``stop``.

    Raises InputError where that address cannot be had.
    """

    def __init__(self, models: Models, admission: Admission, access: Access, address: Address, tls: Tls | None) -> None:
        self._models, self._admission, self._access = models, admission, access
        self._streams = BoundedSemaphore(MOST_STREAMS)
        self._server = grpc.server(
            ThreadPoolExecutor(CALLS, thread_name_prefix="hope-grpc"),
            maximum_concurrent_rpcs=CALLS,
            options=[
                ("grpc.max_receive_message_length", min(MOST_MESSAGE, admission.memory // CALLS)),
                ("grpc.max_send_message_length", -1),
                ("grpc.so_reuseport", 0),
            ],
        )
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, self._handlers()),))
        try:
            if tls is None:
                port = self._server.add_insecure_port(str(address))
            else:
                pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
                port = self._server.add_secure_port(str(address), grpc.ssl_server_credentials([pair]))
        except RuntimeError as error:
            raise InputError(f"cannot listen on {address}: {error}") from None
        self.address = Address(address.host, port)

    def start(self) -> None:
        self._server.start()

    def stop(self, grace_s: float) -> None:
        """Take no further call, and end those under way after so long."""
        self._server.stop(grace_s).wait()

    def _handlers(self) -> dict[str, Any]:
        answers: dict[str, Callable[[Any], Any]] = {
            "ServerLive": lambda _: {"live": True},
            "ServerReady": lambda _: {"ready": not self._admission.draining},
            "ModelReady": lambda request: {"ready": self._models.has(request.name, request.version)},
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
            **{name: partial(_told, answer) for name, answer in questions(self._models).items()},
        }
        handlers = {}
        for name, (takes, gives, streams) in methods().items():
            if streams:
                handlers[name] = grpc.stream_stream_rpc_method_handler(
                    self._stream, takes.FromString, gives.SerializeToString
                )
            elif name == "ModelInfer":
                handlers[name] = grpc.unary_unary_rpc_method_handler(
                    self._guarded(self._infer), takes.FromString, _serialised
                )
            else:
                handlers[name] = grpc.unary_unary_rpc_method_handler(
                    self._guarded(answers[name], gives), takes.FromString, gives.SerializeToString
                )
        return handlers

    def _guarded(
        self, answer: Callable[[Any], Any], gives: type[Any] | None = None
    ) -> Callable[[Any, grpc.ServicerContext], Any]:
        def handle(request: Any, context: grpc.ServicerContext) -> Any:
            try:
                self._check(context)
                with _gone(context).current():
                    made = answer(request)
                return made if gives is None else gives(**made)
            except Exception as error:  # noqa: BLE001  the caller is who is told
                refusal = _refusal(error)
                context.abort(STATUS.get(refusal.status, grpc.StatusCode.INTERNAL), str(refusal))

        return handle

    def _check(self, context: grpc.ServicerContext) -> None:
        shown = next((value for key, value in context.invocation_metadata() if key == "authorization"), "")
        self._access.check(str(shown), "localhost")  # no page in a browser speaks gRPC

    def _load(self, request: Any) -> dict[str, Any]:
        lending = self._models.lending
        with Room(self._admission) as room:
            room.take(2 * request.ByteSize())
            lending.load(request.model_name, _parameters(request.parameters), room.take)
        return {}

    def _unload(self, request: Any) -> dict[str, Any]:
        self._models.lending.unload(request.model_name)
        return {}

    def _infer(self, request: Any) -> Answer:
        served = self._models.find(request.model_name, request.model_version)
        with Room(self._admission) as room:
            room.take(2 * request.ByteSize())  # the message, and what it is made into
            feed, asked = _read(served, request)
            outputs = self._models.infer(served, feed, asked, room, "grpc")
            room.take(sum(output.nbytes for output in outputs))  # the message of the answer
            return _answered(request, served, asked.outputs, outputs)

    def _stream(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        made = message("ModelStreamInferResponse")
        if not self._streams.acquire(blocking=False):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "this server has all the streams that it serves at once")
        try:
            self._guarded(lambda _: None)(None, context)
            gone = _gone(context)
            for request in requests:
                try:
                    with gone.current():
                        head, tail = self._infer(request)
                    head.raw_output_contents.extend(map(bytes, tail))
                    yield made(infer_response=head)
                except Exception as error:  # noqa: BLE001  whatever it is, only this request is lost
                    yield made(error_message=str(_refusal(error)), infer_response={"id": request.id})
        finally:
            self._streams.release()


def _gone(context: grpc.ServicerContext) -> Cancel:
    """Cancelled once a call is over, or its caller has gone."""
    gone = Cancel()
    if not context.add_callback(gone.cancel):
        gone.cancel()
    return gone


def _refusal(error: Exception) -> RefusedError:
    """What a client is told of an error; what this server is to blame for goes to the log."""
    if isinstance(error, RefusedError):
        return error
    log.error("a call failed", exc_info=error)
    return RefusedError(500, f"the server failed: {type(error).__name__}")


def _told(answer: Callable[[str, str], dict[str, Any]], request: Any) -> dict[str, Any]:
    return answer(getattr(request, "name", ""), getattr(request, "version", ""))


def _read(served: Served, request: Any) -> tuple[Feed, Asked]:
    """What a request gives and asks for. Raises RefusedError where it contradicts itself or does not fit."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise RefusedError(400, f"there are {len(request.inputs)} inputs, but {len(raw)} raw contents")
    inputs = [Tensor(one.name, one.datatype, list(one.shape), _parameters(one.parameters)) for one in request.inputs]
    outputs = [(one.name, _parameters(one.parameters)) for one in request.outputs]
    asked = served.asked(inputs, outputs, _parameters(request.parameters))
    feed: dict[str, np.ndarray] = {}
    for place, (tensor, given) in enumerate(zip(inputs, request.inputs, strict=True)):
        if raw and given.HasField("contents"):
            raise RefusedError(400, f"input '{tensor.name}' has typed contents in a request of raw ones")
        feed[tensor.name] = from_bytes(*tensor[:3], raw[place]) if raw else _typed(tensor, given.contents)
    return feed, asked


def _typed(tensor: Tensor, contents: Any) -> np.ndarray:
    name, datatype = tensor.name, tensor.datatype
    wanted = _CONTENTS.get(datatype)
    if wanted is None:
        raise RefusedError(400, f"input '{name}' is {datatype}, which is sent as raw contents alone")
    others = [field.name for field, _ in contents.ListFields() if field.name != wanted]
    if others:
        raise RefusedError(400, f"input '{name}' is {datatype}, which stands in {wanted}, not in {', '.join(others)}")
    return from_values(name, datatype, tensor.shape, list(getattr(contents, wanted)))


def _parameters(given: Any) -> dict[str, object]:
    return {key: getattr(value, value.WhichOneof("parameter_choice") or "", None) for key, value in given.items()}


def _answered(request: Any, served: Served, names: Sequence[str], outputs: Sequence[np.ndarray]) -> Answer:
    head = message("ModelInferResponse")(
        model_name=request.model_name,
        model_version=VERSION,
        id=request.id,
        outputs=[
            {"name": name, "datatype": served.types[name], "shape": output.shape}
            for name, output in zip(names, outputs, strict=True)
        ],
    )
    return head, [to_bytes(output) for output in outputs]


def _serialised(answer: Answer) -> bytes:
    head, tail = answer
    return with_contents(head.SerializeToString(), RAW_OUTPUTS, tail)

"""A server that is asked over gRPC: the protocol's messages, with raw contents."""

import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import grpc
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import DecodeError
from typing_extensions import override

from agent_sdk.errors import HostLate, OutOfMemory, ProcessorLost, printable
from agent_sdk.protocol.messages import MOST_MESSAGE, RAW_INPUTS, SERVICE, STATUS, message, with_contents
from agent_sdk.runtimes.remote.line import MOST_HEAD, MOST_SAID
from agent_sdk.runtimes.remote.peer import CONNECT_S, RETRY_S, Peer
from agent_sdk.runtimes.remote.settings import HostSettings

OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),  # the address is where the owner says it is
    ("grpc.min_reconnect_backoff_ms", int(CONNECT_S * 1e3)),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", int(RETRY_S * 1e3)),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection
)
_REFUSALS: Final = {code: status for status, code in sorted(STATUS.items(), reverse=True)}


class GrpcPeer(Peer):
    """A machine that is asked over gRPC, on one connection for all calls whose answers are of about one size."""

    def __init__(self, name: str, settings: HostSettings) -> None:
        super().__init__(name, settings)
        context = settings.context()
        self._trusts: grpc.ChannelCredentials | None = None
        if context is not None:
            system = "".join(map(ssl.DER_cert_to_PEM_cert, context.get_ca_certs(binary_form=True))).encode()
            named = settings.certificate.read_bytes() if settings.certificate else system
            self._trusts = grpc.ssl_channel_credentials(named or None)
        self._shows = (("authorization", f"Bearer {settings.token}"),) if settings.token else ()
        self._opening = threading.Lock()
        self._channels: dict[int, grpc.Channel] = {}

    @override
    def about(self) -> bytes:
        if not self._asked("ServerReady").ready:
            raise ProcessorLost(f"host '{self.name}' is not ready")
        return MessageToJson(self._asked("ServerMetadata")).encode()

    @override
    def described(self, network: str) -> bytes:
        return MessageToJson(self._asked("ModelMetadata", name=network)).encode()

    @override
    def run_request(self, name: str, said: Mapping[str, Any], tensors: int) -> bytes:
        inputs = [{key: one[key] for key in ("name", "datatype", "shape")} for one in said["inputs"]]
        outputs = [{"name": one["name"]} for one in said["outputs"]]
        head: bytes = message("ModelInferRequest")(model_name=name, inputs=inputs, outputs=outputs).SerializeToString()
        if len(head) + tensors > MOST_MESSAGE - MOST_HEAD:
            raise OutOfMemory(f"{tensors} bytes of inputs are too many for one call of host '{self.name}'")
        return head

    @override
    def ask(
        self, parts: Sequence[bytes | memoryview], into: Sequence[memoryview], within_s: float
    ) -> tuple[str, bytes]:
        head, *tensors = parts
        made = with_contents(bytes(head), RAW_INPUTS, tensors)
        found, raw = self._call("ModelInfer", made, within_s, [len(part) for part in into])
        for part, contents in zip(into, raw, strict=True):
            part[:] = contents
        outputs = [
            {
                "name": one.name,
                "datatype": one.datatype,
                "shape": list(one.shape),
                "parameters": {"binary_data_size": len(contents)},
            }
            for one, contents in zip(found.outputs, raw, strict=True)
        ]
        said = {"model_name": found.model_name, "model_version": found.model_version, "outputs": outputs}
        return "", json.dumps(said).encode()

    @override
    def close(self) -> None:
        with self._opening:
            self.closed = True
            channels, self._channels = self._channels, {}
        for channel in channels.values():
            channel.close()

    def _asked(self, method: str, **named: str) -> Any:
        """The answer to a short question. Raises ProcessorLost, or what the host's refusal means."""
        return self._call(method, message(f"{method}Request")(**named).SerializeToString(), CONNECT_S, ())[0]

    def _call(self, method: str, made: bytes, within_s: float, sizes: Sequence[int]) -> tuple[Any, list[bytes]]:
        """The answer to a call, and its raw contents, of these sizes."""
        with self.trying:
            try:
                said = self._carried(method, made, within_s, sum(sizes))
                found = message(f"{method}Response").FromString(said)
            except grpc.RpcError as error:
                code, why = error.code(), printable(str(error.details()))[:400]
                if code is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise HostLate(f"host '{self.name}' did not answer within {within_s:.3g} s") from None
                if code is grpc.StatusCode.UNAVAILABLE:
                    raise ProcessorLost(f"host '{self.name}' cannot be reached, or broke off: {why}") from None
                refusal = self.refused(_REFUSALS.get(code, 500), why)
            except DecodeError as error:
                raise ProcessorLost(f"host '{self.name}' answers what the protocol does not allow: {error}") from None
            except ValueError as error:  # closed by another thread just now
                raise ProcessorLost(f"host '{self.name}' is not used any more: {error}") from None
            else:
                raw = list(found.raw_output_contents) if sizes else []
                given = [len(contents) for contents in raw]
                if given != list(sizes) or (sizes and len(found.outputs) != len(sizes)):
                    what = f"raw contents of {given} bytes" if raw else "no raw contents"
                    raise ProcessorLost(f"host '{self.name}' answers with {what} instead of {list(sizes)}")
                return found, raw
        raise refusal

    def _carried(self, method: str, made: bytes, within_s: float, received: int) -> bytes:
        """What a call is answered with. Raises grpc.RpcError."""
        until = time.monotonic() + within_s
        channel = self._channel(received)
        try:
            return self._answer(channel, method, made, within_s)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
        # The connection was idle for too long, perhaps; what was asked changes nothing there, so ask again. Its channel
        # would hand a call that comes at once to the same one, until it has noticed itself that it broke.
        channel = self._channel(received, broken=channel)
        return self._answer(channel, method, made, max(0.001, until - time.monotonic()))

    def _answer(self, channel: grpc.Channel, method: str, made: bytes, within_s: float) -> bytes:
        call: Callable[..., bytes] = channel.unary_unary(f"/{SERVICE}/{method}")
        return call(made, timeout=within_s, metadata=self._shows)

    def _channel(self, received: int, broken: grpc.Channel | None = None) -> grpc.Channel:
        """A connection that takes so many bytes of tensors, and few more than that; another one than what is broken.

        Calls that are still under way on that keep it until they end.
        """
        most = min(MOST_SAID * (received // MOST_SAID + 1) + MOST_HEAD, MOST_MESSAGE)
        with self._opening:
            if self.closed:
                raise ProcessorLost(f"host '{self.name}' is not used any more")
            if self._channels.get(most) is broken:
                options = (*OPTIONS, ("grpc.max_receive_message_length", most))
                self._channels[most] = (
                    grpc.insecure_channel(self.shown, options)
                    if self._trusts is None
                    else grpc.secure_channel(self.shown, self._trusts, options)
                )
            return self._channels[most]

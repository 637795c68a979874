"""What a client may do wrong over the wire: only its own request is lost, with a reason, and memory comes back."""

from __future__ import annotations

import json
import re
import select
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
import numpy as np
import pytest

from agent_sdk.protocol.messages import SERVICE, message
from agent_sdk.server.connection import CONTINUE
from agent_sdk.server.rpc import MOST_STREAMS
from tests.agent.server.running import Running

IMAGE = np.random.default_rng(3).random((1, 3, 16, 16), np.float32)
INPUT: dict[str, Any] = {"name": "x", "shape": [1, 3, 16, 16], "datatype": "FP32"}
BINARY = INPUT | {"parameters": {"binary_data_size": IMAGE.nbytes}}
WRITTEN = INPUT | {"data": IMAGE.ravel().tolist()}


def request(
    body: dict[str, Any] | bytes, tail: bytes = b"", path: str = "/v2/models/branching/infer", **fields: object
) -> bytes:
    """A request as bytes; ``fields`` replace those of the head, None leaves one out."""
    head = body if isinstance(body, bytes) else json.dumps(body).encode()
    said = {
        "host": "127.0.0.1",
        "content-length": len(head) + len(tail),
        "inference-header-content-length": len(head) if tail else None,
        **{name.replace("_", "-"): value for name, value in fields.items()},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in said.items() if value is not None)
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + head + tail


def good(**fields: object) -> bytes:
    """A request that is answered."""
    return request({"inputs": [BINARY]}, IMAGE.tobytes(), **fields)


def answered(server: Running, sent: bytes, *, half_closed: bool = False) -> tuple[int, str]:
    """The status and what follows it, once the server has closed or said all."""
    with socket.create_connection(("127.0.0.1", server.http), 20) as client:
        client.sendall(sent)
        if half_closed:
            client.shutdown(socket.SHUT_WR)
        return read_answer(client)


def read_answer(client: socket.socket) -> tuple[int, str]:
    """One answer: its status, and its body as text. Answers that come before it are passed over."""
    found = b""
    while b"\r\n\r\n" not in (found := found.removeprefix(CONTINUE)):
        part = client.recv(65536)
        assert part, f"the connection ended in the head of the answer: {found!r}"
        found += part
    head, _, body = found.partition(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head)[1])  # type: ignore[index]
    while len(body) < length:
        part = client.recv(65536)
        assert part
        body += part
    return int(head.split()[1]), body.decode("latin-1")


def held(server: Running) -> float:
    """The bytes that requests hold, as Prometheus is told."""
    _, page = answered(server, b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n")
    return float(re.search(r"^hope_serving_memory_bytes (\S+)", page, re.MULTILINE)[1])  # type: ignore[index]


def is_freed(server: Running) -> bool:
    """Whether nothing is held, soon: an answer arrives a moment before what it took is let go of."""
    end = time.monotonic() + 60
    while (left := held(server)) and time.monotonic() < end:
        time.sleep(0.01)
    return left == 0


WRONG: dict[str, tuple[bytes, int, str]] = {
    "no JSON": (request(b"{"), 400, "no inference request: Invalid JSON"),
    "JSON of another kind": (request(b"[]"), 400, "no inference request"),
    "deep JSON": (request(b'{"inputs":' + b"[" * 5000 + b"]" * 5000 + b"}"), 400, "no inference request"),
    "no inputs": (request({}), 400, "inputs"),
    "an input missing": (request({"inputs": []}), 400, "also takes x"),
    "ahead, where nothing may stay": (request({"parameters": {"ahead": True}, "inputs": []}), 400, "lends nothing"),
    "ahead by a number": (request({"parameters": {"ahead": 1}, "inputs": [WRITTEN]}), 400, "true or false"),
    "an input twice": (request({"inputs": [WRITTEN, WRITTEN]}), 400, "given twice"),
    "a type that is none": (request({"inputs": [WRITTEN | {"datatype": "FP8"}]}), 400, "FP8"),
    "a size below 0": (request({"inputs": [WRITTEN | {"shape": [-1, 3, 16, 16]}]}), 400, "shape"),
    "a size that is huge": (request({"inputs": [WRITTEN | {"shape": [2**62] * 4}]}), 400, "shape"),
    "a size that is no number": (request({"inputs": [WRITTEN | {"shape": ["1", 3, 16, 16]}]}), 400, "shape"),
    "too few values": (request({"inputs": [INPUT | {"data": [1.0]}]}), 400, "1 values"),
    "values of another type": (request({"inputs": [INPUT | {"data": ["a"] * 768}]}), 400, "not of type"),
    "values that are ragged": (request({"inputs": [INPUT | {"data": [[1.0], [1.0, 2.0]]}]}), 400, "values"),
    "neither form": (request({"inputs": [INPUT]}), 400, "neither"),
    "both forms": (request({"inputs": [BINARY | WRITTEN]}, IMAGE.tobytes()), 400, "both"),
    "too few bytes": (request({"inputs": [BINARY]}, IMAGE.tobytes()[:-1]), 400, "ends within"),
    "too many bytes": (request({"inputs": [BINARY]}, IMAGE.tobytes() + b"x"), 400, "3073 bytes stand behind"),
    "bytes without a head's length": (good(inference_header_content_length=None), 400, "no inference request"),
    "a head longer than the body": (good(inference_header_content_length=10**6), 400, "Inference-Header"),
    "a head's length that is none": (good(inference_header_content_length="x"), 400, "Inference-Header"),
    "a head's length without end": (good(inference_header_content_length="9" * 5000), 400, "Inference-Header"),
    "bytes without a head": (good(inference_header_content_length=0), 400, "no inference request"),
    "a head's length that ends too early": (good(inference_header_content_length=20), 400, "no inference request"),
    "a size that contradicts the shape": (
        request({"inputs": [INPUT | {"parameters": {"binary_data_size": 8}}]}, b"\0" * 8),
        400,
        "has 8 bytes",
    ),
    "a size that is no number of bytes": (
        request({"inputs": [INPUT | {"parameters": {"binary_data_size": "8"}}]}, b"\0" * 8),
        400,
        "binary_data_size",
    ),
    "an output that is none": (request({"inputs": [WRITTEN], "outputs": [{"name": "z"}]}), 400, "no output 'z'"),
    "a timeout that is none": (request({"inputs": [WRITTEN], "parameters": {"timeout": -1}}), 400, "timeout"),
    "a body that is too large": (good(content_length=10**12), 413, "holds"),
    "no length": (good(content_length=None, transfer_encoding="chunked"), 411, "Content-Length"),
    "two lengths": (good(content_length="10\r\ncontent-length: 12"), 400, "HTTP/1.1"),
    "a field twice": (good(host="a\r\nhost: b"), 400, "several fields"),
    "an encoding that is none": (good(content_encoding="br"), 415, "gzip"),
    "what cannot be inflated": (good(content_encoding="gzip"), 400, "inflated"),
    "another host": (good(host="evil.example"), 403, "evil.example"),
    "no such path": (request(b"", path="/v2/nothing"), 404, "nothing is offered"),
    "no such method": (b"DELETE /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n", 405, "DELETE"),
    "no HTTP": (b"\x16\x03\x01\x02\x00\r\n\r\n", 400, "HTTP/1.1"),
    "a head that is too large": (b"GET /v2 HTTP/1.1\r\nx: " + b"a" * 20_000, 431, "head"),
}


@pytest.mark.parametrize("case", WRONG)
def test_only_that_request_is_lost(server: Running, case: str) -> None:
    """A malformed, contradictory or oversized request is answered with its reason; the next one is served."""
    sent, status, reason = WRONG[case]
    found, body = answered(server, sent)
    assert (found, reason in body) == (status, True), body
    assert answered(server, good())[0] == 200
    assert is_freed(server)


def test_what_inflates_without_end_is_refused(server: Running) -> None:
    """A small body that inflates to more than requests may hold is refused while it does."""
    bomb = zlib.compress(bytes(160 * 2**20), 1)
    status, body = answered(server, request(bomb, content_encoding="deflate"))
    assert status in (413, 503), body
    assert is_freed(server)


@pytest.mark.parametrize("path", ["/v2/models/branching/infer", "/v2/hope/tensors/drop"])
@pytest.mark.parametrize("encoding", ["identity", "deflate"])
def test_json_without_end_is_refused(server: Running, path: str, encoding: str) -> None:
    """JSON that would take many times its own length once it is read is refused before that, inflated or not."""
    long = b" " * (17 * 2**20)
    body = zlib.compress(long) if encoding == "deflate" else long
    status, said = answered(server, request(body, path=path, content_encoding=encoding))
    assert (status, "the JSON of a request" in said) == (413, True), said
    assert is_freed(server)


def test_a_body_that_says_nothing_is_passed_over(server: Running) -> None:
    """Where no body is needed a small one is never inflated, and a large one is refused unread."""
    index = partial(request, path="/v2/repository/index", content_encoding="deflate")
    assert answered(server, index(zlib.compress(bytes(2**20))))[0] == 200
    assert answered(server, index(b"this is nothing that inflates"))[0] == 200
    assert answered(server, index(bytes(2**20)))[0] == 413


def test_a_body_that_ends_early_is_said_to(server: Running) -> None:
    """A client that stops sending half-way and closes its side is told, and nobody waits for it."""
    status, body = answered(server, good()[:-100], half_closed=True)
    assert status == 400
    assert "ends after" in body


def test_a_half_closed_client_gets_its_answer(server: Running) -> None:
    """A client that closes its own side after a whole request is answered."""
    assert answered(server, good(), half_closed=True)[0] == 200


@pytest.mark.parametrize("target", ["http://localhost", "http://localhost?q"])
def test_a_target_without_a_path_is_answered(server: Running, target: str) -> None:
    """A proxy's form of the root: nothing is there, and its client hears so."""
    status, body = answered(server, request(b"", path=target))
    assert (status, "nothing is offered at /" in body) == (404, True), body


def test_who_speaks_an_older_version_is_answered_and_let_go(server: Running) -> None:
    """HTTP/1.0 has no kept connections, whatever its client hopes: the server closes."""
    sent = good(connection="keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    with socket.create_connection(("127.0.0.1", server.http), 20) as client:
        client.sendall(sent)
        assert read_answer(client)[0] == 200
        assert client.recv(1) == b""


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_who_wants_one_answer_is_let_go_behind_it(server: Running, method: str) -> None:
    """The server closes for whom it is to close, with a body or without, and answers nothing that comes behind."""
    path = "/v2/repository/index" if method == "POST" else "/v2/health/live"
    sent = request(b"{}" if method == "POST" else b"", path=path, connection="close").replace(b"POST", method.encode())
    with socket.create_connection(("127.0.0.1", server.http), 20) as client:
        client.sendall(sent + request(b""))
        with client.makefile("rb") as arriving:  # until the server ends
            assert re.findall(rb"HTTP/1.1 (\d+)", arriving.read()) == [b"200"]


def test_blanks_behind_a_field_are_no_part_of_it(server: Running) -> None:
    """As those before it (RFC 9110, 5.5)."""
    assert answered(server, request(b"{}", path="/v2/repository/index", content_length="2 \t"))[0] == 200


def test_what_comes_behind_a_request_is_no_part_of_it(server: Running) -> None:
    """Garbage behind a body costs its client the connection, not the answer; a blank line costs nothing."""
    with socket.create_connection(("127.0.0.1", server.http), 20) as client:
        client.sendall(good() + b"\r\n" + good() + b"garbage\r\n\r\n")
        with client.makefile("rb") as arriving:  # until the server ends
            assert re.findall(rb"HTTP/1.1 (\d+)", arriving.read()) == [b"200", b"200", b"400"]


@pytest.mark.parametrize(("path", "status"), [("/v2", 200), ("/metrics", 200), ("/v2/models/branching/infer", 405)])
def test_a_head_alone_has_no_body(server: Running, path: str, status: int) -> None:
    """HEAD tells how long the answer to GET is, and the next answer follows at once."""
    asked = f"{{}} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.http), 20) as client:
        client.sendall(asked.format("HEAD").encode() + b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        with client.makefile("rb") as arriving:
            heads = [arriving.readline(), *iter(arriving.readline, b"\r\n")]
            assert int(heads[0].split()[1]) == status
            assert any(line.startswith(b"content-length: ") and not line.endswith(b" 0\r\n") for line in heads)
            assert arriving.readline() == b"HTTP/1.1 200 OK\r\n"


def test_clients_that_go_before_their_answers_lose_only_those(server: Running) -> None:
    """Who closes the connection with a request under way is not answered, and what that took is let go of."""
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.http), 20) as client:
            client.sendall(good())
    assert is_freed(server)
    assert answered(server, good())[0] == 200


def test_requests_one_behind_the_other_are_answered_in_order(server: Running) -> None:
    """What a client sends before it has the answer to an earlier request is not lost."""
    with socket.create_connection(("127.0.0.1", server.http), 20) as client:
        client.sendall(good() + request({}) + good())
        found = b""
        while found.count(b"HTTP/1.1") < 3:
            found += client.recv(65536)
    assert [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", found)] == [200, 400, 200]


def test_a_body_that_is_waited_for_is_asked_for(server: Running) -> None:
    """A client that sends its body only once it is told to is told to."""
    sent = good(expect="100-continue")
    head, _, body = sent.partition(b"\r\n\r\n")
    with socket.create_connection(("127.0.0.1", server.http), 20) as client:
        client.sendall(head + b"\r\n\r\n")
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(body)
        assert read_answer(client)[0] == 200


def test_a_thousand_connections_keep_nobody_from_being_served(server: Running) -> None:
    """While a thousand clients are connected, half of them in the middle of a request, another one is answered."""
    clients = []
    try:
        for place in range(1000):
            client = socket.create_connection(("127.0.0.1", server.http), 60)
            clients.append(client)
            if place % 2:
                client.sendall(good()[:40])
        *_, silent, begun = clients  # on a busy machine heads that were begun before are given up by now
        begun.sendall(good()[40:])
        assert read_answer(begun)[0] == 200
        silent.sendall(good())
        assert read_answer(silent)[0] == 200
        assert answered(server, good())[0] == 200
    finally:
        for client in clients:
            client.close()
    assert answered(server, good())[0] == 200


def test_who_finds_no_room_is_told_and_no_more_is_held_than_may_be(server: Running) -> None:
    """Slow bodies take the room that they announce: who comes when it is taken is refused, and served later."""
    clients = []
    size = 100 * 2**20
    try:
        for _ in range(2):
            client = socket.create_connection(("127.0.0.1", server.http), 20)
            client.sendall(good(content_length=size)[:200])
            clients.append(client)
        end = time.monotonic() + 60
        while held(server) < 2 * size and time.monotonic() < end:
            time.sleep(0.02)
        status, body = answered(server, good(content_length=size))
        assert (status, "free at the moment" in body) == (503, True), body
        assert answered(server, good())[0] == 200
    finally:
        for client in clients:
            client.close()
    assert is_freed(server)


def test_more_requests_than_are_taken_are_refused_at_once(server: Running) -> None:
    """Of sixty clients that stop in their bodies, thirty-two are waited for, and all others are refused."""
    clients = [socket.create_connection(("127.0.0.1", server.http), 20) for _ in range(60)]
    try:
        for client in clients:
            client.sendall(good()[:-1])
        refused: set[int] = set()
        end = time.monotonic() + 60
        while len(refused) < 60 - 32 and time.monotonic() < end:
            waiting = [client for place, client in enumerate(clients) if place not in refused]
            for client in select.select(waiting, [], [], 0.1)[0]:
                assert client.recv(65536).startswith(b"HTTP/1.1 503")
                refused.add(clients.index(client))
        assert len(refused) == 60 - 32
        for place, client in enumerate(clients):
            if place not in refused:
                client.settimeout(20)
                client.sendall(good()[-1:])
                assert read_answer(client)[0] == 200
    finally:
        for client in clients:
            client.close()


def test_many_clients_at_once_get_the_same_answer(server: Running) -> None:
    """Twenty clients with twenty requests each all get the one right answer."""

    def ask(_: int) -> set[str]:
        with socket.create_connection(("127.0.0.1", server.http), 20) as client:
            found = set()
            for _ in range(20):
                client.sendall(good())
                status, body = read_answer(client)
                assert status == 200
                found.add(body)
            return found

    with ThreadPoolExecutor(20) as pool:
        answers = set().union(*pool.map(ask, range(20)))
    values = [np.array(json.loads(body)["outputs"][0]["data"]) for body in answers]
    for value in values:
        np.testing.assert_allclose(value, values[0], rtol=1e-4)


def infer_over_grpc(
    server: Running, asked: Any, compression: grpc.Compression | None = None, within_s: float = 20
) -> Any:
    """Make the call with a message of any content."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            message("ModelInferRequest").SerializeToString,
            message("ModelInferResponse").FromString,
        )
        return call(asked, timeout=within_s, compression=compression)


def asked_over_grpc(**changed: Any) -> Any:
    """A right request with raw contents, or one that differs."""
    given = {"name": "x", "datatype": "FP32", "shape": [1, 3, 16, 16]} | changed.pop("tensor", {})
    raw = changed.pop("raw", [IMAGE.tobytes()])
    return message("ModelInferRequest")(model_name="branching", inputs=[given], raw_input_contents=raw, **changed)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"tensor": {"contents": {"fp32_contents": [1.0]}}}, "typed contents"),
        ({"raw": [IMAGE.tobytes()] * 2}, "2 raw contents"),
        ({"raw": [IMAGE.tobytes()[:-4]]}, "has 3068 bytes"),
        ({"raw": []}, "0 values"),
        ({"raw": [], "tensor": {"contents": {"int_contents": [1] * 768}}}, "stands in fp32_contents"),
        ({"tensor": {"shape": [-1, 3, 16, 16]}}, "no tensor has"),
        ({"tensor": {"datatype": "FP16"}}, "not FP16"),
        ({"outputs": [{"name": "z"}]}, "no output 'z'"),
        ({"parameters": {"timeout": {"string_param": "soon"}}}, "timeout"),
    ],
)
def test_a_wrong_message_is_refused_with_its_reason(server: Running, changed: dict[str, Any], reason: str) -> None:
    """Raw and typed contents mixed, sizes that do not fit, types that differ: that call is refused, the next served."""
    with pytest.raises(grpc.RpcError, match=reason) as caught:
        infer_over_grpc(server, asked_over_grpc(**changed))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert infer_over_grpc(server, asked_over_grpc()).outputs[0].name == "y"
    assert is_freed(server)


def test_calls_whose_time_is_over_lose_only_themselves(server: Running) -> None:
    """Clients of gRPC that wait for a few milliseconds at most: whatever comes of their calls, the next is served."""
    codes = set()
    for turn in range(20):
        try:
            infer_over_grpc(server, asked_over_grpc(), within_s=(turn - 4) / 1e3)  # of the first it is over before
        except grpc.RpcError as error:
            codes.add(error.code())
    assert codes == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert infer_over_grpc(server, asked_over_grpc()).outputs[0].name == "y"
    assert is_freed(server)


def test_nothing_is_sent_ahead_over_grpc(server: Running) -> None:
    """No tensor stays here between calls of gRPC: each gets its outputs."""
    asked = asked_over_grpc(parameters={"ahead": {"bool_param": True}})
    assert [output.name for output in infer_over_grpc(server, asked).outputs] == ["y"]


def test_typed_contents_give_the_same_answer_as_raw_ones(server: Running) -> None:
    """A client that sends values as lists gets what one gets that sends bytes."""
    typed = asked_over_grpc(raw=[], tensor={"contents": {"fp32_contents": IMAGE.ravel().tolist()}})
    answers = [
        np.frombuffer(infer_over_grpc(server, one).raw_output_contents[0], np.float32)
        for one in (typed, asked_over_grpc())
    ]
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-4)


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_that_is_too_large_is_refused(server: Running, compression: grpc.Compression) -> None:
    """A message beyond its part of the memory, or that inflates to more, is refused before it is read."""
    with pytest.raises(grpc.RpcError) as caught:
        infer_over_grpc(server, asked_over_grpc(raw=[bytes(8 * 2**20)]), compression)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert infer_over_grpc(server, asked_over_grpc()).outputs[0].name == "y"


def test_what_is_no_message_is_refused(server: Running) -> None:
    """Bytes that are no message, and a message that was cut off, lose that call alone."""
    whole = asked_over_grpc().SerializeToString()
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        for sent in (b"\xff" * 100, whole[:-1]):
            with pytest.raises(grpc.RpcError) as caught:
                call(sent, timeout=20)
            assert caught.value.code() == grpc.StatusCode.INTERNAL
        assert call(whole, timeout=20)


def test_streams_leave_room_for_calls(server: Running) -> None:
    """Clients that hold streams open get so many of them; calls are answered beside those, and streams given back."""
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:
        open_stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
        call = channel.unary_unary(f"/{SERVICE}/ModelInfer")
        sent = asked_over_grpc().SerializeToString()
        ending = threading.Event()

        def asking() -> Iterator[bytes]:
            yield sent
            ending.wait(60)

        streams = [open_stream(asking()) for _ in range(MOST_STREAMS)]
        assert all(next(stream) for stream in streams)
        with pytest.raises(grpc.RpcError) as caught:
            next(open_stream(asking()))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call(sent, timeout=20)
        ending.set()
        assert [list(stream) for stream in streams] == [[]] * MOST_STREAMS
        assert next(open_stream(asking()))

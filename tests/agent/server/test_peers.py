"""The same requests, as bytes on the wire, get the same answers from this server and from others of the protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.http as over_http

from agent_sdk.protocol.messages import SERVICE, message
from agent_sdk.runtimes.remote.line import Line, request
from tests.agent.models import BRANCHING
from tests.agent.server.peers import mlserver, triton
from tests.agent.server.running import Running

IMAGE = np.random.default_rng(5).random((1, 3, 16, 16), np.float32)
Peer = Callable[[Path, Path], AbstractContextManager[Mapping[str, int]]]


def written_out(port: int) -> list[float]:
    """The answer to a request in JSON alone."""
    given = {"name": "x", "datatype": "FP32", "shape": list(IMAGE.shape), "data": IMAGE.ravel().tolist()}
    body = json.dumps({"id": "7", "inputs": [given], "outputs": [{"name": "y"}]}).encode()
    line = Line(("127.0.0.1", port), None, "a peer", 20.0)
    fields = {"host": "127.0.0.1", "content-type": "application/json"}
    status, _, said = line.ask([request("POST", "/v2/models/branching/infer", fields, len(body)), body], [], 20.0)
    line.close()
    assert status == 200, said
    found: dict[str, Any] = json.loads(said)
    assert found["id"] == "7"
    assert (found["outputs"][0]["name"], found["outputs"][0]["shape"]) == ("y", [1, 10])
    return list(np.array(found["outputs"][0]["data"]).ravel())


def typed(port: int) -> np.ndarray:
    """The answer to a call with typed contents, by the messages of this server."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/ModelInfer",
            message("ModelInferRequest").SerializeToString,
            message("ModelInferResponse").FromString,
        )
        contents = {"fp32_contents": IMAGE.ravel().tolist()}
        given = {"name": "x", "datatype": "FP32", "shape": list(IMAGE.shape), "contents": contents}
        found = call(message("ModelInferRequest")(model_name="branching", id="7", inputs=[given]), timeout=20)
    assert found.id == "7"
    raw = found.raw_output_contents
    return np.frombuffer(raw[0], np.float32) if raw else np.array(found.outputs[0].contents.fp32_contents, np.float32)


def as_bytes(package: Any, port: int) -> np.ndarray:
    """The answer to Triton's client, tensors as bytes."""
    client = package.InferenceServerClient(f"127.0.0.1:{port}")
    given = package.InferInput("x", list(IMAGE.shape), "FP32")
    given.set_data_from_numpy(IMAGE)
    found = client.infer("branching", [given]).as_numpy("y")
    client.close()
    return np.asarray(found).ravel()


def test_what_peers_are_asked_is_answered_as_the_file_says(server: Running) -> None:
    """In JSON alone, in typed contents, and in bytes over both transports, whether or not a peer is installed."""
    plain = onnxruntime.InferenceSession(BRANCHING, providers=["CPUExecutionProvider"])
    wanted = plain.run(None, {"x": IMAGE})[0].ravel()
    found = [as_bytes(package, port) for package, port in ((over_http, server.http), (over_grpc, server.grpc))]
    for answer in (written_out(server.http), typed(server.grpc), *found):
        np.testing.assert_allclose(answer, wanted, rtol=1e-3)


@pytest.mark.parametrize("peer", [mlserver, triton])
def test_peers_answer_alike(peer: Peer, server: Running, tmp_path: Path) -> None:
    """JSON, typed contents and, where the peer takes them, tensors as bytes mean the same to both servers."""
    network = tmp_path / "branching.onnx"
    network.write_bytes(BRANCHING)
    with peer(tmp_path, network) as ports:
        np.testing.assert_allclose(written_out(server.http), written_out(ports["http"]), rtol=1e-3)
        np.testing.assert_allclose(typed(server.grpc), typed(ports["grpc"]), rtol=1e-3)
        ways = [(over_grpc, server.grpc, ports["grpc"])]
        if peer is triton:  # MLServer takes no bytes over HTTP
            ways.append((over_http, server.http, ports["http"]))
        for package, ours, theirs in ways:
            np.testing.assert_allclose(as_bytes(package, ours), as_bytes(package, theirs), rtol=1e-3)

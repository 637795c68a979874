"""Triton's own client makes every call that the protocol and its offered extensions have, over both transports."""

from __future__ import annotations

import asyncio
import re
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as over_grpc
import tritonclient.grpc.aio as over_grpc_aio
import tritonclient.http as over_http
import tritonclient.http.aio as over_http_aio
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tests.agent.models import BRANCHING
from tests.agent.server.running import TYPES, Running


class Client:
    """Triton's client of one transport, with what both give in one form."""

    def __init__(self, package: Any, port: int) -> None:
        self.package = package
        self.is_http = package is over_http
        self.triton = package.InferenceServerClient(f"127.0.0.1:{port}")

    def said(self, call: str, *given: Any) -> Any:
        """What a call says, as Python data."""
        found = getattr(self.triton, call)(*given)
        return found if self.is_http else getattr(self.triton, call)(*given, as_json=True)

    def input(self, name: str, datatype: str, array: np.ndarray, **options: Any) -> Any:
        """An input of a request."""
        made = self.package.InferInput(name, list(array.shape), datatype)
        made.set_data_from_numpy(array, **options)
        return made


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: Running) -> Iterator[Client]:
    """A client of either transport."""
    package = over_http if request.param == "http" else over_grpc
    made = Client(package, server.http if request.param == "http" else server.grpc)
    yield made
    made.triton.close()


def images(seed: int = 0) -> np.ndarray:
    """An input of the network with branches."""
    return np.random.default_rng(seed).random((1, 3, 16, 16), np.float32)


def right(image: np.ndarray) -> np.ndarray:
    """What plain ONNX Runtime says of it."""
    import onnxruntime as ort

    return ort.InferenceSession(BRANCHING, providers=["CPUExecutionProvider"]).run(None, {"x": image})[0]


def of_type(datatype: str) -> np.ndarray:
    """Values of a type, its extremes among them."""
    if datatype == "BYTES":
        return np.array([["", "naïve"], ["x" * 300, "\0"]], dtype=object)
    dtype = np.dtype(triton_to_np_dtype(datatype))
    if dtype.kind == "b":
        return np.array([[True, False], [False, True]])
    if dtype.kind == "f":
        return np.array([[np.finfo(dtype).max, -0.0], [np.finfo(dtype).tiny, -1.5]], dtype)
    return np.array([[np.iinfo(dtype).max, np.iinfo(dtype).min], [0, 1]], dtype)


def test_server_and_networks_describe_themselves(client: Client) -> None:
    """Health, metadata, configuration, statistics and the index say what is served."""
    triton = client.triton
    assert triton.is_server_live()
    assert triton.is_server_ready()
    assert triton.is_model_ready("branching")
    assert triton.is_model_ready("branching", "1")
    assert not triton.is_model_ready("nothing")
    about = client.said("get_server_metadata")
    assert about["name"] == "hope-agent"
    assert {"binary_tensor_data", "schedule_policy"} <= set(about["extensions"])
    metadata = client.said("get_model_metadata", "branching")
    shapes = [[int(size) for size in port["shape"]] for port in (*metadata["inputs"], *metadata["outputs"])]
    assert shapes == [[1, 3, 16, 16], [1, 10]]
    assert [port["datatype"] for port in client.said("get_model_metadata", "echoes")["inputs"]] == list(TYPES)
    config = client.said("get_model_config", "echoes")
    config = config if client.is_http else config["config"]
    assert [int(size) for size in config["input"][0]["dims"]] == [-1, 2]
    assert config["input"][-1]["data_type"] == "TYPE_STRING"
    index = client.said("get_model_repository_index")
    assert {one["name"] for one in (index if client.is_http else index["models"])} == {"branching", "echoes"}
    counted = client.said("get_inference_statistics", "branching")["model_stats"][0]["inference_count"]
    triton.infer("branching", [client.input("x", "FP32", images())])
    stats = client.said("get_inference_statistics")["model_stats"]
    assert int(next(one for one in stats if one["name"] == "branching")["inference_count"]) == int(counted) + 1


def test_an_inference_gives_the_right_answer(client: Client) -> None:
    """The answer is that of plain ONNX Runtime, under the request's own id, with a deadline and a priority."""
    image = images(1)
    inputs = [client.input("x", "FP32", image)]
    outputs = [client.package.InferRequestedOutput("y")]
    for wanted in (None, outputs):
        found = client.triton.infer("branching", inputs, outputs=wanted, request_id="7", priority=1, timeout=10**7)
        said = found.get_response() if client.is_http else found.get_response(as_json=True)
        assert said["id"] == "7"
        np.testing.assert_allclose(found.as_numpy("y"), right(image), rtol=1e-4)


@pytest.mark.parametrize("datatype", TYPES)
def test_every_type_comes_back_as_it_was_sent(client: Client, datatype: str) -> None:
    """Each element type crosses the wire both ways unchanged, as bytes and written out."""
    inputs = [client.input(f"in_{name}", name, of_type(name)) for name in TYPES]
    outputs = [client.package.InferRequestedOutput(f"out_{datatype}")]
    sent = of_type(datatype)
    forms = [(inputs, outputs)]
    if client.is_http and datatype != "FP16":  # the client sends halves as bytes alone
        written_out = client.input(f"in_{datatype}", datatype, sent, binary_data=False)
        others = [one for one in inputs if one.name() != f"in_{datatype}"]
        forms.append(([*others, written_out], [over_http.InferRequestedOutput(f"out_{datatype}", binary_data=False)]))
    for given, wanted in forms:
        found = client.triton.infer("echoes", given, outputs=wanted).as_numpy(f"out_{datatype}")
        if datatype == "BYTES":
            found = np.vectorize(lambda text: text if isinstance(text, str) else text.decode(), otypes=[object])(found)
        np.testing.assert_array_equal(found, sent)
        assert datatype in ("BYTES", "BOOL") or np.signbit(found).tolist() == np.signbit(sent).tolist()


def test_inferences_are_counted_for_prometheus(client: Client, server: Running) -> None:
    """By network, transport and outcome, with what was refused apart; and what requests hold at present."""
    transport = "http" if client.is_http else "grpc"

    def counted(outcome: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http}/metrics", timeout=60) as page:
            text = page.read().decode()
        assert "hope_serving_memory_bytes" in text
        labels = f'model="branching",outcome="{outcome}",transport="{transport}"'
        found = re.search(rf"^hope_inference_seconds_count{{{labels}}} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    before = {outcome: counted(outcome) for outcome in ("ok", "refused_504")}
    inputs = [client.input("x", "FP32", images())]
    client.triton.infer("branching", inputs)
    with pytest.raises(InferenceServerException):
        client.triton.infer("branching", inputs, timeout=1)
    assert {outcome: counted(outcome) - was for outcome, was in before.items()} == {"ok": 1, "refused_504": 1}


def test_asynchronous_inferences_all_answer(client: Client) -> None:
    """Sixteen requests at once each get the answer to their own input."""
    every = [images(seed) for seed in range(16)]
    if client.is_http:
        waiting = [client.triton.async_infer("branching", [client.input("x", "FP32", image)]) for image in every]
        found = [one.get_result().as_numpy("y") for one in waiting]
    else:
        made: dict[int, Any] = {}
        done = threading.Event()

        def take(place: int, result: Any, error: Any) -> None:
            made[place] = error or result.as_numpy("y")
            if len(made) == len(every):
                done.set()

        for place, image in enumerate(every):
            client.triton.async_infer(
                "branching",
                [client.input("x", "FP32", image)],
                callback=lambda result, error, place=place: take(place, result, error),
            )
        assert done.wait(30)
        found = [made[place] for place in range(len(every))]
    for image, answer in zip(every, found, strict=True):
        np.testing.assert_allclose(answer, right(image), rtol=1e-4)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
def test_a_compressed_request_is_inflated(client: Client, algorithm: str) -> None:
    """A request that a client compresses is answered like any other."""
    name = "request_compression_algorithm" if client.is_http else "compression_algorithm"
    found = client.triton.infer("branching", [client.input("x", "FP32", images(2))], **{name: algorithm})
    np.testing.assert_allclose(found.as_numpy("y"), right(images(2)), rtol=1e-4)


def test_a_stream_answers_in_order_and_outlives_a_wrong_request(server: Running) -> None:
    """On one stream each request is answered, a wrong one by its reason, and those behind it still are."""
    found: list[Any] = []
    done = threading.Event()

    def take(result: Any, error: Any) -> None:
        found.append(error or result.as_numpy("y"))
        if len(found) == 3:
            done.set()

    client = Client(over_grpc, server.grpc)
    client.triton.start_stream(callback=take)
    for image in (images(3), np.zeros((1, 3, 5, 5), np.float32), images(4)):
        client.triton.async_stream_infer("branching", [client.input("x", "FP32", image)])
    assert done.wait(30)
    client.triton.stop_stream()
    client.triton.close()
    np.testing.assert_allclose(found[0], right(images(3)), rtol=1e-4)
    assert "shape" in str(found[1])
    np.testing.assert_allclose(found[2], right(images(4)), rtol=1e-4)


@pytest.mark.parametrize(
    ("model", "version", "name", "datatype", "shape", "reason"),
    [
        ("nothing", "", "x", "FP32", (1, 3, 16, 16), "no network is called"),
        ("branching", "2", "x", "FP32", (1, 3, 16, 16), "version 1 alone"),
        ("branching", "", "z", "FP32", (1, 3, 16, 16), "no input 'z'"),
        ("branching", "", "x", "INT32", (1, 3, 16, 16), "is FP32, not INT32"),
        ("branching", "", "x", "FP32", (1, 3, 16, 15), "has shape"),
        ("branching", "", "x", "FP32", (3, 16, 16), "has shape"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(
    client: Client, model: str, version: str, name: str, datatype: str, shape: tuple[int, ...], reason: str
) -> None:
    """A wrong name, version, type or shape loses that request alone, and the client is told why."""
    array = np.zeros(shape, triton_to_np_dtype(datatype))
    with pytest.raises(InferenceServerException, match=reason):
        client.triton.infer(model, [client.input(name, datatype, array)], model_version=version)
    assert client.triton.is_server_ready()


def test_what_is_not_offered_is_refused(client: Client) -> None:
    """Sequences, classifications, shared memory and other networks are refused, never passed over."""
    inputs = [client.input("x", "FP32", images())]
    with pytest.raises(InferenceServerException, match="sequence_id"):
        client.triton.infer("branching", inputs, sequence_id=1, sequence_start=True)
    wanted = client.package.InferRequestedOutput("y", class_count=3)
    with pytest.raises(InferenceServerException, match="classification"):
        client.triton.infer("branching", inputs, outputs=[wanted])
    shared = client.package.InferInput("x", [1, 3, 16, 16], "FP32")
    shared.set_shared_memory("region", 3072)
    with pytest.raises(InferenceServerException, match="shared_memory"):
        client.triton.infer("branching", [shared])
    for call in (client.triton.load_model, client.triton.unload_model):
        with pytest.raises(InferenceServerException, match="started with"):
            call("branching")


@pytest.mark.parametrize(
    ("call", "given"),
    [
        ("get_trace_settings", ("branching",)),
        ("update_trace_settings", ("branching", {"trace_level": ["OFF"]})),
        ("get_log_settings", ()),
        ("update_log_settings", ({"log_info": False},)),
        ("get_system_shared_memory_status", ()),
        ("register_system_shared_memory", ("region", "/region", 3072)),
        ("unregister_system_shared_memory", ("region",)),
        ("get_cuda_shared_memory_status", ()),
        ("register_cuda_shared_memory", ("region", b"aGFuZGxl", 0, 3072)),
        ("unregister_cuda_shared_memory", ("region",)),
    ],
)
def test_calls_of_other_extensions_are_refused(client: Client, call: str, given: tuple[Any, ...]) -> None:
    """All that the client can call beyond the protocol and the offered extensions is an error of its own kind."""
    with pytest.raises(InferenceServerException):
        getattr(client.triton, call)(*given)
    assert client.triton.is_server_ready()


def test_every_call_of_the_client_is_tried(client: Client) -> None:
    """All that either client can call is called in this file, but for what sends nothing."""
    silent = {"close", "plugin", "register_plugin", "unregister_plugin", "generate_request_body", "parse_response_body"}
    here = Path(__file__).read_text()
    calls = {name for name in dir(client.triton) if not name.startswith("_")} - silent
    assert {name for name in calls if not re.search(rf"\b{name}\b", here)} == set()


@pytest.mark.parametrize("package", [over_http_aio, over_grpc_aio])
def test_clients_of_event_loops_are_served(server: Running, package: Any) -> None:
    """The asynchronous clients describe the server, infer side by side, and are told what is wrong."""
    image = images(5)
    given = package.InferInput("x", [1, 3, 16, 16], "FP32")
    given.set_data_from_numpy(image)

    async def ask() -> list[Any]:
        port = server.http if package is over_http_aio else server.grpc
        async with package.InferenceServerClient(f"127.0.0.1:{port}") as client:
            assert await client.is_server_ready()
            assert await client.get_model_metadata("branching")
            with pytest.raises(InferenceServerException, match="no network is called"):
                await client.infer("nothing", [given])
            return list(await asyncio.gather(*(client.infer("branching", [given]) for _ in range(8))))

    for answer in asyncio.run(ask()):
        np.testing.assert_allclose(answer.as_numpy("y"), right(image), rtol=1e-4)


def test_a_request_that_cannot_make_its_timeout_is_dropped(client: Client) -> None:
    """A timeout of a microsecond is a deadline that nothing makes: the client is told so, and later ones are served."""
    inputs = [client.input("x", "FP32", images())]
    client.triton.infer("branching", inputs)
    with pytest.raises(InferenceServerException) as caught:
        client.triton.infer("branching", inputs, timeout=1)
    assert caught.value.status() in ("504", "StatusCode.DEADLINE_EXCEEDED")
    client.triton.infer("branching", inputs, timeout=10**7, priority=2)

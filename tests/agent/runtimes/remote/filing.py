"""A server that has the model-repository extension, and does nothing but what the protocol says."""

from __future__ import annotations

import base64
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import onnxruntime

from agent_sdk.protocol.datatypes import DATATYPES

NUMPY = {datatype: np.dtype(dtype) for dtype, datatype in DATATYPES.items()}
EXTENSIONS = ("binary_tensor_data", "model_repository", "model_configuration", "statistics")
LOAD = {"backend", "max_batch_size", "input", "output"}
RUN = {"inputs", "outputs"}
INPUT = {"name", "datatype", "shape", "parameters"}


class RefusalError(Exception):
    """A status, and why."""


class Filing:
    """The server; without ``explicit`` it takes no files, as a Triton by default.

    Attributes:
        says_ns: what its statistics say of each run, nanoseconds; None: what it took.
        asked: what it was asked, but for runs.
    """

    def __init__(self, *, explicit: bool = True, extensions: tuple[str, ...] = EXTENSIONS) -> None:
        self.explicit, self.extensions = explicit, extensions
        self.sessions: dict[str, onnxruntime.InferenceSession] = {}
        self.spent: dict[str, list[int]] = {}
        self.says_ns: int | None = None
        self.asked: list[str] = []
        filing = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one packet for head and body
            disable_nagle_algorithm = True

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.do_POST()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                try:
                    status, said, tensors = 200, *filing.answer(self.command, self.path, body, self.headers)
                except RefusalError as error:
                    status, said, tensors = error.args[0], json.dumps({"error": error.args[1]}).encode(), b""
                self.send_response(status)
                self.send_header("Content-Length", str(len(said) + len(tensors)))
                if tensors:
                    self.send_header("Inference-Header-Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said + tensors)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: bytes, fields: Any) -> tuple[bytes, bytes]:
        """What is said, and the tensors behind it."""
        if found := re.fullmatch(r"/v2/models/([^/]+)/infer", path):
            return self._infer(found[1], body, int(fields.get("inference-header-content-length", len(body))))
        self.asked.append(f"{method} {path}")
        if path == "/v2":
            return json.dumps({"name": "filing", "version": "1", "extensions": self.extensions}).encode(), b""
        if path == "/v2/repository/index":
            assert json.loads(body) == {"ready": True}
            return json.dumps([{"name": one, "version": "1", "state": "READY"} for one in self.sessions]).encode(), b""
        if found := re.fullmatch(r"/v2/models/([^/]+)/stats", path):
            count, ns = self.spent[found[1]]
            spent = {"success": {"count": count, "ns": ns}, "compute_infer": {"count": count, "ns": ns}}
            return json.dumps({"model_stats": [{"name": found[1], "inference_stats": spent}]}).encode(), b""
        if found := re.fullmatch(r"/v2/repository/models/([^/]+)/(un)?load", path):
            if not self.explicit:
                raise RefusalError(503, "explicit model load / unload is not allowed if polling is enabled")
            if found[2]:
                self.sessions.pop(found[1], None)
            else:
                self._load(found[1], json.loads(body)["parameters"])
            return b"", b""
        raise RefusalError(404, "Not Found")

    def _load(self, name: str, parameters: dict[str, str]) -> None:
        assert {*parameters} == {"config", "file:1/model.onnx"}
        config = json.loads(parameters["config"])
        assert {*config} == LOAD
        if config["backend"] != "onnxruntime":
            raise RefusalError(400, f"unable to find backend library for backend '{config['backend']}'")
        file = base64.b64decode(parameters["file:1/model.onnx"], validate=True)
        try:
            session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise RefusalError(500, f"failed to load '{name}', {error}") from error
        for end, ports in (("input", session.get_inputs()), ("output", session.get_outputs())):
            assert [one["name"] for one in config[end]] == [one.name for one in ports]
            for one, port in zip(config[end], ports, strict=True):
                if not one["dims"]:
                    raise RefusalError(400, f"model {end} must specify 'dims'")
                sizes = [size if isinstance(size, int) else -1 for size in port.shape]
                kind = {"tensor(float)": "float32", "tensor(double)": "float64"}.get(port.type, port.type[7:-1])
                assert (one["dims"], one["data_type"]) == (sizes, f"TYPE_{DATATYPES[kind]}")
        self.sessions[name], self.spent[name] = session, [0, 0]

    def _infer(self, name: str, body: bytes, head: int) -> tuple[bytes, bytes]:
        if name not in self.sessions:
            raise RefusalError(404, f"Request for unknown model: '{name}' is not found")
        said, at, feed = json.loads(body[:head]), head, {}
        assert {*said} == RUN
        for one in said["inputs"]:
            assert ({*one}, {*one["parameters"]}) == (INPUT, {"binary_data_size"}), one
            size = one["parameters"]["binary_data_size"]
            feed[one["name"]] = np.frombuffer(body[at : at + size], NUMPY[one["datatype"]]).reshape(one["shape"])
            at += size
        assert at == len(body)
        assert all(one["parameters"] == {"binary_data": True} for one in said["outputs"])
        names = [one["name"] for one in said["outputs"]]
        began = time.perf_counter_ns()
        made = self.sessions[name].run(names, feed)
        took = time.perf_counter_ns() - began
        self.spent[name][0] += 1
        self.spent[name][1] += took if self.says_ns is None else self.says_ns
        outputs = [
            {
                "name": one,
                "datatype": DATATYPES[array.dtype.name],
                "shape": array.shape,
                "parameters": {"binary_data_size": array.nbytes},
            }
            for one, array in zip(names, made, strict=True)
        ]
        answer = {"model_name": name, "model_version": "1", "outputs": outputs}
        return json.dumps(answer).encode(), b"".join(array.tobytes() for array in made)


@contextmanager
def filing(**options: Any) -> Iterator[Filing]:
    """Such a server, until the block ends."""
    made = Filing(**options)
    try:
        yield made
    finally:
        with suppress(OSError):
            made.close()

"""A server that speaks the protocol over gRPC alone, and that may lie; as a program it dies in one of its calls."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnxruntime

from agent_sdk.protocol.messages import SERVICE, methods
from tests.agent.models import BRANCHING

SHAPES = {"x": [1, 3, 16, 16], "y": [1, 10]}
Lie = Callable[[Any], Any]
"""Makes of the right answer to a call what is answered: a message, or bytes that need be none."""


class Speaking:
    """A server of the network ``branching`` on this machine.

    Args:
        token: what callers must hold.
        pair: its certificate and key.

    Attributes:
        port: where it listens.
        lies: by the names of calls, how it lies.
        asked: by the names of calls, how often.
        refuses: what it refuses runs with.
        callers: the connections on which it was asked.
        broken: those of them that carry nothing any more.
    """

    def __init__(self, token: str = "", pair: tuple[Path, Path] | None = None) -> None:
        self.lies: dict[str, Lie] = {}
        self.asked: Counter[str] = Counter()
        self.refuses: grpc.StatusCode | None = None
        self.callers: set[str] = set()
        self.broken: set[str] = set()
        self._token = token
        self._session = onnxruntime.InferenceSession(BRANCHING)
        self._server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.so_reuseport", 0)])
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._handler(name, gives), takes.FromString)
            for name, (takes, gives, streams) in methods().items()
            if not streams and hasattr(self, f"_{name}")
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        if pair is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            credentials = grpc.ssl_server_credentials([(pair[1].read_bytes(), pair[0].read_bytes())])
            self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self._server.start()

    def close(self) -> None:
        """End it, and what it is asked."""
        self._server.stop(None).wait()

    def _handler(self, name: str, gives: type[Any]) -> Callable[[Any, grpc.ServicerContext], bytes]:
        answer = getattr(self, f"_{name}")

        def handle(request: Any, context: grpc.ServicerContext) -> bytes:
            self.callers.add(context.peer())
            if context.peer() in self.broken:
                context.abort(grpc.StatusCode.UNAVAILABLE, "this connection is broken")
            if self._token and ("authorization", f"Bearer {self._token}") not in context.invocation_metadata():
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "this server is for those with its token")
            if getattr(request, "model_name", getattr(request, "name", "branching")) != "branching":
                context.abort(grpc.StatusCode.NOT_FOUND, "no such network")
            self.asked[name] += 1
            if self.refuses is not None and name == "ModelInfer":
                context.abort(self.refuses, "too many requests are under way")
            made = gives(**answer(request))
            said = self.lies[name](made) if name in self.lies else made
            return said if isinstance(said, bytes) else said.SerializeToString()

        return handle

    def _ServerReady(self, _: Any) -> dict[str, Any]:  # noqa: N802  the protocol's names
        return {"ready": True}

    def _ServerMetadata(self, _: Any) -> dict[str, Any]:  # noqa: N802
        return {"name": "speaking", "version": "1"}

    def _ModelMetadata(self, _: Any) -> dict[str, Any]:  # noqa: N802
        x, y = ({"name": name, "datatype": "FP32", "shape": shape} for name, shape in SHAPES.items())
        return {"name": "branching", "versions": ["1"], "inputs": [x], "outputs": [y]}

    def _ModelInfer(self, request: Any) -> dict[str, Any]:  # noqa: N802
        (given,) = request.raw_input_contents
        assert [(one.name, one.datatype, [*one.shape]) for one in request.inputs] == [("x", "FP32", SHAPES["x"])]
        (made,) = self._session.run(["y"], {"x": np.frombuffer(given, np.float32).reshape(SHAPES["x"])})
        output = {"name": "y", "datatype": "FP32", "shape": SHAPES["y"]}
        return {
            "model_name": "branching",
            "model_version": "1",
            "outputs": [output],
            "raw_output_contents": [made.tobytes()],
        }


def main() -> None:
    """Say the port, and die in the call after so many."""
    server, calls = Speaking(), count()

    def die(answer: Any) -> Any:
        if next(calls) == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    server.lies["ModelInfer"] = die
    print(server.port, flush=True)
    signal.pause()


if __name__ == "__main__":
    main()

"""A transport that plays the planner's part from a script, and small messages to play with."""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Callable
from threading import Event
from typing import Any
from unittest.mock import patch

import httpx
import onnx
import zstandard

from agent_sdk.planner.client import PlannerClient
from hope_schema import Cause, Job, ModelGraph, Op, Plan, PlannedJob, PlanRequest, Step, Tensor

Scripted = httpx.Response | Exception | Callable[[httpx.Request], httpx.Response]


class ScriptedTransport(httpx.BaseTransport):
    """Gives the scripted answers in turn and remembers every request with its decompressed body."""

    def __init__(self, *script: Scripted) -> None:
        self.script = deque(script)
        self.requests: list[httpx.Request] = []
        self.bodies: list[bytes] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer one request from the script."""
        raw = request.read()
        if "Content-Encoding" in request.headers:
            raw = zstandard.ZstdDecompressor().decompress(raw)
        self.requests.append(request)
        self.bodies.append(raw)
        step = self.script.popleft()
        if isinstance(step, Exception):
            raise step
        answer = step(request) if callable(step) else step
        if answer.is_stream_consumed:
            return httpx.Response(answer.status_code, headers=answer.headers, stream=httpx.ByteStream(answer.content))
        return answer


def problem(status: int, kind: str = "about:blank", detail: str = "no", **headers: str) -> httpx.Response:
    """Return a problem+json answer."""
    body = {"type": kind, "title": "t", "status": status, "detail": detail, "request_id": "server-id"}
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.Response(
        status, content=json.dumps(body), headers={"Content-Type": "application/problem+json", **names}
    )


def small_graph(length: int = 2) -> ModelGraph:
    """Return a graph of ``length`` ops in a row."""
    names = [f"t{i}" for i in range(length + 1)]
    return ModelGraph(
        name="small",
        tensors=tuple(Tensor(name=name, shape=(1, 8), dtype="float32") for name in names),
        ops=tuple(Op(type="Relu", inputs=(a,), outputs=(b,)) for a, b in itertools.pairwise(names)),
        inputs=(names[0],),
        outputs=(names[-1],),
    )


def small_model(length: int = 2) -> onnx.ModelProto:
    """Return the model of ``small_graph``."""
    names = [f"t{i}" for i in range(length + 1)]
    nodes = [onnx.helper.make_node("Relu", [a], [b]) for a, b in itertools.pairwise(names)]
    ends = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 8]) for n in (names[0], names[-1])]
    graph = onnx.helper.make_graph(nodes, "small", ends[:1], ends[1:])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


def small_plan(graph: ModelGraph | None = None, processor: str = "ort@0") -> Plan:
    """Return a legal plan of ``small_graph`` on one processor."""
    graph = graph or small_graph()
    steps = tuple(
        Step(id=i, ops=(op.id,), dtype="float32", processor=processor, start_us=i, finish_us=i + 1, cause=Cause.FASTER)
        for i, op in enumerate(graph.topological_ops)
    )
    return Plan(
        jobs=(PlannedJob(model_hash=graph.model_hash, finish_us=len(steps)),),
        soc="soc",
        frequency="any",
        processors=(processor,),
        steps=steps,
        order=tuple(step.id for step in steps),
        makespan_us=len(steps),
        lower_bound_us=len(steps),
        gap=0.0,
        method="single",
        bound_method="critical_path",
        profile_version=1,
    )


def plan_answer(plan: Plan, *, version: int = 1, etag: str = '"v1"', cache: str = "hit") -> httpx.Response:
    """Return the planner's answer that serves ``plan``."""
    body = {
        "plan_id": "plan-1",
        "version": version,
        "provisional": False,
        "created_at": "2026-01-01T00:00:00Z",
        "solve_us": 5.0,
        "plan": plan.model_dump(mode="json"),
    }
    return httpx.Response(
        200,
        content=json.dumps(body),
        headers={"Content-Type": "application/json", "ETag": etag, "Hope-Plan-Cache": cache},
    )


REQUEST = PlanRequest(jobs=(Job(model_hash=small_graph().model_hash),), soc="soc", frequency="any")


def run(transport: ScriptedTransport | None, verb: Callable[[PlannerClient], Any], **options):
    """Run one verb of a client on ``transport``; return its result and the seconds it slept between attempts."""
    slept: list[float] = []

    class Noted(Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            slept.append(timeout)
            return self.is_set()

    given = {"url": "http://planner", "transport": transport, **options}
    with patch("agent_sdk.planner.client.Event", Noted), PlannerClient(**given) as client:
        return verb(client), slept

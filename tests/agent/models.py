"""Small ONNX models to run and to break."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from agent_sdk import Agent, Session
from agent_sdk.engine.single import single_processor_plan
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.reference import Reference
from agent_sdk.model import Content, Model, extract, read_model
from agent_sdk.model.feeds import Drawn, draw, feeds_of
from agent_sdk.planner.client import ServedPlan
from agent_sdk.planner.supplier import Obtained
from hope_schema import PlanReply


def branching_model(channels: int = 8, size: int = 16) -> onnx.ModelProto:
    """Return two convolution branches that meet in a concat, then a classifier with a softmax."""
    rng = np.random.default_rng(7)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) * 0.3).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["stem"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["stem"], ["stem_r"]),
        helper.make_node("Conv", ["stem_r", "w1"], ["left"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["left"], ["left_r"]),
        helper.make_node("Conv", ["stem_r", "w2"], ["right"], kernel_shape=[1, 1]),
        helper.make_node("Sigmoid", ["right"], ["right_s"]),
        helper.make_node("Concat", ["left_r", "right_s"], ["both"], axis=1),
        helper.make_node("GlobalAveragePool", ["both"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w3"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "branching",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [
            weight("w0", channels, 3, 3, 3),
            weight("w1", channels, channels, 3, 3),
            weight("w2", channels, channels, 1, 1),
            weight("w3", 2 * channels, 10),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


BRANCHING = branching_model().SerializeToString()
"""The model that most tests of the agent run, as bytes."""


def chain_model(*channels: int, size: int = 8) -> onnx.ModelProto:
    """Return convolutions in a row that make so many channels each."""
    rng, wide = np.random.default_rng(5), (3, *channels)
    weights = [
        numpy_helper.from_array((rng.standard_normal((after, before, 3, 3)) / before).astype(np.float32), f"w{k}")
        for k, (before, after) in enumerate(pairwise(wide))
    ]
    nodes = [
        helper.make_node("Conv", [f"t{k}", f"w{k}"], [f"t{k + 1}"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        for k in range(len(channels))
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, count, size, size])
        for name, count in (("t0", 3), (f"t{len(channels)}", wide[-1]))
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def one_op_model(op: str = "Relu", domain: str = "", shape: tuple[int | str, ...] = (1, 4)) -> onnx.ModelProto:
    """Return a model of one op, which may not exist, on a shape that may not be static."""
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], domain=domain)], "one", infos[:1], infos[1:])
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def expected(source: bytes, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return inputs and what the whole model makes of them."""
    inputs = draw(read_model(source), seed)
    return inputs, Reference(Content(source)).outputs(inputs)


def computed(model: Model, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return what ONNX Runtime makes of a model as it was read: to compare pieces of it with the whole of it."""
    graph = model.graph
    all_of_it = extract(model, [op.id for op in graph.ops], graph.inputs, graph.outputs)
    return Reference(Content(all_of_it)).outputs(inputs)


def products(side: int) -> onnx.ModelProto:
    """Three products of square matrices that a file of a few bytes asks for."""
    shape = numpy_helper.from_array(np.array([side, side]), "shape")
    nodes = [
        helper.make_node("ConstantOfShape", ["shape"], ["a"]),
        *(helper.make_node("MatMul", [before, "a"], [after]) for before, after in ("ab", "bc", "cd")),
        helper.make_node("ReduceSum", ["d"], ["sum"], keepdims=0),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], [shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


_read = cache(read_model)


def prepared_of(
    contenders: Mapping[str, Any], us: Mapping[str, float], model: Model | None = None, **options: Any
) -> Prepared:
    """A model as it is ready to run, with these contenders, which took so long when they were tried."""
    model = model or _read(BRANCHING)
    obtained, drawn = Obtained(None, "single", False), Drawn(feeds_of(model))
    return Prepared(model, Reference(Content(b"")), obtained, drawn, contenders, us, **options)


def newer_plan(agent: Agent, session: Session, processor: str) -> Obtained:
    """What the planner would answer if it now thought everything best on one processor."""
    served = session.latest.obtained.served
    assert served is not None
    soc = agent.soc
    moved = single_processor_plan(
        session.latest.model.graph, processor, soc=soc.name, frequency=soc.frequency, latency_us=10.0
    )
    reply = PlanReply(**{**dict(served.reply), "version": served.reply.version + 1, "plan": moved})
    return replace(session.latest.obtained, served=ServedPlan(reply=reply, etag='"2"'), program=None)

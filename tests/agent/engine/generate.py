"""Random models and random legal plans: what the engine must carry out whatever the planner says."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper

from agent_sdk.engine.program import memory_of
from agent_sdk.model import Model, read_model
from agent_sdk.runtimes.base import Processor
from hope_schema import HOST, Cause, Cut, Plan, PlannedJob, Step, SuperOp, Transfer, merge
from hope_schema.cutgraph import cut_graph
from hope_schema.cutting import CutError

SHAPE = (1, 8, 6, 6)


def random_model(rng: random.Random, ops: int) -> Model:
    """A random dataflow graph: up to two inputs, several outputs, fan-out, an op with two outputs, unread outputs.

    Every tensor has the same shape but the halves of a Split, so that any tensor can feed any op.
    """
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    seeds = np.random.default_rng(rng.randrange(2**31))
    names = [f"in{i}" for i in range(rng.randint(1, 2))]
    inputs = list(names)
    for index in range(ops):
        # Mostly recent tensors, so that the graph is deep as well as wide.
        recent = names[-6:] if rng.random() < 0.7 else names
        a, b = rng.choice(recent), rng.choice(names)
        out = f"t{index}"
        kind = rng.choice(("Conv", "Conv", "Relu", "Max", "Mul", "Concat", "Split", "MaxPool"))
        if kind == "Conv":
            weight = seeds.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8
            weights.append(onnx.numpy_helper.from_array(weight, f"w{index}"))
            nodes.append(helper.make_node("Conv", [a, f"w{index}"], [out], pads=[1, 1, 1, 1]))
        elif kind == "MaxPool":
            nodes.append(helper.make_node("MaxPool", [a], [out], kernel_shape=[3, 3], pads=[1, 1, 1, 1]))
        elif kind == "Concat":
            nodes.append(helper.make_node("Split", [a], [f"{out}x", f"{out}y"], axis=1, num_outputs=2))
            nodes.append(helper.make_node("Concat", [f"{out}y", f"{out}x"], [out], axis=1))
        elif kind == "Split":
            # The second half may be read by nobody.
            nodes.append(helper.make_node("Split", [a], [f"{out}x", f"{out}y"], axis=1, num_outputs=2))
            read = rng.choice("xy")
            nodes.append(helper.make_node("Concat", [f"{out}{read}", f"{out}{read}"], [out], axis=1))
        elif kind == "Relu":
            nodes.append(helper.make_node("Relu", [a], [out]))
        else:
            nodes.append(helper.make_node(kind, [a, b], [f"{out}s"]))
            # Keep values in range. No Add: ONNX Runtime fuses it into convolutions, so that rounding depends on cuts.
            nodes.append(helper.make_node("Tanh", [f"{out}s"], [out]))
        names.append(out)
    made = [name for name in names if name not in inputs]
    read = {name for node in nodes for name in node.input}
    ends = [name for name in made if name not in read]
    outputs = list(dict.fromkeys([*rng.sample(ends, max(1, len(ends) // 2)), rng.choice(made)]))
    # An input that nobody reads is legal in ONNX and useless here.
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in inputs if name in read]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in outputs]
    graph = helper.make_graph(nodes, f"random{rng.randrange(10**6)}", infos, results, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return read_model(proto)


def chain_model(ops: int, shape: tuple[int, ...] = SHAPE) -> Model:
    """So many ops, each of which reads what the one before it makes."""
    names = [f"t{i}" for i in range(ops + 1)]
    nodes = [helper.make_node("Sin", [a], [b]) for a, b in pairwise(names)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in (names[0], names[-1])]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


def random_inputs(model: Model, seed: int) -> dict[str, np.ndarray]:
    """Standard normal arrays for every input."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(model.graph.tensor[name].shape).astype(model.graph.tensor[name].dtype)
        for name in model.graph.inputs
    }


def random_order(super_ops: Sequence[SuperOp], rng: random.Random) -> list[int]:
    """A random topological order of the super-ops."""
    maker = {name: index for index, s in enumerate(super_ops) for op in s.ops for name in op.outputs}
    waiting = {i: {maker[name] for name in s.inputs if name in maker} for i, s in enumerate(super_ops)}
    order: list[int] = []
    ready = [i for i, before in waiting.items() if not before]
    while ready:
        chosen = ready.pop(rng.randrange(len(ready)))
        order.append(chosen)
        for index, before in waiting.items():
            if chosen in before:
                before.remove(chosen)
                if not before:
                    ready.append(index)
    return order


def plan_of(
    model: Model,
    super_ops: Sequence[SuperOp],
    order: Sequence[int],
    where: Mapping[int, str],
    processors: Sequence[str],
    cuts: Sequence[Cut] = (),
) -> Plan:
    """A plan with made-up times: one step per super-op of the cut graph, one after another."""
    steps = tuple(
        Step(
            id=index,
            ops=tuple(op.id for op in super_op.ops),
            dtype="float32",
            processor=where[index],
            start_us=float(order.index(index)),
            finish_us=float(order.index(index) + 1),
            alone_us=1.0,
            cause=Cause.FASTER,
        )
        for index, super_op in enumerate(super_ops)
    )
    return Plan(
        jobs=(PlannedJob(model_hash=model.graph.model_hash, cuts=tuple(cuts), finish_us=0.0),),
        soc="test",
        frequency="test",
        processors=tuple(processors),
        steps=steps,
        order=tuple(order),
        makespan_us=float(len(steps)),
        lower_bound_us=float(len(steps)),
        gap=0.0,
        method="random",
        bound_method="none",
        profile_version=0,
    )


def random_cuts(model: Model, rng: random.Random) -> list[Cut]:
    """Cuts of about half of the inputs and super-ops along any axis but the batch; these are chained or not."""
    cuts: list[Cut] = []
    for name in (*model.graph.inputs, *(super_op.id for super_op in merge(model.graph))):
        shape = model.graph.tensor[name].shape
        axis, chained = rng.randrange(1, len(shape)), rng.random() < 0.5
        at = tuple(sorted(rng.sample(range(1, shape[axis]), rng.randint(1, 2))))
        if rng.random() < 0.5:
            continue
        with suppress(CutError):
            cuts_with = [*cuts, Cut(op=name, axes=(axis,), at=(at,), chained=chained)]
            cut_graph(model.graph, cuts_with)
            cuts = cuts_with
    return cuts


def random_legal_plan(
    model: Model, processors: Sequence[Processor], rng: random.Random, cuts: Sequence[Cut] = ()
) -> Plan:
    """Any topological order and any placement; runs of ops stay together or scatter, as ``rng`` decides."""
    super_ops = merge(cut_graph(model.graph, cuts))
    ids = [processor.id for processor in processors]
    stay = rng.random()
    order = random_order(super_ops, rng)
    where: dict[int, str] = {}
    current = rng.choice(ids)
    for index in order:
        if rng.random() > stay:
            current = rng.choice(ids)
        where[index] = current
    return plan_of(model, super_ops, order, where, ids, cuts)


def dealt_plan(model: Model, hand: Sequence[str], seed: int = 0) -> Plan:
    """The super-ops in a random order, dealt out to these processors in turn."""
    super_ops = merge(model.graph)
    order = random_order(super_ops, random.Random(seed))
    where = {index: hand[place % len(hand)] for place, index in enumerate(order)}
    return plan_of(model, super_ops, order, where, list(dict.fromkeys(hand)))


def carried(
    plan: Plan, model: Model, processors: Sequence[Processor], rng: random.Random, carriers: Sequence[str]
) -> Plan:
    """The plan with a transfer for every tensor and memory that needs one, over some of the carriers or the reader."""
    place = {processor.id: processor.spec.place for processor in processors}
    at = {op: place[step.processor] for step in plan.steps for op in step.ops}
    moves: dict[tuple[str, str], Transfer] = {}
    for step_id in plan.order:
        step = plan.step[step_id]
        here = place[step.processor]
        for name in (name for op in step.ops for name in model.graph.op[op].inputs):
            source = at.get(model.graph.producer.get(name, ""), HOST)
            if memory_of(source) != memory_of(here) and (name, here) not in moves:
                over = rng.choice([*carriers, None])
                moves[name, here] = Transfer(
                    tensor=name,
                    source=source,
                    target=here,
                    over=over,
                    reader=None if over else step_id,
                    start_us=0,
                    finish_us=0,
                )
    return plan.model_copy(update={"transfers": tuple(moves.values())})


def whole_plan(model: Model, processor: str) -> Plan:
    """Everything on one processor."""
    return dealt_plan(model, [processor])

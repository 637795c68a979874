"""Random dataflow graphs, drawn by hypothesis, and changes to them that must or must not matter."""

from __future__ import annotations

import random
from collections.abc import Mapping

from hypothesis import strategies as st

from hope_schema import ModelGraph, Op, Tensor, TensorType
from hope_schema.superop import ANCHORS, DEQUANTISE, FREE_FOLLOWERS, FUSED_FOLLOWERS, LED, QUANTISE

MERGED = {*ANCHORS, *FREE_FOLLOWERS, *FUSED_FOLLOWERS, *LED, "Pad", QUANTISE, DEQUANTISE}
TYPES = sorted({*MERGED, "LRN", "Softmax", "Split"})
SHAPES = [(1, 8, 4, 4), (1, 4, 8, 8), (16,), ()]


@st.composite
def graphs(draw: st.DrawFn, min_ops: int = 1, max_ops: int = 14) -> ModelGraph:
    """Draw a graph: ops of mergeable and other types, one or two outputs each, joins, forks and inner graph outputs."""
    count = draw(st.integers(min_ops, max_ops))
    rng = random.Random(draw(st.integers(0, 2**32)))
    tensors = [
        Tensor(name=f"in{index}", shape=rng.choice(SHAPES), dtype="float32") for index in range(rng.choice([1, 2]))
    ]
    inputs = tuple(tensor.name for tensor in tensors)
    ops = []
    for index in range(count):
        kind = rng.choice(TYPES)
        # Reading the newest tensor often makes long chains; reading any makes joins.
        reads = [tensors[-1].name if rng.random() < 0.6 else rng.choice(tensors).name]
        if rng.random() < 0.3:
            reads.append(rng.choice(tensors).name)
        outputs = tuple(f"t{rng.randrange(10**6)}_{index}_{part}" for part in range(2 if kind == "Split" else 1))
        parameters = tuple(
            TensorType(shape=(rng.choice([1, 3]),), dtype="float32") for _ in range(rng.choice([0, 0, 1, 2]))
        )
        attributes = {"axis": rng.randrange(3)} if rng.random() < 0.3 else {}
        ops.append(Op(type=kind, attributes=attributes, inputs=tuple(reads), outputs=outputs, parameters=parameters))
        tensors += [Tensor(name=name, shape=rng.choice(SHAPES), dtype="float32") for name in outputs]
    inner = [name for op in ops for name in op.outputs]
    outputs = {ops[-1].id, *rng.sample(inner, min(len(inner), rng.choice([0, 0, 1, 2])))}
    return ModelGraph(
        name="random", tensors=tuple(tensors), ops=tuple(ops), inputs=inputs, outputs=tuple(sorted(outputs))
    )


def relisted(graph: ModelGraph, rng: random.Random) -> ModelGraph:
    """Return the same graph with its ops and tensors listed in another order, under another model name."""
    ops, tensors = list(graph.ops), list(graph.tensors)
    rng.shuffle(ops)
    rng.shuffle(tensors)
    return ModelGraph(name="other", tensors=tuple(tensors), ops=tuple(ops), inputs=graph.inputs, outputs=graph.outputs)


def renamed(graph: ModelGraph, names: Mapping[str, str]) -> ModelGraph:
    """Return the graph with its tensors called otherwise."""
    return ModelGraph(
        name=graph.name,
        tensors=tuple(Tensor(name=names[t.name], shape=t.shape, dtype=t.dtype) for t in graph.tensors),
        ops=tuple(
            Op(
                type=op.type,
                attributes=op.attributes,
                inputs=tuple(names[name] for name in op.inputs),
                outputs=tuple(names[name] for name in op.outputs),
                parameters=op.parameters,
            )
            for op in graph.ops
        ),
        inputs=tuple(names[name] for name in graph.inputs),
        outputs=tuple(names[name] for name in graph.outputs),
    )


def chain(*ops: Op | tuple[str, int] | str, outputs: tuple[str, ...] = ()) -> ModelGraph:
    """Return a graph of ops one after the other: a type, a type with a number of constants, or a whole op.

    Tensors are ``x``, ``t0``, ``t1``, ...; the last is an output, and so are ``outputs``.
    """
    made = []
    for index, op in enumerate(ops):
        before = f"t{index - 1}" if index else "x"
        if isinstance(op, Op):
            made.append(op)
            continue
        kind, constants = (op, 0) if isinstance(op, str) else op
        parameters = (TensorType(shape=(8,), dtype="float32"),) * constants
        made.append(Op(type=kind, inputs=(before,), outputs=(f"t{index}",), parameters=parameters))
    names = dict.fromkeys(["x", *(name for op in made for name in (*op.inputs, *op.outputs))])
    written = {name for op in made for name in op.outputs}
    return ModelGraph(
        name="chain",
        tensors=tuple(Tensor(name=name, shape=(1, 8, 4, 4), dtype="float32") for name in names),
        ops=tuple(made),
        inputs=tuple(name for name in names if name not in written),
        outputs=(*outputs, made[-1].id),
    )

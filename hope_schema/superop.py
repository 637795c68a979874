"""Super-ops: the ops merged before planning, and the signature a latency belongs to.

A super-op is what every runtime we know compiles into one fused kernel: an anchor (convolution, matrix
product, pooling, ...) and the element-wise ops that follow it on its own. Its boundary tensors therefore
exist in a plain layout in every runtime (HOPE section 3.2: "for frameworks that support kernel fusion,
HOPE's scheduler will schedule the fused kernels as a whole").
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hope_schema.graph import ModelGraph, Op, TensorType
from hope_schema.hashing import digest

FUSED_FOLLOWERS = frozenset(
    {"BatchNormalization", "Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "PRelu"}
    | {"Add", "Sub", "Mul", "Div"}
)
"""Element-wise types that runtimes fold into the op before them when they alone read its output.

The binary ones only with a constant beside that output (a bias, a scale): a second activation keeps them apart.
"""

FREE_FOLLOWERS = frozenset({"Dropout", "Identity", "Flatten", "Reshape", "Squeeze", "Unsqueeze", "Cast"})
"""Types that only rename or relabel their input; never worth a launch of their own."""

LEADERS = frozenset({"Pad"})
"""Types that runtimes fold into the op behind them, where it alone reads their output and can take it in."""

LED = frozenset({"Conv", "MaxPool", "AveragePool"})
"""Types that take in a leader."""

ANCHORS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sum", "BatchNormalization", "Concat"})
"""Types whose output a fused follower may be folded into."""


@dataclass(frozen=True)
class SuperOp:
    """Ops that are planned, measured and launched as one.

    ``inputs`` and ``outputs`` are the tensors that cross its border, each in first-use order; an op's
    output that nobody outside reads, and that is no graph output, is not among them.
    """

    graph: ModelGraph
    ops: tuple[Op, ...]

    @property
    def id(self) -> str:
        """The id of its last op: the tensor it is known by."""
        return self.ops[-1].id

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the tensors it reads from outside."""
        own = {name for op in self.ops for name in op.outputs}
        return tuple(dict.fromkeys(name for op in self.ops for name in op.inputs if name not in own))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the tensors that others read, graph outputs included."""
        own = {op.id for op in self.ops}
        last = set(self.graph.outputs)
        return tuple(
            name
            for op in self.ops
            for name in op.outputs
            if name in last or any(reader not in own for reader in self.graph.consumers.get(name, ()))
        )

    @cached_property
    def signature(self) -> str:
        """What a latency belongs to: types, attributes, shapes and dtypes, free of names.

        Readable types first, then 16 hexadecimal digits of a SHA-256, e.g. ``Conv+Relu:0f3a...``. Two
        super-ops of two models with the same signature cost the same on the same processor.
        """
        place: dict[str, int] = {name: index for index, name in enumerate(self.inputs)}
        rows = []
        for op in self.ops:
            reads = [place[name] for name in op.inputs]
            for name in op.outputs:
                place[name] = len(place)
            rows.append(
                [op.type, op.attributes, reads, [str(p) for p in op.parameters], [place[o] for o in op.outputs]]
            )
        types = [str(self.graph.tensor[name]) for name in place]
        text = "+".join(op.type.rsplit(":", 1)[-1] for op in self.ops)
        return f"{text[:96]}:{digest([rows, types])[:16]}"

    def types(self, names: tuple[str, ...]) -> tuple[TensorType, ...]:
        """Shapes and dtypes of the named tensors of its graph."""
        return tuple(self.graph.tensor[name].type for name in names)


def merge(graph: ModelGraph) -> tuple[SuperOp, ...]:
    """Merge a graph into super-ops, in topological order.

    An op joins the super-op before it when that super-op alone produces its one activation input, it alone
    reads that tensor, the tensor is no graph output, and its type is a fused follower of an anchor, a free
    follower, or one that takes in the leader before it. The quotient graph stays acyclic, because a follower has
    no other predecessor.
    """
    kept = set(graph.outputs)
    groups: dict[str, list[Op]] = {}
    home: dict[str, str] = {}
    for op in graph.topological_ops:
        before = home.get(graph.producer.get(op.inputs[0], "")) if len(set(op.inputs)) == 1 else None
        if (
            before is not None
            and op.inputs[0] not in kept
            and op.inputs[0] == groups[before][-1].id
            and len(groups[before][-1].outputs) == 1
            and graph.consumers[op.inputs[0]] == (op.id,)
            and (
                op.type in FREE_FOLLOWERS
                or (op.type in FUSED_FOLLOWERS and any(member.type in ANCHORS for member in groups[before]))
                or (op.type in LED and all(member.type in LEADERS for member in groups[before]))
            )
        ):
            groups[before].append(op)
            home[op.id] = before
        else:
            groups[op.id] = [op]
            home[op.id] = op.id
    return tuple(SuperOp(graph=graph, ops=tuple(ops)) for ops in groups.values())

"""A model as the planner sees it: ops, tensors, shapes. Never weights (design promise 5)."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from hope_schema.base import MAX_OPS, MAX_TENSORS, PRINTABLE, Contract, Digest, Name, Shape
from hope_schema.hashing import digest

DType = Literal[
    "float16", "bfloat16", "float32", "float64",
    "int4", "uint4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "bool",
]  # fmt: skip
"""The element types a tensor may have, by their NumPy names."""

BYTES_PER_ELEMENT: Mapping[str, float] = {
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
    "int4": 0.5, "uint4": 0.5, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2,
    "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "bool": 1,
}  # fmt: skip

Scalar = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | Annotated[float, Field(allow_inf_nan=False)]
AttributeValue = (
    Scalar
    | Annotated[str, Field(max_length=4096)]
    | Annotated[tuple[Scalar, ...], Field(max_length=4096)]
    | Annotated[tuple[Annotated[str, Field(max_length=512)], ...], Field(max_length=256)]
)
"""An op attribute: number, text or a list of either. Tensor-valued attributes are weights and stay out."""
OPEN: Final = "open"
"""The attribute that says what of an op nothing bounds: a part of its signature, because it decides who takes it."""
SPRING: Final = "undefined"
"""What it says where floats may be no numbers, made and hidden inside."""


class TensorType(Contract):
    """Shape and element type of one tensor, without a name: what a transfer cost belongs to."""

    shape: Shape
    dtype: DType

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size in bytes in the plain (row-major) layout."""
        return math.ceil(self.elements * BYTES_PER_ELEMENT[self.dtype])

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Tensor(TensorType):
    """A named activation tensor. Names are unique within a graph and covered by the model hash."""

    name: Name

    @property
    def type(self) -> TensorType:
        """The tensor without its name."""
        return TensorType(shape=self.shape, dtype=self.dtype)


class Op(Contract):
    """One operator of the source graph.

    ``inputs`` and ``outputs`` name activation tensors; constants (weights, biases, bounds) appear only as
    the shapes and types in ``parameters``. An op is known by its first output's name, which is unique
    because every tensor has exactly one producer.
    """

    type: Annotated[str, Field(min_length=1, max_length=128, pattern=PRINTABLE)]
    attributes: Annotated[dict[Annotated[str, Field(max_length=128)], AttributeValue], Field(max_length=64)] = {}
    inputs: Annotated[tuple[Name, ...], Field(max_length=4096)] = ()
    outputs: Annotated[tuple[Name, ...], Field(min_length=1, max_length=256)]
    parameters: Annotated[tuple[TensorType, ...], Field(max_length=256)] = ()

    @property
    def id(self) -> str:
        """The name of the first output."""
        return self.outputs[0]

    @property
    def marks(self) -> frozenset[str]:
        """What its attribute ``OPEN`` says, mark by mark."""
        return frozenset(filter(None, str(self.attributes.get(OPEN, "")).split(",")))


class ModelGraph(Contract):
    """A static-shaped, acyclic dataflow graph G(V, E) (HOPE section 1).

    Raises ``pydantic.ValidationError`` with one clear message for: a tensor that is undeclared, declared
    twice or produced twice, an op that reads what nobody produces, a graph without ops or outputs, a cycle.
    """

    name: Annotated[str, Field(min_length=1, max_length=256, pattern=PRINTABLE)]
    tensors: Annotated[tuple[Tensor, ...], Field(min_length=1, max_length=MAX_TENSORS)]
    ops: Annotated[tuple[Op, ...], Field(min_length=1, max_length=MAX_OPS)]
    inputs: Annotated[tuple[Name, ...], Field(max_length=4096)]
    outputs: Annotated[tuple[Name, ...], Field(min_length=1, max_length=4096)]

    @model_validator(mode="after")
    def _is_a_dataflow_graph(self) -> ModelGraph:
        if len(self.tensor) != len(self.tensors):
            raise ValueError(f"graph '{self.name}' declares a tensor twice")
        if len(set(self.inputs)) != len(self.inputs) or len(set(self.outputs)) != len(self.outputs):
            raise ValueError(f"graph '{self.name}' names an input or an output twice")
        written = set(self.inputs)
        for op in self.ops:
            for name in op.outputs:
                if name in written:
                    raise ValueError(f"tensor '{name}' is produced twice (op '{op.id}', type {op.type})")
                written.add(name)
        for op in self.ops:
            for name in (*op.inputs, *op.outputs):
                if name not in self.tensor:
                    raise ValueError(f"op '{op.id}' ({op.type}) uses tensor '{name}', which is not declared")
            for name in op.inputs:
                if name not in written:
                    raise ValueError(f"op '{op.id}' ({op.type}) reads tensor '{name}', which nothing produces")
        for name in (*self.inputs, *self.outputs):
            if name not in self.tensor or name not in written:
                raise ValueError(f"graph input or output '{name}' is not a tensor that the graph holds")
        order = self.topological_ops
        if len(order) != len(self.ops):
            stuck = {op.id for op in self.ops} - {op.id for op in order}
            raise ValueError(f"graph '{self.name}' has a cycle through op '{self._on_cycle(stuck)}'")
        return self

    def _on_cycle(self, stuck: set[str]) -> str:
        """Return an op that lies on a cycle, given those that never became ready: some merely wait behind one."""
        here, passed = min(stuck), set()
        while here not in passed:
            passed.add(here)
            here = next(self.producer[name] for name in self.op[here].inputs if self.producer.get(name) in stuck)
        return here

    @cached_property
    def tensor(self) -> dict[str, Tensor]:
        """Tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def op(self) -> dict[str, Op]:
        """Ops by id."""
        return {op.id: op for op in self.ops}

    @cached_property
    def producer(self) -> dict[str, str]:
        """Tensor name to the id of the op that writes it; graph inputs are absent."""
        return {name: op.id for op in self.ops for name in op.outputs}

    @cached_property
    def kept(self) -> frozenset[str]:
        """Its outputs, to look one up."""
        return frozenset(self.outputs)

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        """Tensor name to the ids of the ops that read it, in op order, each once."""
        readers: dict[str, list[str]] = defaultdict(list)
        for op in self.ops:
            for name in dict.fromkeys(op.inputs):
                readers[name].append(op.id)
        return {name: tuple(ids) for name, ids in readers.items()}

    @cached_property
    def topological_ops(self) -> tuple[Op, ...]:
        """The ops in a topological order that depends on names alone, not on how the file lists them."""
        waiting = {op.id: len({i for i in op.inputs if i in self.producer}) for op in self.ops}
        ready = [op_id for op_id, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        order = []
        while ready:
            op = self.op[heapq.heappop(ready)]
            order.append(op)
            for name in op.outputs:
                for reader in self.consumers.get(name, ()):
                    waiting[reader] -= 1
                    if waiting[reader] == 0:
                        heapq.heappush(ready, reader)
        return tuple(order)

    @cached_property
    def model_hash(self) -> Digest:
        """SHA-256 over topology, types, attributes, shapes and tensor names.

        Node order and weights do not enter, so a retrained model keeps its plans (design, "What is planned").
        """
        return digest(
            {
                "inputs": self.inputs,
                "outputs": self.outputs,
                "tensors": sorted((t.name, t.shape, t.dtype) for t in self.tensors),
                "ops": [op.model_dump(mode="json") for op in self.topological_ops],
            }
        )

"""The model an agent holds: its graph for planning, its proto for running, and pieces cut out of it."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper
from pydantic import ValidationError

from agent_sdk.errors import InputError, ModelError, printable
from agent_sdk.model.bounds import Guard, bounded
from agent_sdk.model.content import Content, Source
from agent_sdk.model.dtypes import DTYPE, value_info
from agent_sdk.model.fold import StaticGraph, fold
from agent_sdk.model.infer import schema_of
from agent_sdk.model.nodes import op_id, reads, subgraphs, type_of
from agent_sdk.model.opaque import OPAQUE, anatomy, grouped, named
from agent_sdk.model.ports import Port, port_of
from agent_sdk.model.shapes import Shapes, bind, free_inputs
from agent_sdk.model.source import self_contained
from agent_sdk.tables import faults
from hope_schema import ModelGraph, Op, Tensor, TensorType
from hope_schema.cutting import Region
from hope_schema.graph import OPEN, AttributeValue

RELABELLING = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Transpose", "Dropout"})
"""Types that may stand between a softmax and the output without changing which values come out."""
NORMALISING = frozenset({"Softmax", "LogSoftmax", "Sigmoid"})
"""Final types that squeeze differences between outputs; comparisons are made on what enters them."""
NORMALISING_AXIS = frozenset({"Softmax", "LogSoftmax", "Hardmax"})
"""Types that normalise over their axis and all behind it, or from operator set 13 on over the axis alone."""
MAX_TEXT = 4096
"""Most characters of a textual attribute."""


@dataclass(frozen=True)
class Output:
    """What a network answers.

    Attributes:
        type: its shape and element type.
        held: the tensors of the graph that hold it, each with the region that it is.
    """

    type: TensorType
    held: Mapping[str, Region]

    def fill(self, array: np.ndarray, made: Mapping[str, Any]) -> np.ndarray:
        """Write it, put together of what was made, into an array of its shape. Returns that."""
        for name, region in self.held.items():
            array[region.index(array.ndim)] = made[name]
        return array


@dataclass(frozen=True, eq=False)
class Model:
    """A static, constant-folded model.

    ``graph`` is what the planner sees; ``proto`` is the same with weights, its nodes in topological order; ``nodes``
    tells by op id which of them an op stands for: one, or several for an opaque op. ``path`` is where it was read from,
    if from a file. ``taken`` holds values that ONNX Runtime is known to take of inputs that may not have any: what is
    measured of the model is measured on these. ``guard`` says which feeds runtimes other than ONNX Runtime may
    answer. Do not change ``proto``.
    """

    graph: ModelGraph
    proto: onnx.ModelProto = field(repr=False)
    name: str
    nodes: Mapping[str, tuple[int, ...]] = field(repr=False)
    path: Path | None = None
    taken: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False)
    guard: Guard = field(default_factory=Guard)

    @cached_property
    def content_digest(self) -> str:
        """SHA-256 over ops and weights, however the model reached us. Computed on first use: 2 to 3 s per gigabyte."""
        content = hashlib.sha256()
        for entry in sorted(self.proto.opset_import, key=lambda entry: entry.domain):
            content.update(f"{entry.domain}={entry.version};".encode())
        graph = self.proto.graph
        tensors = sorted(graph.initializer, key=lambda tensor: tensor.name)
        for message in (*graph.node, *graph.input, *graph.output, *tensors):  # one at a time, to spare memory
            content.update(hashlib.sha256(message.SerializeToString(deterministic=True)).digest())
        return content.hexdigest()

    @cached_property
    def constants(self) -> Mapping[str, onnx.TensorProto]:
        return {tensor.name: tensor for tensor in self.proto.graph.initializer}

    @cached_property
    def outputs(self) -> Mapping[str, Output]:
        """By name."""
        return {name: Output(self.graph.tensor[name].type, {name: Region(())}) for name in self.graph.outputs}

    @cached_property
    def held(self) -> tuple[str, ...]:
        """The tensors that hold the outputs: what a run has to leave."""
        return tuple(name for output in self.outputs.values() for name in output.held)

    @property
    def uneven(self) -> bool:
        """Whether parts of it may make something else than the whole does of what is no number."""
        return False

    def member(self, name: str) -> tuple[int, Model, str]:
        """The network that a tensor or an op is of: its place among those side by side, itself, and the name there."""
        return 0, self, name


def read_model(source: Source, *, shapes: Shapes | None = None, name: str | None = None, seed: int = 0) -> Model:
    """Read an ONNX model for one set of input shapes: what :func:`read_network` and ``Network.bind`` do, in one step.

    Raises what these raise.
    """
    return read_network(source, name=name, seed=seed).bound_in_place(shapes)


def read_network(source: Source | Content, *, name: str | None = None, seed: int = 0) -> Network:
    """Read an ONNX model: a zoo network's name, a file's path, a file's bytes, a ModelProto, or what was held of these.

    ``name`` overrides the file's or graph's own name; ``seed`` chooses the weights of a zoo network. A file called like
    a zoo network is meant by ``./lstm`` or a Path. Raises ModelError: no such file, not ONNX, cut off, too large;
    UnknownNameError for a bare name that is neither a zoo network nor a file.
    """
    if not isinstance(source, Content):
        with Content(located(source, seed), name or bare_name(source)) as content:
            return read_network(content)
    proto = self_contained(source.proto(), source.where)
    return Network(proto, printable(source.name or proto.graph.name) or "model", source.path)


def bare_name(source: Source) -> str | None:
    """The name of a zoo network, where that was given."""
    if not isinstance(source, str) or os.path.basename(source) != source or os.path.splitext(source)[1]:
        return None
    return source or None


def located(source: Source, seed: int = 0) -> Source:
    """What a runtime could load itself: a zoo network's file instead of its name. Raises like ``read_network``."""
    name = bare_name(source)
    return source if name is None else _zoo_network(name, seed) or source


@dataclass(frozen=True, eq=False)
class Network:
    """A model as its file has it: its shapes may be open.

    Attributes:
        inputs: what has to be given.
        outputs: what is computed.
        unranked: inputs of which the file does not say how many dimensions they have.
    """

    proto: onnx.ModelProto = field(repr=False)
    name: str
    path: Path | None = None

    inputs: tuple[Port, ...] = field(init=False)
    outputs: tuple[Port, ...] = field(init=False)
    unranked: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        # NOTE: now, because whoever binds in place rewrites the graph while others ask what the file had.
        given = free_inputs(self.proto.graph)
        tensors = {info.name: info.type.tensor_type for info in given if info.type.HasField("tensor_type")}
        unranked = frozenset(name for name, kind in tensors.items() if not kind.HasField("shape"))
        object.__setattr__(self, "unranked", unranked)
        object.__setattr__(self, "inputs", tuple(map(port_of, given)))
        object.__setattr__(self, "outputs", tuple(map(port_of, self.proto.graph.output)))

    @cached_property
    def is_open(self) -> bool:
        return bool(self.unranked) or any(port.is_open for port in self.inputs)

    @cached_property
    def scalars(self) -> tuple[str, ...]:
        """Inputs that the file says are scalars."""
        return tuple(port.name for port in self.inputs if port.shape == () and port.name not in self.unranked)

    def check(self, shapes: Shapes) -> None:
        """Raise what ``bind`` raises for shapes that contradict the inputs or leave one open, and make no model."""
        with self._named():
            bind(onnx.GraphProto(input=free_inputs(self.proto.graph)), shapes)

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except InputError as error:
            raise type(error)(printable(f"model '{self.path or self.name}': {error}")) from error

    def bind(self, shapes: Shapes | None = None) -> Model:
        """Make it static for one set of input shapes.

        A symbol that one of them binds holds wherever it recurs; the first dimensions are 1 where they are left open.
        Constants are folded, ops that no output needs or that equal others are dropped. What has no static shape, or
        is none of numbers, becomes part of an opaque op.

        Raises:
            InputError: shapes that contradict the model or each other.
            OpenShapeError: a dimension that is still open.
            ModelError: a name that stands twice, a cycle, an op that contradicts itself, too large.
            UnplannableError: sound, but with an input, output or op of which no static graph can be made.
        """
        return Network(deepcopy(self.proto), self.name, self.path).bound_in_place(shapes)

    def bound_in_place(self, shapes: Shapes | None) -> Model:
        """Like ``bind``, for a network that is not used any more: its weights are not copied."""
        with self._named():
            bind(self.proto.graph, shapes)
            static = fold(self.proto)
            hidden = {name for node in static.nodes for name in node.output if name and name not in static.types}
            groups = grouped(static.nodes, hidden)
            marks, guard = bounded(static.nodes, static.constants, static.types, static.inputs)
            graph = _to_graph(static, groups, self.name, marks)
        _rewrite(self.proto, static)
        index = {op_id(node): place for place, node in enumerate(static.nodes)}
        nodes = {op.id: tuple(index[op_id(n)] for n in group) for op, group in zip(graph.ops, groups, strict=True)}
        return Model(graph=graph, proto=self.proto, name=self.name, nodes=nodes, path=self.path, guard=guard)


def _zoo_network(name: str, seed: int) -> Path | None:
    """The file of a zoo network; None for a name that is a file's and no network's."""
    try:
        import hope_zoo as zoo  # the networks to try are no part of a device's install
    except ImportError:
        if os.path.exists(name):
            return None
        raise ModelError(
            f"there is no model file '{name}', and the networks that go by a name are not installed; "
            "give a file, or install them (in a checkout: pip install ./hope_zoo)"
        ) from None
    return zoo.path(name, seed) if name in zoo.names() or not os.path.exists(name) else None


def extract(model: Model, op_ids: Iterable[str], inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    """Cut the named ops out of the model as a valid model of their own, with just the initialisers they read.

    ``inputs`` and ``outputs`` are the tensors that cross its border, in the order the piece shall have. Costs time and
    memory in proportion to the piece, not to the model. Raises ModelError for an unknown op, a tensor that nothing
    in the piece provides, or an output that the piece does not compute.
    """
    wanted = set(op_ids)
    unknown = wanted - model.nodes.keys()
    if unknown:
        raise ModelError(f"model '{model.name}' has no op '{min(unknown)}'")
    nodes = [model.proto.graph.node[index] for index in sorted(i for op in wanted for i in model.nodes[op])]
    if not nodes or not outputs:
        raise ModelError(f"a piece of model '{model.name}' needs at least one op and one output")
    own = {name for node in nodes for name in node.output if name}
    constants: dict[str, onnx.TensorProto] = {}
    available = set(inputs)
    for node in nodes:
        for name in reads(node):
            if name in model.constants:
                constants[name] = model.constants[name]
            elif name not in available:
                raise ModelError(f"op '{op_id(node)}' reads '{name}', which is neither an input nor computed before it")
        available.update(filter(None, node.output))
    for name in outputs:
        if name not in own:
            raise ModelError(f"the piece does not compute its output '{name}'")
    for name in inputs:
        if name in own or name not in model.graph.tensor:
            raise ModelError(f"'{name}' cannot be an input of the piece")
    piece = onnx.ModelProto(ir_version=model.proto.ir_version, producer_name="hope")
    piece.opset_import.extend(model.proto.opset_import)
    piece.graph.name = f"{model.name}/{outputs[0]}"
    piece.graph.node.extend(nodes)
    piece.graph.initializer.extend(constants.values())
    piece.graph.input.extend(value_info(name, model.graph.tensor[name].type) for name in inputs)
    piece.graph.output.extend(value_info(name, model.graph.tensor[name].type) for name in outputs)
    return piece


def pre_softmax_outputs(graph: ModelGraph) -> tuple[str, ...]:
    """For each graph output, in order, the tensor to compare instead: what enters its final softmax, if there is one.

    A softmax over a thousand classes of random weights is near uniform whatever the input, so equal outputs after it
    prove little. Only relabelling ops (reshapes and the like) may stand between the softmax and the output; what enters
    it must be computed, not be an input.
    """
    chosen = []
    for output in graph.outputs:
        name, seen = output, output
        while (op_id := graph.producer.get(seen)) is not None:
            op = graph.op[op_id]
            if not op.inputs:
                break
            if op.type in NORMALISING and op.inputs[0] in graph.producer:
                name = op.inputs[0]
            elif op.type not in RELABELLING:
                break
            seen = op.inputs[0]
        chosen.append(name)
    return tuple(chosen)


def _to_graph(
    static: StaticGraph, groups: Sequence[Sequence[onnx.NodeProto]], name: str, marks: Mapping[str, str]
) -> ModelGraph:
    wanted = {*static.outputs, *(read for group in groups for read in _taken_in(group))}
    ops = [_op(static, group, wanted, marks) for group in groups]
    seen = {*static.inputs, *(output for op in ops for output in op["outputs"])}
    activations = [name for name in static.types if name in seen]
    try:
        return ModelGraph(
            name=name[:256],
            tensors=tuple(
                Tensor(name=tensor, shape=static.types[tensor].shape, dtype=static.types[tensor].dtype)
                for tensor in activations
            ),
            ops=tuple(Op.model_validate(op) for op in ops),
            inputs=static.inputs,
            outputs=static.outputs,
        )
    except ValidationError as error:
        raise ModelError(f"cannot be planned: {next(faults(error))}") from error


def _taken_in(group: Sequence[onnx.NodeProto]) -> list[str]:
    """What a group of nodes reads that it does not compute itself, each once."""
    own = {name for node in group for name in node.output}
    return [name for name in dict.fromkeys(name for node in group for name in reads(node)) if name not in own]


def _op(
    static: StaticGraph, group: Sequence[onnx.NodeProto], wanted: set[str], marks: Mapping[str, str]
) -> dict[str, Any]:
    """What the planner sees of one node, or of one or several that hide what is none of numbers."""
    [node, *others] = group
    if not others and not subgraphs(node) and all(name in static.types for name in node.input if name):
        constants = [name for name in node.input if name in static.constants]
        mark = marks.get(op_id(node))
        return {
            "type": type_of(node),
            "attributes": _attributes(node, static.opsets) | ({OPEN: mark} if mark else {}),
            "inputs": tuple(name for name in node.input if name and name not in static.constants),
            "outputs": tuple(name for name in node.output if name),
            "parameters": tuple(static.types[name] for name in constants if name in static.types),
        }
    return {
        "type": type_of(node) if not others and subgraphs(node) else OPAQUE,
        "attributes": {"ops": named(group)[:MAX_TEXT], "anatomy": anatomy(group, static.types)},
        "inputs": tuple(name for name in _taken_in(group) if name not in static.constants),
        "outputs": tuple(name for node in group for name in node.output if name in wanted and name in static.types),
    }


def _attributes(node: onnx.NodeProto, opsets: Mapping[str, int]) -> dict[str, AttributeValue]:
    """The node's attributes as plain values; those equal to their default are left out, so that equal ops look equal.

    An axis whose default differs between operator sets is always told. A tensor-valued attribute is a weight: only its
    type is told. Infinities become text, which JSON can say.
    """
    schema = schema_of(node, opsets)
    defaults = schema.attributes if schema else {}
    found: dict[str, AttributeValue] = {}
    if type_of(node) in NORMALISING_AXIS and "axis" in defaults:
        found["axis"] = defaults["axis"].default_value.i
    for attribute in node.attribute:
        if not attribute.name:
            continue
        value = helper.get_attribute_value(attribute)
        default = defaults[attribute.name].default_value if attribute.name in defaults else None
        if default is not None and default.type == attribute.type and helper.get_attribute_value(default) == value:
            continue
        found[attribute.name] = _plain(value)
    return found


def _plain(value: object) -> AttributeValue:
    if isinstance(value, Sequence) and not isinstance(value, (bytes, str)):
        items = [_scalar(item) for item in value]
        if any(isinstance(item, str) for item in items):
            return tuple(str(item) for item in items)
        return tuple(item for item in items if not isinstance(item, str))
    return _scalar(value)


def _scalar(value: object) -> int | float | str:
    if isinstance(value, onnx.TensorProto):
        return f"{DTYPE.get(value.data_type, 'tensor')}[{','.join(map(str, value.dims))}]"
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, (int, float)):
        return value
    return type(value).__name__


def _rewrite(proto: onnx.ModelProto, static: StaticGraph) -> None:
    """Put the folded graph into ``proto`` in place: weights that stay are not copied."""
    graph = proto.graph
    nodes = [deepcopy(node) for node in static.nodes]
    held = {tensor.name for tensor in graph.initializer}
    added = [tensor for name, tensor in static.constants.items() if name not in held]
    graph.initializer.extend(added)
    for index in range(len(graph.initializer) - 1, -1, -1):
        if graph.initializer[index].name not in static.constants:
            del graph.initializer[index]
    for name in ("node", "input", "output", "value_info"):
        graph.ClearField(name)
    graph.node.extend(nodes)
    graph.input.extend([value_info(name, static.types[name]) for name in static.inputs])
    graph.output.extend([value_info(name, static.types[name]) for name in static.outputs])
    # Since version 4, initialisers need not be listed as inputs, and a listed one may be overridden by the caller.
    proto.ir_version = max(proto.ir_version, 4)

"""Makes a graph static: symbolic batch to 1, constants folded, twins merged, dead nodes dropped, every shape known.

One pass in topological order does all of it node by node: infer the node's output types from the types of its
inputs (and from the values of those that are small constants), evaluate the node when all its inputs are constants
or when it only asks for a shape, and leave it out when another one computes the same. So whatever cannot be made
static is blamed on the one op where it begins.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import checker, defs, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from agent_sdk.errors import ModelError
from agent_sdk.model.dtypes import DTYPE
from agent_sdk.model.equal import DEFAULT_DOMAINS, identity, renames, repeatable
from agent_sdk.model.source import MAX_NODES, expected_bytes, tensors
from hope_schema import TensorType

MAX_HINT_ELEMENTS = 4096
"""Constants up to this many elements take part in shape inference (targets of Reshape, bounds of Slice, ...)."""
SHAPE_QUERIES = frozenset({"Shape", "Size"})
"""Ops whose value is known as soon as their input's shape is."""
BOUNDED_OPS = frozenset({"NonZero", "Unique", "Compress"})
"""Ops whose output's size depends on data but is bounded by their input's, so that they are safe to fold."""
INDEX_BYTES = 8
"""What they give at most per element of their input: each output its value or index, NonZero an index per dimension."""
SHAPE_KEEPING_OPS = frozenset({"MeanVarianceNormalization", "GroupNormalization"})
"""The operators without a complete inference rule in ``onnx``: their output is like their first input."""
MAX_OPSET = 10_000
"""Above every operator set's version number."""
MAX_DIMENSION = 2**31 - 1
MAX_FOLDED_BYTES = 2**30
"""Most bytes that folding may add: a file of a few bytes can ask for constants of any size."""


@dataclass(frozen=True)
class StaticGraph:
    """What :func:`fold` found: nodes in topological order and the constants they still read.

    ``types`` holds every activation tensor and every constant; names are tensor names. ``opsets`` maps an operator
    domain (the default one is ``""``) to its version.
    """

    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, onnx.TensorProto]
    types: Mapping[str, TensorType]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opsets: Mapping[str, int]


def describe(node: onnx.NodeProto) -> str:
    """Name an op the way an error message should: its id and its type."""
    known_as = next((name for name in node.output if name), node.name or "?")
    domain = "" if node.domain in DEFAULT_DOMAINS else f"{node.domain}:"
    return f"op '{known_as}' ({domain}{node.op_type})"


def fold(proto: onnx.ModelProto) -> StaticGraph:
    """Make the model's graph static. Raises ModelError naming the op or tensor that prevents it."""
    graph = proto.graph
    if len(graph.node) > MAX_NODES:
        raise ModelError(f"it has {len(graph.node)} nodes; at most {MAX_NODES} are accepted")
    if not graph.output:
        raise ModelError("it has no outputs: nothing would be computed")
    for name in (info.name for info in (*graph.input, *graph.output)):
        if not name:
            raise ModelError("it has an input or output without a name")
    if graph.sparse_initializer:
        raise ModelError("sparse initialisers are not supported; store the weights densely")
    for tensor in tensors(graph):
        _check_data(tensor)
    folder = _Folder(proto)
    nodes = [node for node in _sorted(graph, folder.known()) if folder.keep(node)]
    return folder.result(nodes)


def _check_data(tensor: onnx.TensorProto) -> None:
    """Refuse weights of a type that cannot be planned, or whose data are not as long as their shape says."""
    if tensor.data_type not in DTYPE:
        raise ModelError(
            f"weights '{tensor.name}' have an element type that cannot be planned (type {tensor.data_type})"
        )
    expected = expected_bytes(tensor)
    if tensor.HasField("raw_data"):
        found = len(tensor.raw_data)
    else:
        # Typed fields hold an entry per element; two 4-bit elements share one.
        entries = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
        packed = tensor.data_type in (onnx.TensorProto.UINT4, onnx.TensorProto.INT4)
        found = entries if packed else entries * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    if found != expected:
        raise ModelError(
            f"weights '{tensor.name}' have {found} bytes where their shape needs {expected}: "
            "the file is damaged or was cut off"
        )


def _sorted(graph: onnx.GraphProto, known: set[str]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes in a topological order that depends on names alone, so that of twins the same one is kept.

    Refuses duplicate names, dangling reads and cycles.
    """
    writer: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        if not any(node.output):
            raise ModelError(f"a {node.op_type} node ('{node.name}') has no outputs")
        for name in filter(None, node.output):
            if name in writer or name in known:
                raise ModelError(f"tensor '{name}' is produced twice; the second time by {describe(node)}")
            writer[name] = index
    readers: dict[int, list[int]] = {}
    waiting: dict[int, int] = {}
    for index, node in enumerate(graph.node):
        before = set()
        for name in filter(None, node.input):
            if name in writer:
                before.add(writer[name])
            elif name not in known:
                raise ModelError(f"{describe(node)} reads tensor '{name}', which nothing produces")
        waiting[index] = len(before)
        for source in before:
            readers.setdefault(source, []).append(index)
    known_as = [next(filter(None, node.output)) for node in graph.node]
    ready = [(known_as[index], index) for index, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    done = 0
    while ready:
        _, index = heapq.heappop(ready)
        done += 1
        yield graph.node[index]
        for reader in readers.get(index, ()):
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, (known_as[reader], reader))
    if done != len(graph.node):
        here, passed = next(index for index, count in waiting.items() if count), set()
        while here not in passed:  # some nodes merely wait behind the cycle: walk back onto it
            passed.add(here)
            here = next(writer[name] for name in graph.node[here].input if waiting.get(writer.get(name, -1)))
        raise ModelError(f"the graph has a cycle through {describe(graph.node[here])}")


class _Folder:
    """The state of one folding pass: what is known so far of every tensor."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.graph = proto.graph
        self.ir_version = proto.ir_version
        self.imports = list(proto.opset_import)
        self.opsets: dict[str, int] = {}
        for entry in proto.opset_import:
            if not 0 < entry.version <= MAX_OPSET:
                raise ModelError(f"'{entry.version}' is no version of the operator set '{entry.domain or 'ai.onnx'}'")
            self.opsets["" if entry.domain in DEFAULT_DOMAINS else entry.domain] = entry.version
        newest = defs.onnx_opset_version()
        if self.opsets.get("", 0) > newest:
            raise ModelError(f"it uses operator set {self.opsets['']}; this onnx package knows up to {newest}")
        if not 0 < proto.ir_version <= onnx.IR_VERSION:
            raise ModelError(f"it is of ONNX IR version {proto.ir_version}; this package knows 1 to {onnx.IR_VERSION}")
        self.kept_outputs = {info.name for info in self.graph.output}
        self.uses = Counter(name for node in self.graph.node for name in node.input)
        self.constants: dict[str, onnx.TensorProto] = {}
        self.types: dict[str, onnx.TypeProto] = {}
        self.folded_bytes = 0
        self.same: dict[str, str] = {}
        self.behind: dict[str, str] = {}
        self.first: dict[Hashable, onnx.NodeProto] = {}
        for tensor in self.graph.initializer:
            if tensor.name in self.constants:
                raise ModelError(f"the initialiser '{tensor.name}' stands twice")
            self.constants[tensor.name] = tensor
            self.types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))
        self.inputs = tuple(self._inputs())

    def known(self) -> set[str]:
        return {*self.constants, *self.inputs}

    def _inputs(self) -> Iterator[str]:
        """Fix the symbolic batch of every input to 1: the first dimension, and that symbol wherever it recurs."""
        free = [info for info in self.graph.input if info.name not in self.constants]
        batch = {
            info.type.tensor_type.shape.dim[0].dim_param
            for info in free
            if info.type.tensor_type.shape.dim and info.type.tensor_type.shape.dim[0].dim_param
        }
        for info in free:
            if info.name in self.types:
                raise ModelError(f"the model input '{info.name}' stands twice")
            if not info.type.HasField("tensor_type"):
                raise ModelError(f"the model input '{info.name}' is no tensor; only tensors can be planned")
            if not info.type.tensor_type.HasField("shape"):
                raise ModelError(f"the model input '{info.name}' has no shape; give it a static one")
            shape = []
            for axis, dim in enumerate(info.type.tensor_type.shape.dim):
                if dim.HasField("dim_value") and dim.dim_value > 0:
                    shape.append(dim.dim_value)
                elif axis == 0 or (dim.dim_param and dim.dim_param in batch):
                    shape.append(1)
                else:
                    symbol = dim.dim_param or (str(dim.dim_value) if dim.HasField("dim_value") else "?")
                    raise ModelError(
                        f"the model input '{info.name}' has a dynamic shape: dimension {axis} is '{symbol}'; "
                        "export the model with static shapes (only the batch may be symbolic)"
                    )
            self.types[info.name] = helper.make_tensor_type_proto(info.type.tensor_type.elem_type, shape)
            self._static(info.name, f"the model input '{info.name}'")
            yield info.name

    def _static(self, name: str, who: str) -> TensorType:
        """Return the tensor's static type, or say who is to blame that it has none."""
        tensor = self.types[name].tensor_type
        if not self.types[name].HasField("tensor_type") or tensor.elem_type not in DTYPE:
            raise ModelError(f"{who}: '{name}' is no numeric tensor; strings, sequences and maps cannot be planned")
        if not tensor.HasField("shape") or any(not dim.HasField("dim_value") for dim in tensor.shape.dim):
            raise ModelError(
                f"{who} has a dynamic shape: that of '{name}' depends on data; only static shapes can be planned"
            )
        shape = tuple(dim.dim_value for dim in tensor.shape.dim)
        if any(not 0 <= size <= MAX_DIMENSION for size in shape):
            raise ModelError(f"{who} gives '{name}' the impossible shape {list(shape)}")
        return TensorType(shape=shape, dtype=DTYPE[tensor.elem_type])

    def keep(self, node: onnx.NodeProto) -> bool:
        """Learn the node's outputs. False when it is gone: they became constants, or are another node's."""
        if any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise ModelError(f"{describe(node)} runs a subgraph (control flow), which cannot be planned")
        for index, name in enumerate(node.input):
            node.input[index] = self.same.get(name, name)
        schema = self._schema(node)
        self._drop_unused_outputs(node, schema)
        wanted = [name for name in node.output if name]
        if node.op_type == "Constant" and self._adopt(node):
            return False
        self._infer(node, schema)
        constant = repeatable(node, self.constants) and all(n in self.constants for n in node.input if n)
        if (constant or node.op_type in SHAPE_QUERIES) and not self.kept_outputs.intersection(wanted):
            self._evaluate(node, constant)
            return False
        for name in wanted:
            self._static(name, describe(node))
        return not self._merge(node)

    def _merge(self, node: onnx.NodeProto) -> bool:
        """Whether an earlier node computes the same, and is read instead from now on."""
        if renames(node, self.constants):
            self.behind[node.output[0]] = self.behind.get(node.input[0], node.input[0])
        if not repeatable(node, self.constants):
            return False
        first = self.first.setdefault(identity(node, self.behind, self.constants), node)
        if first is node or self.kept_outputs.intersection(node.output):
            return False
        self.same |= {name: twin for name, twin in zip(node.output, first.output, strict=True) if name}
        return True

    def _schema(self, node: onnx.NodeProto) -> defs.OpSchema:
        domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
        if domain not in self.opsets:
            raise ModelError(f"{describe(node)} is unsupported: the model imports no operator set for its domain")
        try:
            schema = defs.get_schema(node.op_type, self.opsets[domain], domain)
        except defs.SchemaError as error:
            raise ModelError(
                f"{describe(node)} is unsupported: no such operator in set {self.opsets[domain]}"
            ) from error
        if schema.deprecated:
            raise ModelError(f"{describe(node)} is unsupported: deprecated in operator set {self.opsets[domain]}")
        return schema

    def _drop_unused_outputs(self, node: onnx.NodeProto, schema: defs.OpSchema) -> None:
        """Blank optional outputs that nobody reads (a Dropout's mask), so that they are never computed or stored."""
        optional = defs.OpSchema.FormalParameterOption.Optional
        for index in range(1, min(len(node.output), len(schema.outputs))):
            name = node.output[index]
            if schema.outputs[index].option == optional and not self.uses[name] and name not in self.kept_outputs:
                node.output[index] = ""
        while node.output and not node.output[-1]:
            node.output.pop()

    def _adopt(self, node: onnx.NodeProto) -> bool:
        """Take a Constant node's tensor as it is, without a round trip through NumPy."""
        value = next((a.t for a in node.attribute if a.name == "value" and a.HasField("t")), None)
        name = node.output[0]
        if value is None or name in self.kept_outputs:
            return False
        value.name = name
        self.constants[name] = value
        self.types[name] = helper.make_tensor_type_proto(value.data_type, list(value.dims))
        return True

    def _infer(self, node: onnx.NodeProto, schema: defs.OpSchema) -> None:
        hints = {
            name: self.constants[name]
            for name in node.input
            if name in self.constants and math.prod(self.constants[name].dims) <= MAX_HINT_ELEMENTS
        }
        types = {name: self.types[name] for name in node.input if name}
        try:
            found = shape_inference.infer_node_outputs(schema, node, types, hints, None, self.imports, self.ir_version)
            if node.op_type in SHAPE_KEEPING_OPS:
                found = {node.output[0]: self.types[node.input[0]]}
        except (shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError, KeyError) as error:
            raise ModelError(f"{describe(node)} is not valid: {' '.join(str(error).split())}") from error
        for name in filter(None, node.output):
            if name not in found:
                raise ModelError(
                    f"{describe(node)} is unsupported: the shape of its output '{name}' cannot be inferred"
                )
            self.types[name] = found[name]

    def _evaluate(self, node: onnx.NodeProto, constant: bool) -> None:
        """Replace the node by the values it computes."""
        self.folded_bytes += self._most_bytes(node)
        if self.folded_bytes > MAX_FOLDED_BYTES:
            raise ModelError(f"{describe(node)}: folding constants would take more than {MAX_FOLDED_BYTES} bytes")
        names = list(dict.fromkeys(filter(None, node.input)))
        if constant:
            values = {name: numpy_helper.to_array(self.constants[name]) for name in names}
        else:
            # A shape query reads no data: a zero-stride view of the right shape stands in for the activation.
            shape = self._static(names[0], describe(node)).shape
            values = {names[0]: np.broadcast_to(np.zeros((), np.float32), shape)}
        single = helper.make_graph(
            [node],
            "constant",
            [helper.make_value_info(name, self.types[name]) for name in names],
            [helper.make_value_info(name, self.types[name]) for name in node.output if name],
        )
        try:
            with np.errstate(all="ignore"):
                results = ReferenceEvaluator(single, opsets=dict(self.opsets)).run(None, values)
        except Exception as error:
            raise ModelError(f"{describe(node)} cannot be folded into a constant: {error}") from error
        for name, value in zip(filter(None, node.output), results, strict=True):
            dtype = helper.tensor_dtype_to_np_dtype(self.types[name].tensor_type.elem_type)
            self.constants[name] = numpy_helper.from_array(
                np.ascontiguousarray(value, dtype).reshape(np.shape(value)), name
            )
            self.types[name] = helper.make_tensor_type_proto(
                self.types[name].tensor_type.elem_type, list(np.shape(value))
            )

    def _most_bytes(self, node: onnx.NodeProto) -> int:
        """How much memory the node's outputs can take."""
        if node.op_type not in BOUNDED_OPS:
            return sum(self._static(name, describe(node)).bytes for name in node.output if name)
        shape = self._static(node.input[0], describe(node)).shape
        rows = len(shape) if node.op_type == "NonZero" else len(node.output)
        return INDEX_BYTES * max(1, rows) * math.prod(shape)

    def result(self, nodes: list[onnx.NodeProto]) -> StaticGraph:
        """Drop what no output needs, and check that every output is computed."""
        outputs = tuple(info.name for info in self.graph.output)
        if len(set(outputs)) != len(outputs):
            raise ModelError("it names an output twice")
        produced = {name for node in nodes for name in node.output if name}
        for name in outputs:
            if name in self.constants or name in self.inputs:
                raise ModelError(f"the model output '{name}' is one of its inputs or constants: nothing is computed")
            if name not in produced:
                raise ModelError(f"the model output '{name}' is produced by no op")
        needed = set(outputs)
        live = []
        for node in reversed(nodes):
            if needed.intersection(node.output):
                live.append(node)
                needed.update(node.input)
        constants = {name: tensor for name, tensor in self.constants.items() if name in needed}
        names = {*self.inputs, *constants, *(name for node in live for name in node.output if name)}
        return StaticGraph(
            nodes=tuple(reversed(live)),
            constants=constants,
            types={name: self._static(name, f"tensor '{name}'") for name in names},
            inputs=self.inputs,
            outputs=outputs,
            opsets=self.opsets,
        )

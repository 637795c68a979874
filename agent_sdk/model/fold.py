"""Makes a graph static: constants folded, decided branches opened, twins merged, dead nodes dropped, shapes known.

One pass in topological order does all of it node by node: infer the node's output types from the types of its
inputs (and from the values of those that are small constants), evaluate the node when all its inputs are constants
or when it only asks for a shape, replace an ``If`` whose condition is known by the branch that it takes, and leave a
node out when another one computes the same. What stays open, because a shape depends on data or because a tensor is
none of numbers, is *hidden*: no border may run through it.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TypeProto, defs, helper, numpy_helper

from agent_sdk.cancel import check
from agent_sdk.errors import ModelError, UnplannableError
from agent_sdk.model.branches import Branch, taken
from agent_sdk.model.budget import Budget, operations
from agent_sdk.model.dtypes import DTYPE
from agent_sdk.model.equal import identity, renames, repeatable
from agent_sdk.model.infer import infer, is_static, schema_of
from agent_sdk.model.lone import computed
from agent_sdk.model.nodes import DEFAULT_DOMAINS, describe, in_order, needed, reads, rename, subgraphs
from agent_sdk.model.shapes import MAX_DIMENSION
from agent_sdk.model.source import MAX_NODES, expected_bytes, tensors
from hope_schema import TensorType

SHAPE_QUERIES = frozenset({"Shape", "Size"})
"""Ops whose value is known as soon as their input's shape is, and which read no data."""
BOUNDED_OPS = frozenset({"NonZero", "Unique", "Compress"})
"""Ops whose output's size depends on data but is bounded by their input's, so that they are safe to fold."""
INDEX_BYTES = 8
"""What they give at most per element of their input: each output its value or index, NonZero an index per dimension."""
COMPRESSED = frozenset({"DequantizeLinear"})
"""Ops on constants that runtimes take in as they are, because what they read is smaller than what they make."""
MAX_OPSET = 10_000
"""Above every operator set's version number."""


@dataclass(frozen=True)
class StaticGraph:
    """What :func:`fold` found: nodes in topological order and the constants they still read.

    ``types`` holds the activation tensors and constants that are static tensors of numbers; all others are hidden.
    ``opsets`` maps an operator domain (the default one is ``""``) to its version.
    """

    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, onnx.TensorProto]
    types: Mapping[str, TensorType]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opsets: Mapping[str, int]


def fold(proto: onnx.ModelProto) -> StaticGraph:
    """Make the graph of a model static, whose inputs are so already.

    Raises ModelError naming the op or tensor that is wrong, UnplannableError where the model as such is sound.
    """
    graph = proto.graph
    if len(graph.node) > MAX_NODES:
        raise ModelError(f"it has {len(graph.node)} nodes; at most {MAX_NODES} are accepted")
    if not graph.output:
        raise ModelError("it has no outputs: nothing would be computed")
    for name in (info.name for info in (*graph.input, *graph.output)):
        if not name:
            raise ModelError("it has an input or output without a name")
    for tensor in tensors(graph):
        _check_data(tensor)
    folder = _Folder(proto)
    # NOTE: what no output needs is not looked at: a runtime drops it before it computes anything, and so may refuse it.
    live = needed(graph.node, folder.kept_outputs)
    nodes = [kept for node in in_order(live, folder.types.keys()) for kept in folder.keep(node)]
    return folder.result(nodes)


def _check_data(tensor: onnx.TensorProto) -> None:
    """Refuse weights whose data are not as long as their shape says."""
    expected = expected_bytes(tensor)
    if tensor.data_type == onnx.TensorProto.STRING:
        found = len(tensor.string_data)
    elif tensor.HasField("raw_data"):
        found = len(tensor.raw_data)
    else:
        # Typed fields hold an entry per element; those of fewer bits share one, a complex number has two.
        entries = len(getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type)))
        size = expected / max(1, math.prod(tensor.dims))
        if tensor.data_type in (onnx.TensorProto.COMPLEX64, onnx.TensorProto.COMPLEX128):
            entries //= 2
        found = entries if size < 1 else int(entries * size)
    if found != expected:
        raise ModelError(
            f"weights '{tensor.name}' have {found} bytes where their shape needs {expected}: "
            "the file is damaged or was cut off"
        )


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
            raise UnplannableError(
                f"it uses operator set {self.opsets['']}; this onnx package knows up to {newest}: upgrade it"
            )
        if not 0 < proto.ir_version <= onnx.IR_VERSION:
            raise UnplannableError(
                f"it is of ONNX IR version {proto.ir_version}; this onnx package knows 1 to {onnx.IR_VERSION}"
            )
        self.declared = {info.name: info.type for info in (*self.graph.value_info, *self.graph.output)}
        self.kept_outputs = {info.name for info in self.graph.output}
        self.uses = Counter(name for node in self.graph.node for name in reads(node))
        self.constants: dict[str, onnx.TensorProto] = {}
        self.types: dict[str, TypeProto] = {}
        self.origin: dict[str, str] = {}  # of what is hidden: the op by which it came to be so
        self.budget = Budget()
        self.same: dict[str, str] = {}
        self.behind: dict[str, str] = {}
        self.first: dict[Hashable, onnx.NodeProto] = {}
        for tensor in self.graph.initializer:
            if tensor.name in self.constants:
                raise ModelError(f"the initialiser '{tensor.name}' stands twice")
            self._learn_constant(tensor)
        self.inputs = tuple(self._inputs())

    def _inputs(self) -> Iterator[str]:
        for info in self.graph.input:
            if info.name in self.constants:
                continue
            if info.name in self.types:
                raise ModelError(f"the model input '{info.name}' stands twice")
            self.types[info.name] = info.type
            self._static(info.name, f"the model input '{info.name}'")
            yield info.name

    def _learn_constant(self, tensor: onnx.TensorProto) -> None:
        self.constants[tensor.name] = tensor
        self.types[tensor.name] = helper.make_tensor_type_proto(tensor.data_type, list(tensor.dims))

    def _is_hidden(self, name: str) -> bool:
        """Whether no border may run through a tensor: its shape is open, or it is none of numbers."""
        kind = self.types[name]
        return not is_static(kind) or kind.tensor_type.elem_type not in DTYPE

    def _static(self, name: str, who: str) -> TensorType:
        """Return the tensor's static type, or say who is to blame that it has none."""
        tensor = self.types[name].tensor_type
        if not self.types[name].HasField("tensor_type") or tensor.elem_type not in DTYPE:
            raise UnplannableError(
                f"{who}: '{name}' is no tensor of numbers; strings, sequences and maps stand inside an op only"
            )
        if not is_static(self.types[name]):
            raise UnplannableError(f"{who} has a dynamic shape: that of '{name}' depends on data")
        shape = tuple(dim.dim_value for dim in tensor.shape.dim)
        if any(not 0 <= size <= MAX_DIMENSION for size in shape):
            raise ModelError(f"{who} gives '{name}' the impossible shape {list(shape)}")
        return TensorType(shape=shape, dtype=DTYPE[tensor.elem_type])

    def keep(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Learn a node's outputs and yield what stays of it.

        That is nothing where the outputs became constants or are another node's, and a branch's nodes instead of a
        decided ``If``.
        """
        check()
        rename(node, self.same)
        branch = taken(node, self.constants)
        if branch is not None:
            yield from self._opened(branch)
        elif self._stays(node):
            yield node

    def _opened(self, branch: Branch) -> Iterator[onnx.NodeProto]:
        for tensor in branch.initialisers:
            if tensor.name in self.types:
                raise ModelError(f"tensor '{tensor.name}' is produced twice")
            self._learn_constant(tensor)
        nodes = needed(branch.nodes, branch.outputs.values())
        for output, inner in branch.outputs.items():
            if output in self.kept_outputs:
                nodes.append(helper.make_node("Identity", [inner], [output]))
            self.uses[inner] += 1
        self.uses.update(name for node in nodes for name in reads(node))
        for node in in_order(nodes, self.types.keys()):
            yield from self.keep(node)
        for output, inner in branch.outputs.items():
            if output not in self.kept_outputs:
                self.same[output] = self.same.get(inner, inner)

    def _stays(self, node: onnx.NodeProto) -> bool:
        schema = schema_of(node, self.opsets)
        if schema is not None:
            self._drop_unused_outputs(node, schema)
        wanted = [name for name in node.output if name]
        if node.op_type == "Constant" and self._adopt(node):
            return False
        found = infer(node, schema, self.types, self.constants, self.imports, self.ir_version)
        self.types |= {name: self._settled(name, kind) for name, kind in found.items()}
        hidden = any(map(self._is_hidden, wanted))
        if not self.kept_outputs.intersection(wanted) and (not hidden or node.op_type in BOUNDED_OPS):
            asks = node.op_type in SHAPE_QUERIES and not self._is_hidden(node.input[0])
            if self._asked_shape(node) if asks else self._is_constant(node) and self._evaluated(node):
                return False
        if hidden:
            before = next((self.origin[name] for name in reads(node) if name in self.origin), describe(node))
            self.origin |= {name: before for name in wanted if self._is_hidden(name)}
        else:
            for name in wanted:
                self._static(name, describe(node))
        return not self._merge(node)

    def _settled(self, name: str, inferred: TypeProto) -> TypeProto:
        """What is inferred of a tensor, or where that leaves its shape open, what the file says of it.

        NOTE: runtimes check it: they refuse to write another shape into memory of this one.
        """
        said: TypeProto | None = self.declared.get(name)
        if said is None or is_static(inferred) or not is_static(said):
            return inferred
        if said.tensor_type.elem_type != inferred.tensor_type.elem_type:
            return inferred
        known, dims = inferred.tensor_type.shape.dim, said.tensor_type.shape.dim
        if inferred.tensor_type.HasField("shape") and len(known) != len(dims):
            return inferred
        if any(k.HasField("dim_value") and k.dim_value != d.dim_value for k, d in zip(known, dims, strict=False)):
            return inferred
        return said

    def _is_constant(self, node: onnx.NodeProto) -> bool:
        """Whether a node computes the same in every run and may do so beforehand."""
        if subgraphs(node) or node.op_type in COMPRESSED or not repeatable(node, self.constants):
            return False
        return all(name in self.constants and not self._is_hidden(name) for name in node.input if name)

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
        self._learn_constant(value)
        return True

    def _asked_shape(self, node: onnx.NodeProto) -> bool:
        """Replace a question for a shape by its answer."""
        shape = self._static(node.input[0], describe(node)).shape
        if node.op_type == "Size":
            value = np.array(math.prod(shape), np.int64)
        else:
            ends = {attribute.name: attribute.i for attribute in node.attribute}
            value = np.array(shape[ends.get("start", 0) : ends.get("end")], np.int64)
        self._learn_constant(numpy_helper.from_array(value, node.output[0]))
        return True

    def _evaluated(self, node: onnx.NodeProto) -> bool:
        """Replace the node by the values that it computes; False where the runtime computes none.

        NOTE: their types are the runtime's too, whatever was inferred.
        """
        inputs = [tuple(self.constants[name].dims) if name else () for name in node.input]
        size, elements = self._most(node)
        self.budget.spend(node, size, operations(node, inputs, elements))
        made = computed(node, self.constants, self.imports, self.ir_version)
        for tensor in (made or {}).values():
            self._learn_constant(tensor)
        return made is not None

    def _most(self, node: onnx.NodeProto) -> tuple[int, int]:
        """How many bytes and elements the node's outputs can have."""
        if node.op_type not in BOUNDED_OPS:
            made = [self._static(name, describe(node)) for name in node.output if name]
            return sum(kind.bytes for kind in made), sum(kind.elements for kind in made)
        shape = self._static(node.input[0], describe(node)).shape
        rows = len(shape) if node.op_type == "NonZero" else len(node.output)
        elements = max(1, rows) * math.prod(shape)
        return INDEX_BYTES * elements, elements

    def result(self, nodes: list[onnx.NodeProto]) -> StaticGraph:
        """Drop what no output needs, and check that every output is computed."""
        outputs = tuple(info.name for info in self.graph.output)
        if len(set(outputs)) != len(outputs):
            raise ModelError("it names an output twice")
        produced = {name for node in nodes for name in node.output if name}
        for name in outputs:
            if name in self.constants or name in self.inputs:
                raise UnplannableError(
                    f"the model output '{name}' is one of its inputs or constants: nothing is computed"
                )
            if name not in produced:
                raise ModelError(f"the model output '{name}' is produced by no op")
            self._static(name, self.origin.get(name, f"the model output '{name}'"))
        live = needed(nodes, outputs)
        read = {name for node in live for name in reads(node)}
        names = {*self.inputs, *(read & self.constants.keys()), *(n for node in live for n in node.output if n)}
        return StaticGraph(
            nodes=tuple(live),
            constants={name: tensor for name, tensor in self.constants.items() if name in read},
            types={name: self._static(name, f"tensor '{name}'") for name in names if not self._is_hidden(name)},
            inputs=self.inputs,
            outputs=outputs,
            opsets=self.opsets,
        )

"""The types of what a node computes, by ONNX's own rules or, where these do not know, by those of ONNX Runtime.

ONNX has no rules for contrib operators, and none that look into a single control-flow node; the runtime, which is to
run these nodes anyway, has both.
"""

import math
from collections.abc import Mapping
from typing import Final

import onnx
from onnx import TypeProto, checker, defs, helper, shape_inference

from agent_sdk.errors import UnplannableError
from agent_sdk.model.dtypes import ELEMENT_NAMES
from agent_sdk.model.lone import Constants, Imports, Types, session_of
from agent_sdk.model.nodes import DEFAULT_DOMAINS, describe, domain_of, reads, subgraphs
from agent_sdk.model.windows import by_the_kernel

MAX_HINT_ELEMENTS: Final = 4096
"""Constants up to this many elements take part in shape inference (targets of Reshape, bounds of Slice, ...)."""
SHAPE_KEEPING_OPS: Final = frozenset({"MeanVarianceNormalization", "GroupNormalization"})
"""The operators without a complete inference rule in ``onnx``: their output is like their first input."""
SAFE: Final = {"axis": range(-(2**31), 2**31), "batch_dims": range(2**31), "num_outputs": range(2**16)}
"""Attributes by whose other values ONNX's rules read memory that is not theirs, or take all that there is."""


def schema_of(node: onnx.NodeProto, opsets: Mapping[str, int]) -> defs.OpSchema | None:
    """What ONNX knows of a node's operator; None for one that ONNX does not define, which a runtime still may."""
    domain = domain_of(node)
    if domain not in opsets:
        raise UnplannableError(f"{describe(node)} is unsupported: the model imports no operator set for its domain")
    if not defs.has(node.op_type, opsets[domain], domain):
        return None
    return defs.get_schema(node.op_type, opsets[domain], domain)


def is_static(kind: TypeProto) -> bool:
    """Whether a type is that of a tensor whose every dimension is known."""
    tensor = kind.tensor_type
    if not kind.HasField("tensor_type") or not tensor.HasField("shape"):
        return False
    return all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def infer(
    node: onnx.NodeProto,
    schema: defs.OpSchema | None,
    types: Types,
    constants: Constants,
    imports: Imports,
    ir_version: int,
) -> dict[str, TypeProto]:
    """The types of a node's outputs; those of tensors whose shapes depend on data have open dimensions.

    ``types`` holds what the node reads, ``constants`` the values of initialisers. Raises UnplannableError where
    neither ONNX nor ONNX Runtime accepts the node.
    """
    for one in node.attribute:
        if one.i not in SAFE.get(one.name, (one.i,)):
            raise UnplannableError(f"{describe(node)} is unsupported: its {one.name} is beyond all bounds")
    wanted = [name for name in node.output if name]
    read = {name: types[name] for name in reads(node)}
    hints = {
        name: constants[name]
        for name in read
        if name in constants and math.prod(constants[name].dims) <= MAX_HINT_ELEMENTS
    }
    versions = {"" if entry.domain in DEFAULT_DOMAINS else entry.domain: entry.version for entry in imports}
    refused = f"no such operator in set {versions[domain_of(node)]}"
    found: dict[str, TypeProto] = {}
    if schema is not None and schema.deprecated:
        refused = f"deprecated in operator set {versions[domain_of(node)]}"
    elif schema is not None and not subgraphs(node):
        if node.op_type in SHAPE_KEEPING_OPS and node.output[0] and node.input[0]:
            return {node.output[0]: types[node.input[0]]}
        refused = "the shapes of its outputs cannot be inferred"
        try:
            given = {name: read[name] for name in node.input if name}
            constant = {name: value for name, value in hints.items() if name in given}
            found = shape_inference.infer_node_outputs(schema, node, given, constant, None, imports, ir_version)
        except (shape_inference.InferenceError, checker.ValidationError, RuntimeError, ValueError, KeyError) as error:
            refused = f"not valid: {' '.join(str(error).split())}"
        if all(name in found and is_static(found[name]) for name in wanted):
            return by_the_kernel(node, found, types, constants, imports, ir_version)
    try:
        found |= _asked(node, read, hints, imports, ir_version)
    except Exception as error:  # the runtime raises its own unrelated classes
        if not all(name in found for name in wanted):
            raise UnplannableError(f"{describe(node)} is unsupported: {refused}") from error
    return found


def _asked(
    node: onnx.NodeProto, types: Types, hints: Constants, imports: Imports, ir_version: int
) -> dict[str, TypeProto]:
    """What ONNX Runtime says of a node that stands alone."""
    wanted = [name for name in node.output if name]
    outputs = {info.name: info for info in session_of([node], types, hints, wanted, imports, ir_version).get_outputs()}
    found = {}
    for name in wanted:
        kind = _type(outputs[name].type)
        found[name] = kind
        if not kind.HasField("tensor_type"):
            continue
        shape = outputs[name].shape
        # NOTE: the runtime shows a scalar and a tensor of unknown rank alike; how long their shapes are tells.
        if not shape and not _is_scalar(node, name, types, hints, imports, ir_version):
            continue
        kind.tensor_type.shape.CopyFrom(helper.make_tensor_type_proto(0, shape).tensor_type.shape)
    return found


def _is_scalar(
    node: onnx.NodeProto, name: str, types: Types, hints: Constants, imports: Imports, ir_version: int
) -> bool:
    length = helper.make_node("Shape", [name], [f"{name}/shape"])
    try:
        session = session_of([node, length], types, hints, [f"{name}/shape"], imports, ir_version)
    except Exception:  # noqa: BLE001  a type that has no shape
        return False
    return bool(session.get_outputs()[0].shape == [0])


def _type(text: str) -> TypeProto:
    """ONNX Runtime's text for a type (``seq(tensor(float))``) as a TypeProto without shapes."""
    outer, _, inner = text.removesuffix(")").partition("(")
    kind = TypeProto()
    if outer == "tensor":
        kind.tensor_type.elem_type = ELEMENT_NAMES[inner]
    elif outer == "sparse_tensor":
        kind.sparse_tensor_type.elem_type = ELEMENT_NAMES[inner]
    elif outer == "seq":
        kind.sequence_type.elem_type.CopyFrom(_type(inner))
    elif outer == "optional":
        kind.optional_type.elem_type.CopyFrom(_type(inner))
    elif outer == "map":
        key, _, value = inner.partition(",")
        kind.map_type.key_type = ELEMENT_NAMES[key]
        kind.map_type.value_type.CopyFrom(_type(value))
    return kind

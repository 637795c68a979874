"""One ONNX op as the table sees it: its attributes, its constants, and the shapes that the graph declares."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper

from agent_sdk.errors import UnsupportedOp
from agent_sdk.model import Model
from agent_sdk.model.nodes import DEFAULT_DOMAINS, domain_of, type_of
from hope_schema import TensorType

FLOAT16_MOST: Final = np.float32(65504)
"""The largest finite number of float16."""


@dataclass(frozen=True)
class Node:
    """An op with everything about it that is known before it runs.

    Attributes:
        type: ONNX op type; with its domain before a colon where that is not ONNX's own.
        version: of its domain's operator set.
        attributes: as the file states them; text as ``str``.
        inputs: names in ONNX's order; empty where an optional one is left out.
        outputs: likewise.
        constants: values of the inputs that are constant.
        types: shapes and types of the activations among inputs and outputs.
        half: whether what the graph calls float32 is held as float16.
        cuda: whether it runs on a CUDA device.
        channels_last: whether images stand with their channels last.
    """

    type: str
    version: int
    attributes: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, np.ndarray] = field(repr=False)
    types: Mapping[str, TensorType] = field(repr=False)
    half: bool = False
    cuda: bool = False
    channels_last: bool = False

    def held(self, dtype: str) -> str:
        """The type that tensors of this type really have while the op runs."""
        return "float16" if self.half and dtype == "float32" else dtype

    @property
    def where(self) -> str:
        """How messages name the op."""
        return f"'{next((name for name in self.outputs if name), '?')}' ({self.type})"

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute's value."""
        return self.attributes.get(name, default)

    def has(self, index: int) -> bool:
        """Whether an optional input is given."""
        return index < len(self.inputs) and bool(self.inputs[index])

    def constant(self, index: int) -> np.ndarray | None:
        """The value of a constant input; None where it is left out.

        Raises UnsupportedOp where it is computed: a graph that was captured once cannot depend on such data.
        """
        if not self.has(index):
            return None
        if self.inputs[index] not in self.constants:
            raise UnsupportedOp(f"op {self.where} depends on data: its input '{self.inputs[index]}' is no constant")
        return self.constants[self.inputs[index]]

    def argument(self, index: int, name: str, default: Any = None) -> Any:
        """What older versions state as an attribute and newer ones as a constant input; a list or a scalar."""
        value = self.constant(index)
        return self.get(name, default) if value is None else value.tolist()

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """The shape of an input."""
        name = self.inputs[index]
        return self.constants[name].shape if name in self.constants else tuple(self.types[name].shape)

    def dtype(self, index: int = 0) -> str:
        """The element type of an input, as the graph declares it."""
        name = self.inputs[index]
        return str(self.constants[name].dtype) if name in self.constants else self.types[name].dtype

    def result(self, index: int = 0) -> TensorType:
        """Shape and element type of an output, as the graph declares them."""
        return self.types[self.outputs[index]]

    def axes(self, found: Any, rank: int | None = None) -> tuple[int, ...]:
        """Axes, counted from the front."""
        rank = len(self.shape()) if rank is None else rank
        return tuple(
            int(axis) % rank if rank else 0 for axis in (found if isinstance(found, list | tuple) else [found])
        )

    def refuse(self, why: str) -> UnsupportedOp:
        """The error to raise where torch has no call for what the op asks."""
        return UnsupportedOp(f"op {self.where}: {why}")


def node_of(model: Model, op_id: str, *, half: bool = False, cuda: bool = False, channels_last: bool = False) -> Node:
    """The op with this id. Raises UnsupportedOp for one that hides a sub-network."""
    places = model.nodes[op_id]
    if len(places) > 1:
        raise UnsupportedOp(
            f"op '{op_id}' ({model.graph.op[op_id].type}) depends on data: the torch runtime has no call"
        )
    proto = model.proto.graph.node[places[0]]
    domain = domain_of(proto)
    versions = {"" if one.domain in DEFAULT_DOMAINS else one.domain: one.version for one in model.proto.opset_import}
    tensors = model.graph.tensor
    return Node(
        type=type_of(proto),
        version=versions.get(domain, 1),
        attributes=attributes_of(proto),
        inputs=tuple(proto.input),
        outputs=tuple(proto.output),
        constants={name: _constant(model, name, half) for name in proto.input if name in model.constants},
        types={name: tensors[name].type for name in (*proto.input, *proto.output) if name in tensors},
        half=half,
        cuda=cuda,
        channels_last=channels_last,
    )


def _constant(model: Model, name: str, half: bool) -> np.ndarray:
    """A constant's value, as near as float16 comes where it is held so: 0 · -1e9 masks nothing, 0 · -∞ is no number."""
    value = numpy_helper.to_array(model.constants[name])
    if half and value.dtype == np.float32:
        return np.where(np.isfinite(value), np.clip(value, -FLOAT16_MOST, FLOAT16_MOST), value)
    return value


def attributes_of(proto: onnx.NodeProto) -> dict[str, Any]:
    """The attributes of a node by name: numbers, text, lists of them, or whole tensors."""
    return {attribute.name: _value(attribute) for attribute in proto.attribute}


def _value(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return list(value) if isinstance(value, (list, tuple)) or hasattr(value, "extend") else value

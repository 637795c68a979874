"""A model's inputs and outputs as ONNX Runtime's own sessions describe them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import onnx

from agent_sdk.model.dtypes import ELEMENT_NAMES, NUMPY_TYPES
from agent_sdk.model.shapes import symbol_of

HELD: Final[Mapping[str, np.dtype[Any]]] = {name: np.dtype(kind) for name, kind in NUMPY_TYPES.items()}
"""Those of ONNX Runtime's types of tensors that arrays have."""
_NAME_OF = {number: name for name, number in ELEMENT_NAMES.items()}


@dataclass(frozen=True)
class Port:
    """An input or output.

    Attributes:
        name: the tensor's name.
        type: such as ``tensor(float)`` or ``seq(tensor(int64))``.
        shape: sizes; a symbol's name, or None, where they are open.
    """

    name: str
    type: str
    shape: tuple[int | str | None, ...]

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """Its elements' type; None where NumPy lacks it, or it is no tensor."""
        return HELD.get(self.type)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape, without what is open."""
        return tuple(size for size in self.shape if isinstance(size, int))

    @property
    def is_open(self) -> bool:
        return not all(isinstance(size, int) for size in self.shape)


@dataclass(frozen=True)
class NodeArg:
    """An input or output as an application is told of it.

    Attributes:
        shape: sizes; a symbol's name, or None, where they are open. The caller's own: changing it changes nothing.
    """

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class ModelMetadata:
    """What a file says of itself."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass(frozen=True)
class About:
    """What ONNX Runtime says of a file.

    Attributes:
        outputs: what is computed, in the shapes that it infers.
        optional: initialisers that may be given as inputs.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    metadata: ModelMetadata
    optional: tuple[Port, ...]


def node_args(ports: Iterable[Port]) -> list[NodeArg]:
    return [NodeArg(port.name, port.type, list(port.shape)) for port in ports]


def bound(ports: Iterable[Port], shapes: Mapping[str, Sequence[int]]) -> tuple[Port, ...]:
    """The same ports with these shapes, and with what they give a symbol wherever that recurs."""
    ports = tuple(ports)
    sizes: dict[int | str | None, int] = {
        symbol: size
        for port in ports
        for symbol, size in zip(port.shape, shapes.get(port.name, ()), strict=False)
        if isinstance(symbol, str)
    }
    return tuple(
        replace(port, shape=tuple(shapes.get(port.name) or (sizes.get(size, size) for size in port.shape)))
        for port in ports
    )


def accepts(ports: Iterable[Port], others: Iterable[Port]) -> bool:
    """Whether ports take what others may be given: under the same names, in the same types, of sizes that agree."""
    own, given = ({port.name: port for port in each} for each in (ports, others))
    return own.keys() == given.keys() and all(_agrees(port, given[name]) for name, port in own.items())


def _agrees(port: Port, other: Port) -> bool:
    pairs = zip(port.shape, other.shape, strict=False)
    fixed = all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
    return port.type == other.type and len(port.shape) == len(other.shape) and fixed


def port_of(info: onnx.ValueInfoProto) -> Port:
    dims = info.type.tensor_type.shape.dim
    symbols = [symbol_of(dim) for dim in dims]
    sizes = (dim.dim_value if symbol is None else symbol or None for dim, symbol in zip(dims, symbols, strict=True))
    return Port(info.name, _shown(info.type), tuple(sizes))


def _shown(kind: onnx.TypeProto) -> str:
    which = kind.WhichOneof("value")
    if which == "tensor_type":
        return f"tensor({_NAME_OF.get(kind.tensor_type.elem_type, '?')})"
    if which == "sparse_tensor_type":
        return f"sparse_tensor({_NAME_OF.get(kind.sparse_tensor_type.elem_type, '?')})"
    if which == "sequence_type":
        return f"seq({_shown(kind.sequence_type.elem_type)})"
    if which == "optional_type":
        return f"optional({_shown(kind.optional_type.elem_type)})"
    if which == "map_type":
        return f"map({_NAME_OF.get(kind.map_type.key_type, '?')},{_shown(kind.map_type.value_type)})"
    return "?"

"""Feeds that nobody gave: drawn, each input by what it is for.

Data are random. What is a size, a count, an axis, an index, a divisor ... (``model/roles.py``) is drawn so that the
network can run, and in the same way whatever the seed: who ran it once on such a feed can run it on every other. There
are several *attempts*, for a size may have to fit others that the graph does not tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, numpy_helper

from agent_sdk.errors import InputError
from agent_sdk.model import Model, Network, Port
from agent_sdk.model.dtypes import FOREIGN, NUMPY_TYPES
from agent_sdk.model.hard import TIES, hard_values
from agent_sdk.model.roles import Dims, Roles, Use
from hope_schema import TensorType

if TYPE_CHECKING:
    from agent_sdk.runtimes.base import Segment

ATTEMPTS: Final = 8
"""Ways in which the inputs that are no data are drawn; beyond the first few, each is one of its options at random."""
WHOLE_TYPES: Final = frozenset({TensorProto.INT64, TensorProto.INT32})
FAR: Final = 1 << 20
"""An end that lies behind everything."""

Feed = dict[str, np.ndarray]
NOTHING: Final[Mapping[str, np.ndarray]] = MappingProxyType({})


class Feeds:
    """Draws the tensors that some nodes read.

    Args:
        shapes: of its tensors, as far as they are known.
        inputs: what a feed holds.
        taken: values of some of them that are not drawn.
    """

    def __init__(
        self,
        nodes: Iterable[onnx.NodeProto],
        shapes: Mapping[str, Dims],
        inputs: Mapping[str, TensorType],
        constants: Iterable[onnx.TensorProto] = (),
        taken: Mapping[str, np.ndarray] = NOTHING,
    ) -> None:
        self._nodes, self._shapes, self._inputs, self._taken = nodes, shapes, inputs, taken
        self._constants = constants

    @cached_property
    def _roles(self) -> Roles:
        return Roles(self._nodes, self._shapes, self._numbers)

    @cached_property
    def demanding(self) -> bool:
        """Whether an input is no data, so that a draw may be refused."""
        return any(map(self.is_no_data, self._inputs))

    def is_no_data(self, name: str) -> bool:
        return self.use(name, self._inputs[name]) is not None

    @property
    def _numbers(self) -> dict[str, int]:
        """Constants of one whole number, by name; none is in another file."""
        whole = (tensor for tensor in self._constants if tensor.data_type in WHOLE_TYPES)
        single = (tensor for tensor in whole if math.prod(tensor.dims) == 1)
        inline = (tensor for tensor in single if not external_data_helper.uses_external_data(tensor))
        return {tensor.name: int(numpy_helper.to_array(tensor).item()) for tensor in inline}

    def feed(self, seed: int, attempt: int = 0, *, hard: bool = False) -> Feed:
        """A feed. With ``hard`` its data are the largest, the smallest ... of their type.

        NOTE: floats are ties, and often equal, but of ordinary size: of large ones a network magnifies the rounding.
        """
        generator = np.random.default_rng(seed)
        return {name: self.tensor(name, kind, generator, attempt, hard=hard) for name, kind in self._inputs.items()}

    def tensor(
        self,
        name: str,
        kind: TensorType,
        generator: np.random.Generator,
        attempt: int = 0,
        *,
        hard: bool = False,
    ) -> np.ndarray:
        """The values of one tensor. Raises InputError for a type that NumPy does not have."""
        if kind.dtype in FOREIGN:
            raise InputError(f"input '{name}' is {kind.dtype}, which NumPy cannot hold")
        dtype, use = np.dtype(kind.dtype), self.use(name, kind)
        if name in self._taken and self._taken[name].shape == kind.shape:
            return self._taken[name].astype(dtype)
        if use is not None:
            chosen = _chosen(use, kind.shape, dtype, attempt, np.random.default_rng((attempt, crc32(name.encode()))))
            whole = chosen.reshape(kind.shape) if chosen.size == kind.elements else np.broadcast_to(chosen, kind.shape)
            return whole.astype(dtype)
        if hard and dtype.kind == "f":
            return generator.choice(TIES, kind.shape).astype(dtype)
        if hard:
            return hard_values(kind.dtype, kind.elements, int(generator.integers(1 << 32))).reshape(kind.shape)
        drawn = generator.standard_normal(kind.shape) if dtype.kind == "f" else generator.integers(0, 2, kind.shape)
        return np.asarray(drawn).astype(dtype)

    def use(self, name: str, kind: TensorType) -> Use | None:
        """What an input is for; None where it is data."""
        return next(iter(self._roles.of(name, integer="int" in kind.dtype)), None)


@dataclass(frozen=True)
class Drawn:
    """Feeds that plain ONNX Runtime takes, as was found out on the file, or one that the application gave.

    Attributes:
        feeds: draw them.
        attempt: the one that is taken.
        hard: whether hard values are taken too.
        own: what the application gave, because nothing that is drawn is taken.
    """

    feeds: Feeds
    attempt: int = 0
    hard: bool = False
    own: Feed | None = None

    def feed(self, seed: int = 0) -> Feed:
        return self.feeds.feed(seed, self.attempt) if self.own is None else self.own

    @property
    def fixed(self) -> Feed:
        """Values of inputs that may not have any: what is no data, and all that the application gave but floats."""
        return {
            name: value
            for name, value in self.feed().items()
            if (value.dtype.kind != "f" and self.own is not None) or self.feeds.is_no_data(name)
        }

    @property
    def tried(self) -> list[Feed]:
        """The feeds to try: an ordinary one first, then a hard one."""
        return [self.feed(), *([self.feeds.feed(0, self.attempt, hard=True)] if self.hard else [])]


def feeds_of(model: Model) -> Feeds:
    tensors = model.graph.tensor
    inputs = {name: tensors[name].type for name in model.graph.inputs}
    return Feeds(model.proto.graph.node, _known(model), inputs, model.proto.graph.initializer, model.taken)


def feeds_of_ports(ports: Iterable[Port], network: Network | None) -> Feeds | None:
    """Feeds of a network by its ports; None where one is open or holds no numbers.

    ``network`` says what the ports are for; None where it cannot be read.
    """
    inputs: dict[str, TensorType] = {}
    for port in ports:
        dtype = NUMPY_TYPES.get(port.type)
        sizes = tuple(size for size in port.shape if isinstance(size, int) and size >= 0)
        if dtype is None or len(sizes) != len(port.shape):
            return None
        inputs[port.name] = TensorType(shape=sizes, dtype=dtype)
    graph = network.proto.graph if network is not None else onnx.GraphProto()
    shapes: dict[str, Dims] = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    shapes |= {info.name: known for info in graph.value_info if (known := _sizes(info)) is not None}
    shapes |= {name: kind.shape for name, kind in inputs.items()}
    return Feeds(graph.node, shapes, inputs, graph.initializer)


def feeds_of_segment(segment: Segment) -> Feeds:
    model, tensor = segment.model, segment.model.graph.tensor
    nodes = [model.proto.graph.node[index] for op in segment.ops for index in model.nodes[op]]
    inputs = {name: tensor[name].type for name in segment.inputs}
    return Feeds(nodes, _known(model), inputs, model.proto.graph.initializer, model.taken)


def draw(model: Model, seed: int = 0) -> Feed:
    """A feed of a model of static shapes. Raises InputError for a type that NumPy does not have."""
    return feeds_of(model).feed(seed)


def _known(model: Model) -> dict[str, Dims]:
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.proto.graph.initializer}
    return shapes | {tensor.name: tensor.shape for tensor in model.graph.tensors}


def _sizes(info: onnx.ValueInfoProto) -> Dims | None:
    tensor = info.type.tensor_type
    if not tensor.HasField("shape") or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    return tuple(dim.dim_value for dim in tensor.shape.dim)


def _chosen(use: Use, shape: Dims, dtype: np.dtype[Any], attempt: int, generator: np.random.Generator) -> np.ndarray:
    """One of the options: the first, second ... by the attempt, and any of them in later ones."""
    options = [np.asarray(np.asarray(option) - use.offset) for option in _options(use, shape, dtype, generator)]
    if attempt < ATTEMPTS // 2:
        return options[attempt % len(options)]
    return options[generator.integers(len(options))]


def _options(
    use: Use, shape: Dims, dtype: np.dtype[Any], generator: np.random.Generator
) -> Sequence[np.ndarray | Sequence[int] | float]:
    """What a tensor of ``shape`` may hold for this use, the likeliest first."""
    count, dims = math.prod(shape), use.dims
    match use.purpose:
        case "parts":
            return [_parts(dims[0], count), [dims[0] - count + 1, *[1] * (count - 1)]] if dims and count else [1, 2]
        case "shape":
            return [*_targets(use, count), *dims[:1], 1, -1, *dims[1:]]
        case "sizes":
            aligned = [[*[2] * (count - len(dims)), *dims[max(0, len(dims) - count) :]]] if use.whole and dims else []
            return [*aligned, 1, 2, 3, *dims]
        case "count":
            return [max(1, dims[0] // 2), 1, dims[0]] if dims and dims[0] else [1, 2, 3]
        case "axes":
            of_one = [axis for axis, size in enumerate(dims) if size == 1]
            ones = [of_one[:count]] if len(of_one) >= count else []
            return [*ones, np.arange(count), 0, -1 - np.arange(count), 1]
        case "rows":
            return [_rows(dims, shape, generator), 0]
        case "indices":
            return [_indices(use, shape, generator), 0]
        case "starts" | "nothing":
            return [0, 1]
        case "ends":
            return [FAR if np.dtype(dtype).itemsize > 2 else 100, 1, 2]
        case "depth":
            return [2, 3, 8, 1]
        case "rate":
            return [0.25 if dtype.kind == "f" else 0]
        case "divisor":
            drawn = generator.standard_normal(shape)
            whole = dtype.kind != "f"
            return [generator.integers(1, 9, shape) if whole else np.copysign(0.5 + np.abs(drawn), drawn), 1]
        case "scale":
            return [0.5 + generator.random(shape) if dtype.kind == "f" else 1, 1, 2]
        case "step":
            return [1, 2]
        case "limit":
            return [4, 1, 8]


def _parts(total: int, count: int) -> list[int]:
    return [total // count + (index < total % count) for index in range(count)]


def _targets(use: Use, count: int) -> list[list[int]]:
    """Whole shapes that a tensor of shape ``use.dims`` can take."""
    if not use.whole or not count:
        return []
    rest = [-1, *[1] * (count - 1)]
    return [list(use.dims), rest] if use.dims and len(use.dims) == count else [rest]


def _rows(dims: Dims, shape: Dims, generator: np.random.Generator) -> np.ndarray:
    """Positions in a tensor, none twice where there are enough: what is written there may depend on the order."""
    if not shape or not dims or shape[-1] > len(dims):
        return np.zeros(shape, np.int64)
    sizes, count = dims[: shape[-1]], math.prod(shape[:-1])
    places = math.prod(sizes)
    if not places:
        return np.zeros(shape, np.int64)
    drawn = generator.choice(places, count, replace=count > places)
    return np.stack(np.unravel_index(drawn, sizes), axis=-1).reshape(shape)


def _indices(use: Use, shape: Dims, generator: np.random.Generator) -> np.ndarray:
    """Positions along an axis; 0 or 1 where its size is not known, for tables of two rows are common."""
    below = max(1, use.dims[0]) if use.dims else 2
    if use.axis is None or not shape or not -len(shape) <= use.axis < len(shape) or shape[use.axis] > below:
        return generator.integers(0, below, shape)
    if math.prod(shape) <= below:  # none twice at all: rows of their own would take the square of that for MaxUnpool
        return generator.choice(below, shape, replace=False)
    row = np.broadcast_to(np.arange(below), (*np.delete(shape, use.axis), below))
    return np.moveaxis(generator.permuted(row, axis=-1)[..., : shape[use.axis]], -1, use.axis)

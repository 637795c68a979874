"""Which networks there are, and how to build them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import onnx

from agent_sdk.errors import UnknownNameError
from agent_sdk.zoo import inception, lstm, nasnet, shipped

BUILT_IN_CODE = "built in code"
SHIPPED = "ONNX Model Zoo graph from the onnx package"

_BUILDERS: Mapping[str, tuple[str, Callable[[int], onnx.ModelProto]]] = {
    "inception_v3": (BUILT_IN_CODE, inception.inception_v3),
    "inception_v4": (BUILT_IN_CODE, inception.inception_v4),
    "nasnet_mobile": (BUILT_IN_CODE, nasnet.nasnet_mobile),
    "nasnet_large": (BUILT_IN_CODE, nasnet.nasnet_large),
    "pnasnet_mobile": (BUILT_IN_CODE, nasnet.pnasnet_mobile),
    "pnasnet_large": (BUILT_IN_CODE, nasnet.pnasnet_large),
    "lstm": (BUILT_IN_CODE, lstm.lstm),
    **{name: (SHIPPED, partial(shipped.build, name)) for name in shipped.FILES},
}


@dataclass(frozen=True)
class Details:
    """What ``hope-agent zoo list`` says of a network: its ops after constant folding, weights and input."""

    name: str
    source: str
    ops: int
    parameters: int
    megabytes: float
    inputs: Mapping[str, tuple[int, ...]]


def names() -> tuple[str, ...]:
    """Return the networks' names, sorted."""
    return tuple(sorted(_BUILDERS))


def source(name: str) -> str:
    """Return where the network's topology comes from. Raises UnknownNameError."""
    return _entry(name)[0]


def build(name: str, seed: int = 0) -> onnx.ModelProto:
    """Build a network with weights drawn from ``seed`` (0 or more). Raises UnknownNameError with suggestions."""
    return _entry(name)[1](seed)


def describe(name: str, model: onnx.ModelProto | None = None) -> Details:
    """Return the network's details; building it (up to seconds) unless it is given. Raises UnknownNameError."""
    graph = (model or build(name)).graph
    count = 0
    size = 0
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            elements = 1
            for dimension in tensor.dims:
                elements *= dimension
            count += elements
        size += tensor.ByteSize()
    return Details(
        name=name,
        source=source(name),
        ops=len(graph.node),
        parameters=count,
        megabytes=size / 1e6,
        inputs={i.name: tuple(dim.dim_value for dim in i.type.tensor_type.shape.dim) for i in graph.input},
    )


def _entry(name: str) -> tuple[str, Callable[[int], onnx.ModelProto]]:
    try:
        return _BUILDERS[name]
    except KeyError:
        raise UnknownNameError("zoo network", name, names()) from None

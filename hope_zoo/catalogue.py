"""Which networks there are, and how to build them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import onnx

from agent_sdk.errors import UnknownNameError
from hope_zoo import hrnet, inception, lstm, nasnet, plain, shipped
from hope_zoo.weights import Topology

BUILT_IN_CODE = "built in code"
SHIPPED = "onnx package"

_TOPOLOGIES: Mapping[str, tuple[str, Callable[[], Topology]]] = {
    "inception_v3": (BUILT_IN_CODE, inception.inception_v3),
    "inception_v4": (BUILT_IN_CODE, inception.inception_v4),
    "nasnet_mobile": (BUILT_IN_CODE, nasnet.nasnet_mobile),
    "nasnet_large": (BUILT_IN_CODE, nasnet.nasnet_large),
    "pnasnet_mobile": (BUILT_IN_CODE, nasnet.pnasnet_mobile),
    "pnasnet_large": (BUILT_IN_CODE, nasnet.pnasnet_large),
    "hrnet_w18": (BUILT_IN_CODE, hrnet.hrnet_w18),
    "lstm": (BUILT_IN_CODE, lstm.lstm),
    "vgg16": (BUILT_IN_CODE, plain.vgg16),
    "resnet18": (BUILT_IN_CODE, plain.resnet18),
    "darknet53": (BUILT_IN_CODE, plain.darknet53),
    **{name: (SHIPPED, partial(shipped.topology, name)) for name in shipped.FILES},
}


@dataclass(frozen=True)
class Details:
    """What ``hope-agent zoo list`` says of a network.

    ``parameters`` counts weights (float32, so ``megabytes`` is four times that in 10^6 bytes); ``inputs`` maps each
    input to its shape.
    """

    name: str
    source: str
    ops: int
    parameters: int
    megabytes: float
    inputs: Mapping[str, tuple[int, ...]]


def names() -> tuple[str, ...]:
    """Return the networks' names, sorted."""
    return tuple(sorted(_TOPOLOGIES))


def source(name: str) -> str:
    """Return where the network's topology comes from. Raises UnknownNameError with suggestions."""
    return _entry(name)[0]


def build(name: str, seed: int = 0) -> onnx.ModelProto:
    """Build a network with weights drawn from ``seed`` (0 or more). Raises UnknownNameError with suggestions."""
    return _entry(name)[1]().draw(seed)


def describe(name: str) -> Details:
    """Return the network's size without drawing its weights. Raises UnknownNameError with suggestions."""
    where, topology = _entry(name)
    network = topology()
    parameters = sum(math.prod(shape) for shape in network.parameters.values())
    return Details(
        name=name,
        source=where,
        ops=len(network.nodes),
        parameters=parameters,
        megabytes=4 * parameters / 1e6,
        inputs=dict(network.inputs),
    )


def _entry(name: str) -> tuple[str, Callable[[], Topology]]:
    try:
        return _TOPOLOGIES[name]
    except KeyError:
        raise UnknownNameError("zoo network", name, names()) from None

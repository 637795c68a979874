"""An ``If`` whose condition is known before the run: the branch that it takes, as nodes of the graph around it."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass

import onnx
from onnx import numpy_helper

from agent_sdk.model.nodes import DEFAULT_DOMAINS, op_id, rename


@dataclass(frozen=True)
class Branch:
    """Nodes and initialisers that stand for a decided ``If``, under names that begin with its own.

    ``outputs`` maps the outputs of the ``If`` to what the branch calls them.
    """

    nodes: list[onnx.NodeProto]
    initialisers: list[onnx.TensorProto]
    outputs: Mapping[str, str]


def taken(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> Branch | None:
    """The branch that an ``If`` takes, if that is known; None for any other node.

    Exporters write such conditions for what depends on shapes alone (``if x.dim() == 2``).
    """
    if node.op_type != "If" or node.domain not in DEFAULT_DOMAINS or len(node.input) != 1:
        return None
    condition = constants.get(node.input[0])
    graphs = {attribute.name: attribute.g for attribute in node.attribute}
    if condition is None or graphs.keys() != {"then_branch", "else_branch"}:
        return None
    value = numpy_helper.to_array(condition)
    graph = graphs["then_branch" if value.any() else "else_branch"]
    if value.size != 1 or len(graph.output) != len(node.output) or graph.sparse_initializer:
        return None
    outside = f"{op_id(node)}/"
    names = {name: outside + name for inner in graph.node for name in inner.output if name}
    names |= {tensor.name: outside + tensor.name for tensor in graph.initializer}
    initialisers = [deepcopy(tensor) for tensor in graph.initializer]
    for tensor in initialisers:
        tensor.name = names[tensor.name]
    return Branch(
        nodes=[_renamed(inner, names) for inner in graph.node],
        initialisers=initialisers,
        outputs={
            output: names.get(info.name, info.name)
            for info, output in zip(graph.output, node.output, strict=True)
            if output
        },
    )


def _renamed(node: onnx.NodeProto, names: Mapping[str, str]) -> onnx.NodeProto:
    made = deepcopy(node)
    rename(made, names)
    for index, name in enumerate(made.output):
        made.output[index] = names.get(name, name)
    return made

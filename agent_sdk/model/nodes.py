"""What a node reads and is called, subgraphs included, and the order in which nodes can run."""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final

import onnx

from agent_sdk.errors import ModelError

DEFAULT_DOMAINS: Final = frozenset({"", "ai.onnx"})
GRAPH_TYPES: Final = frozenset({onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS, onnx.AttributeProto.UNDEFINED})
"""Types of attributes that may hold graphs; very old files leave the type out."""


def domain_of(node: onnx.NodeProto) -> str:
    """The node's operator domain; the default one is ``""``."""
    return "" if node.domain in DEFAULT_DOMAINS else str(node.domain)


def type_of(node: onnx.NodeProto) -> str:
    """The node's operator, with its domain where that is not the default one."""
    return f"{domain_of(node)}:{node.op_type}".removeprefix(":")


def op_id(node: onnx.NodeProto) -> str:
    """The name a node is known by: its first output that has one."""
    return str(next(name for name in node.output if name))


def shell(proto: onnx.ModelProto) -> onnx.ModelProto:
    """A model with another one's inputs and outputs, and nothing between them yet."""
    made = onnx.ModelProto(ir_version=proto.ir_version, producer_name="hope", opset_import=proto.opset_import)
    made.graph.name = proto.graph.name or "model"
    made.graph.input.extend(proto.graph.input)
    made.graph.output.extend(proto.graph.output)
    return made


def show(proto: onnx.ModelProto, names: Iterable[str]) -> None:
    """Make tensors that a model computes outputs of it too."""
    listed = {info.name for info in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in listed)


def describe(node: onnx.NodeProto) -> str:
    """Name an op the way an error message should: its id and its type."""
    known_as = next((name for name in node.output if name), node.name or "?")
    return f"op '{known_as}' ({type_of(node)})"


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [
        graph
        for attribute in node.attribute
        if attribute.type in GRAPH_TYPES
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs)
    ]


def nested(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes and those of the subgraphs in them."""
    for node in nodes:
        yield node
        for graph in subgraphs(node):
            yield from nested(graph.node)


def reads(node: onnx.NodeProto) -> list[str]:
    """The names a node reads, each once: its inputs, then what its subgraphs take from around them."""
    names = dict.fromkeys(name for name in node.input if name)
    for graph in subgraphs(node):
        names |= dict.fromkeys(captured(graph))
    return list(names)


def needed(nodes: Iterable[onnx.NodeProto], wanted: Iterable[str]) -> list[onnx.NodeProto]:
    """Those of the nodes, in their order, without which the wanted names are not computed."""
    nodes = list(nodes)
    writer = {name: node for node in nodes for name in node.output if name}
    names = dict.fromkeys(wanted)
    pending = list(names)
    while pending:
        node = writer.get(pending.pop())
        new = [name for name in reads(node) if name not in names] if node is not None else []
        names |= dict.fromkeys(new)
        pending += new
    return [node for node in nodes if any(name in names for name in node.output)]


def captured(graph: onnx.GraphProto) -> list[str]:
    """The names that a subgraph takes from the graphs around it."""
    own = {info.name for info in graph.input} | {tensor.name for tensor in graph.initializer}
    own |= {tensor.values.name for tensor in graph.sparse_initializer}
    own |= {name for node in graph.node for name in node.output}
    names = dict.fromkeys(name for node in graph.node for name in reads(node))
    names |= dict.fromkeys(info.name for info in graph.output)
    return [name for name in names if name not in own]


def rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Make a node, and its subgraphs as far as they do not use the name for something of their own, read others."""
    for index, name in enumerate(node.input):
        node.input[index] = names.get(name, name)
    for graph in subgraphs(node):
        outside = {name: names[name] for name in captured(graph) if name in names}
        if outside:
            for inner in graph.node:
                rename(inner, outside)
            for info in graph.output:
                info.name = outside.get(info.name, info.name)


def in_order(nodes: Sequence[onnx.NodeProto], known: Collection[str]) -> Iterator[onnx.NodeProto]:
    """Yield nodes in a topological order that depends on names alone, so that of twins the same one is kept.

    ``known`` are the names that nobody need produce. Refuses duplicate names, dangling reads and cycles.
    """
    writer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        if not any(node.output):
            raise ModelError(f"a {node.op_type} node ('{node.name}') has no outputs")
        for name in filter(None, node.output):
            if name in writer or name in known:
                raise ModelError(f"tensor '{name}' is produced twice; the second time by {describe(node)}")
            writer[name] = index
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for index, node in enumerate(nodes):
        for name in reads(node):
            if name not in writer and name not in known:
                raise ModelError(f"{describe(node)} reads tensor '{name}', which nothing produces")
        sorter.add(index, *(writer[name] for name in reads(node) if name in writer))
    try:
        sorter.prepare()
    except CycleError as error:
        raise ModelError(f"the graph has a cycle through {describe(nodes[error.args[1][0]])}") from error
    ready: list[tuple[str, int]] = []
    while sorter.is_active():
        for index in sorter.get_ready():
            heapq.heappush(ready, (op_id(nodes[index]), index))
        _, index = heapq.heappop(ready)
        yield nodes[index]
        sorter.done(index)

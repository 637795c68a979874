"""Ops that hide a sub-network: what stands between tensors that no border may run through, seen as one op.

Two nodes that share a hidden tensor belong together. Groups that would wait for each other then, because a path leaves
one and comes back to it, are one group. So the graph of the groups has no cycle, and all that stands between them is
static tensors of numbers.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain

import onnx

from agent_sdk.model.nodes import domain_of, reads, subgraphs, type_of
from hope_schema import TensorType
from hope_schema.hashing import digest

OPAQUE = "hope:Opaque"
"""The type of an op that stands for several nodes."""


def grouped(nodes: Sequence[onnx.NodeProto], hidden: set[str]) -> list[list[onnx.NodeProto]]:
    """Put nodes that hidden tensors join together; ``nodes`` and those of each group are in topological order."""
    if not hidden:
        return [[node] for node in nodes]
    writer = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    before = [{writer[name] for name in reads(node) if name in writer} for node in nodes]
    joined = [{writer[name] for name in reads(node) if name in hidden and name in writer} for node in nodes]
    home = _components(before, joined)
    groups: dict[int, list[onnx.NodeProto]] = defaultdict(list)
    for node, group in zip(nodes, home, strict=True):
        groups[group].append(node)
    return list(groups.values())


def _components(before: Sequence[set[int]], joined: Sequence[set[int]]) -> list[int]:
    """The strongly connected components of the graph in which joined nodes depend on each other, by Kosaraju.

    Args:
        before: for each node, those it depends on.
        joined: for each node, those among them that it cannot be parted from.
    """
    forth: list[set[int]] = [set(own) for own in before]
    back: list[set[int]] = [set() for _ in before]
    for index, own in enumerate(joined):
        for other in own:
            forth[other].add(index)
    for index, own in enumerate(forth):
        for other in own:
            back[other].add(index)
    finished: list[int] = []
    seen: set[int] = set()
    for root in range(len(forth)):
        stack = [(root, iter(forth[root]))] if root not in seen else []
        seen.add(root)
        while stack:
            node, left = stack[-1]
            following = next((other for other in left if other not in seen), None)
            if following is None:
                finished.append(node)
                stack.pop()
            else:
                seen.add(following)
                stack.append((following, iter(forth[following])))
    home = [-1] * len(forth)
    for root in reversed(finished):
        reached = [root] if home[root] < 0 else []
        for node in reached:
            if home[node] < 0:
                home[node] = root
                reached += [other for other in back[node] if home[other] < 0]
    return home


def anatomy(nodes: Sequence[onnx.NodeProto], types: Mapping[str, TensorType]) -> str:
    """SHA-256 of what nodes are and how they hang together, free of names and of weights."""
    return digest(_rows(nodes, {}, types))


def _rows(nodes: Sequence[onnx.NodeProto], place: dict[str, int], types: Mapping[str, TensorType]) -> list[object]:
    rows: list[object] = []
    for node in nodes:
        inputs = [_place(name, place) for name in node.input]
        kinds = [str(types[name]) if name in types else "" for name in chain(node.input, node.output)]
        attributes = sorted(_stripped(one) for one in node.attribute if not one.HasField("g") and not one.graphs)
        inner = [_graph_rows(graph, place, types) for graph in subgraphs(node)]
        outputs = [_place(name, place) for name in node.output]
        rows.append([domain_of(node), node.op_type, inputs, outputs, kinds, attributes, inner])
    return rows


def _graph_rows(graph: onnx.GraphProto, outer: dict[str, int], types: Mapping[str, TensorType]) -> list[object]:
    place = dict(outer)
    ends = [[_place(info.name, place), info.type.SerializeToString(deterministic=True).hex()] for info in graph.input]
    constants = [[_place(t.name, place), t.data_type, list(t.dims)] for t in graph.initializer]
    return [ends, constants, _rows(graph.node, place, types), [_place(info.name, place) for info in graph.output]]


def _place(name: str, place: dict[str, int]) -> int:
    return place.setdefault(name, len(place)) if name else -1


def _stripped(attribute: onnx.AttributeProto) -> str:
    """An attribute as text; of a tensor, its name and type only."""
    if attribute.HasField("t"):
        return f"{attribute.name}={attribute.t.data_type}{list(attribute.t.dims)}"
    return str(attribute.SerializeToString(deterministic=True).hex())


def named(nodes: Sequence[onnx.NodeProto]) -> str:
    """The types of a group's nodes, each once, for people to read."""
    return "+".join(dict.fromkeys(map(type_of, nodes)))

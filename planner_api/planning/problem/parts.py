"""How a network's super-ops can be cut, and what a profile, or else a stated rule, says of their parts.

A part is a super-op like any other (``hope_schema.cutgraph``): it takes what was measured for its signature. One that a
chain made larger takes as much more than the part on the grid of which that is known. All others take a fixed part of
what their op takes, as predicted, else ``FIXED``, and their share of the rest. Slices and joins of what is
contiguous are views; others take what was measured for their signature, else they copy at ``BYTES_PER_US``, or
``DEVICE_BYTES_PER_US`` in a memory that is not the host's. A region moves as a tensor of its shape does.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from hope_schema import HOST, ModelGraph, SuperOp, TensorType, recipe_of
from hope_schema.cutgraph import glue_super_op, node_of, part_super_op
from hope_schema.cutting import Node, Region, Span
from hope_schema.graph import BYTES_PER_ELEMENT
from planner_api.planning.problem.arrays import FloatArray
from planner_api.planning.problem.choices import Cutter, Shape, grid
from planner_api.planning.problem.known import KnownKind
from planner_api.planning.problem.machine import Machine
from planner_api.planning.problem.problem import called
from planner_api.planning.problem.transfers import TransferTable, Type

FIXED = 0.05
"""Of an op's latency: what each of its parts takes however small it is."""
BYTES_PER_US = 10_000.0
"""What a slice or a join copies in a microsecond: ten gigabytes a second, because one core does it."""
DEVICE_BYTES_PER_US = 100_000.0
"""The same in an accelerator's own memory, where all of it does."""
RULE = f"parts that were never measured: as predicted, else {FIXED:.0%} of their op's latency and a share of the rest"


def cutter_of(
    graphs: Sequence[ModelGraph],
    ops: Sequence[tuple[int, SuperOp]],
    latency_us: FloatArray,
    known: Sequence[KnownKind],
    signatures: Collection[str],
    table: TransferTable,
    machine: Machine,
    labels: Sequence[str],
) -> Cutter:
    """The cutter of some networks, of which ``ops`` are the super-ops, each with the number of its network.

    They take ``latency_us`` (n, P) whole. What is ``known`` stands by processor; something was measured of
    ``signatures``; ``labels`` are the names of the machine's places.
    """
    # A part's signature takes a while to work out: once for all ops alike; not where nothing else of these types was
    # measured, because then it cannot be known.
    supers = [op for _, op in ops]
    types = [op.signature.rpartition(":")[0] for op in supers]
    foreign = {
        signature.rpartition(":")[0]
        for signature in {recipe_of(one)[0] for one in signatures} - {op.signature for op in supers}
    }
    nodes = tuple(_node(op, job, len(graphs)) for job, op in ops)
    tensors = {called(one.name, job, len(graphs)): one for job, graph in enumerate(graphs) for one in graph.tensors}
    shapes: Mapping[str, Shape] = {name: tensor.shape for name, tensor in tensors.items()}

    alike: dict[str, int] = {}
    first = [alike.setdefault(op.signature, index) for index, op in enumerate(supers)]

    def measured(op: SuperOp) -> list[float | None]:
        """What is known of a super-op on each processor; ``inf`` where it is not supported, None where nothing."""
        ways = {kind: kind.way(op) for kind in dict.fromkeys(known)}
        us = {kind: None if way is None else math.inf if way.us is None else way.us for kind, way in ways.items()}
        return [us[kind] for kind in known]

    @cache
    def known_us(op: int, region: Region) -> Sequence[float | None]:
        return measured(part_super_op(supers[op], region)) if types[op] in foreign else [None] * len(known)

    def on_grid(op: int, span: Span) -> Span:
        """The largest interval on the grid within one, or else that."""
        borders = grid(shapes[nodes[op].id][span.axis], nodes[op].granularity(span.axis))
        inner = [at for at in borders if span.start <= at <= span.stop]
        return Span(span.axis, inner[0], inner[-1]) if len({*inner}) > 1 else span

    @cache
    def part_us(op: int, region: Region) -> FloatArray:
        shape = shapes[nodes[op].id]
        size, extent = math.prod(region.shape(shape)), math.prod(shape)
        found = known_us(first[op], region)
        inner = Region(tuple(on_grid(op, span) for span in region.spans)) if None in found else region
        if inner != region:
            base = known_us(first[op], inner)
            more = size / math.prod(inner.shape(shape))
            found = [other and other * more if us is None else us for us, other in zip(found, base, strict=True)]
        fixed = [[kind.fixed.get((supers[op].signature, axis), FIXED) for axis in region.axes] for kind in known]
        least = np.array(fixed).max(axis=1)
        by_rule = latency_us[op] * (least + (1 - least) * size / extent)
        return np.array([rule if us is None else us for us, rule in zip(found, by_rule.tolist(), strict=True)])

    @cache
    def moved(type_: Type) -> FloatArray:
        cost = np.zeros((len(labels), len(labels)))
        for source, start in enumerate(labels):
            for target, end in enumerate(labels):
                if source != target and not (start == end == HOST and machine.host in (source, target)):
                    cost[source, target] = table.costs([type_], start, end)[0][0]
        return machine.along(cost)

    memories = [labels[place].partition("/")[0] for place in machine.place]
    copied_us = np.array([1.0 / (BYTES_PER_US if memory == HOST else DEVICE_BYTES_PER_US) for memory in memories])

    @cache
    def glue_us(tensor: str, shape: Shape, axes: tuple[int, ...], reads: tuple[Shape, ...]) -> FloatArray:
        dtype = tensors[tensor].dtype
        copied = 0 if math.prod(shape[: axes[-1]]) == 1 else math.prod(shape)
        by_rule: FloatArray = copied_us * copied * BYTES_PER_ELEMENT[dtype]
        if not copied or not reads or ("Concat" if len(reads) > 1 else "Slice") not in foreign:
            return by_rule
        read, made = [TensorType(shape=one, dtype=dtype) for one in reads], TensorType(shape=shape, dtype=dtype)
        found = measured(glue_super_op(read, made, axes))
        return np.array([rule if us is None else us for us, rule in zip(found, by_rule.tolist(), strict=True)])

    return Cutter(
        nodes=nodes,
        shapes=shapes,
        part_us=part_us,
        glue_us=glue_us,
        move_us=lambda tensor, shape: moved((shape, tensors[tensor].dtype)),
    )


def _node(op: SuperOp, job: int, jobs: int) -> Node:
    """A super-op as the algebra of cuts sees it, with all names as the problem has them."""
    node = node_of(op)
    if jobs == 1:
        return node
    return replace(
        node,
        id=called(node.id, job, jobs),
        reads=tuple(called(name, job, jobs) for name in node.reads),
        writes=tuple(called(name, job, jobs) for name in node.writes),
        needs=lambda region: {called(name, job, jobs): need for name, need in node.needs(region).items()},
    )

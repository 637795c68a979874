"""The graph that cuts make of a graph: parts, slices and joins as ordinary ops, with what each comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from hope_schema.cutrules import PartOp, demands, granularity, part_of, reads
from hope_schema.cutting import Node, Piece, Region, Span, pieces
from hope_schema.graph import ModelGraph, Op, Tensor, TensorType
from hope_schema.plan import Cut
from hope_schema.superop import SuperOp, merge


@dataclass(frozen=True)
class CutOp:
    """One op of a cut graph.

    Attributes:
        op: the op.
        types: what it writes.
        source: the op that it is, or a part of; None for slices and joins.
        part: what it is of that; None where it is the op itself, renamed.
        region: what a slice takes of what it reads, and what a part makes of what its source writes.
    """

    op: Op
    types: tuple[TensorType, ...]
    source: Op | None = None
    part: PartOp | None = None
    region: Region | None = None

    @property
    def written(self) -> dict[str, TensorType]:
        """The types by name."""
        return dict(zip(self.op.outputs, self.types, strict=True))


def cut_graph(graph: ModelGraph, cuts: Sequence[Cut]) -> ModelGraph:
    """The graph with some of its super-ops cut into parts. Raises CutError with the reason why one stays whole."""
    return assembled(graph, cut_ops(graph, cuts))


def cut_ops(graph: ModelGraph, cuts: Sequence[Cut]) -> list[CutOp]:
    """The ops of the graph that cuts make of a graph, in topological order. Raises CutError."""
    super_ops = {one.id: one for one in merge(graph)}
    shapes = {tensor.name: tensor.shape for tensor in graph.tensors}
    types: dict[str, TensorType] = {name: graph.tensor[name].type for name in graph.inputs}
    made: list[CutOp] = []
    for piece in pieces([node_of(one) for one in super_ops.values()], cuts, shapes, graph.outputs):
        if piece.kind == "whole":
            found = [CutOp(op, super_ops[piece.op].types(op.outputs), op) for op in super_ops[piece.op].ops]
        elif piece.kind == "part":
            found = _part(super_ops[piece.op], piece)
        else:
            found = [_glue(piece, types)]
        made += found
        for one in found:
            types |= one.written
    return made


def assembled(graph: ModelGraph, made: Sequence[CutOp]) -> ModelGraph:
    """The cut graph of its ops; inputs and outputs are as they were."""
    return _graph(graph.name, {name: graph.tensor[name].type for name in graph.inputs}, made, graph.outputs)


def holders(graph: ModelGraph, made: Sequence[CutOp]) -> dict[str, dict[str, Region]]:
    """By output of the graph, what holds it in the cut graph, each with the region that it is: its parts, or itself."""
    found: dict[str, dict[str, Region]] = {name: {} for name in graph.outputs}
    for one in made:
        if one.source is not None and one.region is not None and one.source.id in found:
            found[one.source.id][one.op.id] = one.region
    return {name: held or {name: Region(())} for name, held in found.items()}


def node_of(super_op: SuperOp) -> Node:
    """A super-op as the algebra of cuts sees it."""
    return Node(
        super_op.id, super_op.inputs, super_op.outputs, partial(granularity, super_op), partial(reads, super_op)
    )


def part_super_op(super_op: SuperOp, region: Region) -> SuperOp:
    """What computes a region of a super-op's output, by itself: its signature is that of the part in any plan.

    Raises CutError.
    """
    graph, needs, made = super_op.graph, reads(super_op, region), region.of(super_op.id)
    found = _part(super_op, Piece("part", super_op.id, super_op.inputs, (made,), region))
    types = {name: graph.tensor[name].type for name in super_op.inputs}
    types |= {name: sized(types[name], need) for name, need in needs.items() if need is not None}
    alone = _graph(graph.name, types, found, (made,))
    return SuperOp(graph=alone, ops=alone.ops)


def glue_super_op(reads: Sequence[TensorType], made: TensorType, axes: Sequence[int]) -> SuperOp:
    """What slices a tensor of some type, or joins several, by itself: its signature is that in any plan.

    ``axes``: those that it cuts, or the one that it joins along.
    """
    names = tuple(f"read{index}" for index in range(len(reads)))
    whole = Region(tuple(Span(axis, 0, made.shape[axis]) for axis in axes))
    piece = Piece("slice" if len(reads) == 1 else "join", "made", names, ("made",), whole)
    types = dict(zip(names, reads, strict=True))
    alone = _graph("glue", types, [_glue(piece, types)], piece.writes)
    return SuperOp(graph=alone, ops=alone.ops)


def _graph(name: str, inputs: Mapping[str, TensorType], made: Sequence[CutOp], outputs: tuple[str, ...]) -> ModelGraph:
    """The graph of some ops and the types of what it reads."""
    types = dict(inputs)
    for one in made:
        types |= one.written
    return ModelGraph(
        name=name,
        tensors=tuple(Tensor(name=tensor, shape=kind.shape, dtype=kind.dtype) for tensor, kind in types.items()),
        ops=tuple(one.op for one in made),
        inputs=tuple(inputs),
        outputs=outputs,
    )


def _glue(piece: Piece, types: Mapping[str, TensorType]) -> CutOp:
    """A slice or a join."""
    assert piece.region is not None
    kind = sized(types[piece.reads[0]], piece.region)
    if piece.kind == "slice":
        bounds = TensorType(shape=(len(piece.region.spans),), dtype="int64")  # starts, stops, axes
        op = Op(type="Slice", inputs=piece.reads, outputs=piece.writes, parameters=(bounds,) * 3)
        return CutOp(op, (kind,), region=piece.region)
    op = Op(type="Concat", attributes={"axis": piece.region.axes[0]}, inputs=piece.reads, outputs=piece.writes)
    return CutOp(op, (kind,))


def _part(super_op: SuperOp, piece: Piece) -> list[CutOp]:
    """The ops of one part; those before the last are called after the region that this one makes."""
    region = piece.region
    assert region is not None
    graph, wanted = super_op.graph, demands(super_op, region)
    names = dict(zip(super_op.inputs, piece.reads, strict=True)) | {op.id: region.of(op.id) for op in super_op.ops}
    made = []
    for op in super_op.ops:
        here, kind = wanted[op.id], graph.tensor[op.id].type
        renamed = {"inputs": tuple(names[name] for name in op.inputs), "outputs": (names[op.id],)}
        if here is None:
            made.append(CutOp(op.model_copy(update=renamed), (kind,), op))
            continue
        part = part_of(graph, op, here)
        parameters = tuple(
            kind if read is None else sized(kind, read)
            for kind, read in zip(op.parameters, part.parameters, strict=True)
        )
        cut = Op(type=op.type, attributes=part.attributes, parameters=parameters, **renamed)
        made.append(CutOp(cut, (sized(kind, here),), op, part, here))
    return made


def sized(kind: TensorType, region: Region) -> TensorType:
    """The type of what a region holds."""
    return TensorType(shape=region.shape(kind.shape), dtype=kind.dtype)

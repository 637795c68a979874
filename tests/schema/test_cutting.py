"""Cuts make a graph of ordinary ops that computes what the whole one computes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject
from numpy.typing import NDArray

from hope_schema import Cut, ModelGraph, Op, Tensor, TensorType, merge
from hope_schema.cutgraph import cut_graph, node_of
from hope_schema.cutrules import RULES, part_of
from hope_schema.cutting import CutError, Node, Region, Span, pieces, regions, whole_because
from tests import CAMPAIGN

CHANNELS = 4


@dataclass(frozen=True)
class Toy:
    """An op on matrices of channels by rows: a window of rows, and all channels or only its own; inputs are added."""

    id: str
    reads: tuple[str, ...]
    size: int
    stride: int
    pad: int
    mixes: bool
    rows: Mapping[str, int]

    def needs(self, part: Region) -> dict[str, Region | None]:
        """What a part reads."""
        spans = [] if self.mixes else [span for span in part.spans if span.axis == 1]
        size = self.rows[self.reads[0]]
        for axis, start, stop in part.spans:
            if axis == 2:
                first, last = start * self.stride - self.pad, (stop - 1) * self.stride - self.pad + self.size
                spans.append(Span(axis, max(0, first), min(size, last)))
        return dict.fromkeys(self.reads, Region(tuple(spans)) if spans else None)

    def whole(self, inputs: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        """All of its output."""
        image = np.sum(inputs, axis=0)
        padded = np.pad(image, ((0, 0), (0, 0), (self.pad, self.pad + self.size)))
        made = (image.shape[2] + 2 * self.pad - self.size) // self.stride + 1
        out = np.stack(
            [padded[:, :, k * self.stride : k * self.stride + self.size].sum(axis=2) for k in range(made)], 2
        )
        return out + out.sum(axis=1, keepdims=True) if self.mixes else out

    def part(self, inputs: list[NDArray[np.int64]], region: Region) -> NDArray[np.int64]:
        """A part of its output, from what it said that it needs and from nothing else."""
        made = (self.rows[self.reads[0]] + 2 * self.pad - self.size) // self.stride + 1
        spans = {1: (0, CHANNELS), 2: (0, made)} | {axis: (start, stop) for axis, start, stop in region.spans}
        start, stop = spans[2]
        image = np.sum(inputs, axis=0)
        height = (stop - start - 1) * self.stride + self.size
        before = max(0, self.pad - start * self.stride)
        padded = np.pad(image, ((0, 0), (0, 0), (before, max(0, height - before - image.shape[2]))))
        out = np.stack(
            [padded[:, :, k * self.stride : k * self.stride + self.size].sum(axis=2) for k in range(stop - start)], 2
        )
        return (out + out.sum(axis=1, keepdims=True))[:, slice(*spans[1])] if self.mixes else out


def drawn(data: DataObject) -> tuple[list[Toy], dict[str, tuple[int, ...]], list[Cut]]:
    """Ops one behind the other with branches, and cuts of some of them and of what they read first."""
    rows = {"x": data.draw(st.integers(8, 14))}
    toys: list[Toy] = []
    cuts: list[Cut] = []

    def borders(made: int) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
        """Axes, and where something of so many rows is cut along them."""
        axes = tuple(axis for axis in data.draw(st.sampled_from([(), (1,), (2,), (1, 2)])) if axis == 1 or made > 1)
        sizes = [(CHANNELS, made)[axis - 1] for axis in axes]
        sets = (st.sets(st.integers(1, size - 1), min_size=1, max_size=2) for size in sizes)
        return axes, tuple(tuple(sorted(data.draw(one))) for one in sets)

    axes, at = borders(rows["x"])
    if axes:
        cuts.append(Cut(op="x", axes=axes, at=at))
    for k in range(data.draw(st.integers(1, 5))):
        names = list(rows)
        first = names[-1] if data.draw(st.integers(0, 3)) else data.draw(st.sampled_from(names))
        reads = tuple(
            name for name in names if rows[name] == rows[first] and (name == first or data.draw(st.booleans()))
        )
        size, stride = data.draw(st.sampled_from([(1, 1), (3, 1), (2, 2), (3, 2)]))
        toy = Toy(f"t{k}", reads, size, stride, size // 2 if size == 3 else 0, data.draw(st.booleans()), dict(rows))
        made = (rows[first] + 2 * toy.pad - size) // stride + 1
        rows[toy.id] = made
        toys.append(toy)
        axes, at = borders(made)
        if axes:
            before = {cut.op: cut for cut in cuts}
            same = all(
                name in before and before[name].axes == axes and [*map(len, before[name].at)] == [*map(len, at)]
                for name in toy.reads
            )
            chained = axes[-1] == 2 and not (toy.mixes and 1 in axes) and same and data.draw(st.booleans())
            cuts.append(Cut(op=toy.id, axes=axes, at=at, chained=chained))
        if made < 3:
            break
    return toys, {name: (1, CHANNELS, count) for name, count in rows.items()}, cuts


def held(values: NDArray[np.int64], region: Region) -> NDArray[np.int64]:
    """What a region holds."""
    for axis, start, stop in region.spans:
        values = values.take(range(start, stop), axis)
    return values


def nodes(toys: list[Toy]) -> list[Node]:
    """The ops as the algebra sees them."""
    return [Node(toy.id, toy.reads, (toy.id,), lambda axis: 1, toy.needs) for toy in toys]


def test_a_part_inside_the_one_before_is_not_joined_again():
    """Behind a chain a part may hold all that the next one does: of that one nothing is left to slice."""
    shapes = dict.fromkeys(("x", "t0", "t1", "t2"), (1, CHANNELS, 14))
    rows = dict.fromkeys(shapes, 14)
    toys = [
        Toy("t0", ("x",), 1, 1, 0, False, rows),
        Toy("t1", ("t0",), 1, 1, 0, False, rows),
        Toy("t2", ("t0",), 3, 1, 1, False, rows),
    ]
    cuts = [
        Cut(op="t0", axes=(2,), at=((1, 2),)),
        Cut(op="t1", axes=(1,), at=((1,),)),
        Cut(op="t2", axes=(2,), at=((1, 13),), chained=True),
    ]
    slices = [piece.region for piece in pieces(nodes(toys), cuts, shapes, ["t1", "t2"]) if piece.kind == "slice"]
    assert slices
    assert all(region and all(start < stop for _, start, stop in region.spans) for region in slices)


@given(data=st.data())
@settings(max_examples=300 if CAMPAIGN else 40)
def test_cut_graphs_compute_what_whole_ones_compute(data: DataObject):
    """Every piece reads what stands by then, and what is sliced is read; outputs and whole ops are bit for bit those of
    the whole graph.
    """
    toys, shapes, cuts = drawn(data)
    by_id = {toy.id: toy for toy in toys}
    image = np.random.default_rng(0).integers(-5, 5, shapes["x"])
    whole = {"x": image}
    for toy in toys:
        whole[toy.id] = toy.whole([whole[name] for name in toy.reads])
    outputs = {toys[-1].id} | {toy.id for toy in toys if data.draw(st.booleans())}
    made = pieces(nodes(toys), cuts, shapes, sorted(outputs))
    values: dict[str, NDArray[np.int64]] = {"x": image}
    for piece in made:
        inputs = [values[name] for name in piece.reads]
        assert not set(piece.writes) & set(values)
        if piece.kind == "whole":
            values[piece.writes[0]] = by_id[piece.op].whole(inputs)
            continue
        assert piece.region is not None
        if piece.kind == "part":
            values[piece.writes[0]] = by_id[piece.op].part(inputs, piece.region)
            np.testing.assert_array_equal(values[piece.writes[0]], held(whole[piece.op], piece.region))
        elif piece.kind == "slice":
            assert all(0 <= start < stop <= inputs[0].shape[axis] for axis, start, stop in piece.region.spans)
            values[piece.writes[0]] = held(inputs[0], piece.region)
        else:
            [(axis, start, stop)] = piece.region.spans
            values[piece.writes[0]] = np.concatenate(inputs, axis)
            assert values[piece.writes[0]].shape[axis] == stop - start
    assert {piece.writes[0] for piece in made if piece.kind == "slice"} <= {read for one in made for read in one.reads}
    for name in outputs:
        np.testing.assert_array_equal(values[name], whole[name])


def chain(*chained: bool) -> tuple[list[Node], dict[str, tuple[int, ...]], list[Cut]]:
    """Windows of three rows, one behind the other, halved."""
    rows = dict.fromkeys(("x", *(f"t{k}" for k in range(len(chained)))), 8)
    toys = [Toy(f"t{k}", (list(rows)[k],), 3, 1, 1, True, rows) for k in range(len(chained))]
    cuts = [Cut(op=toy.id, axes=(2,), at=((4,),), chained=one) for toy, one in zip(toys, chained, strict=True)]
    return nodes(toys), dict.fromkeys(rows, (1, CHANNELS, 8)), cuts


def test_a_chain_exchanges_nothing_and_recomputes_its_halo():
    """rows_in = (rows_out - 1) * S + F, clipped, from the last op backwards; nothing is cut or joined between."""
    parts = regions(*((found := chain(False, True, True))[0], found[2], found[1]))
    assert [parts[f"t{k}"] for k in range(3)] == [
        [Region.along(2, 0, 6), Region.along(2, 2, 8)],
        [Region.along(2, 0, 5), Region.along(2, 3, 8)],
        [Region.along(2, 0, 4), Region.along(2, 4, 8)],
    ]
    made = pieces(found[0], found[2], found[1], ["t2"])
    assert [piece.kind for piece in made] == ["slice", "part", "slice", "part", "part", "part", "part", "part", "join"]


def test_neighbours_that_are_not_chained_exchange_halos():
    """Each part reads a join of its own rows and of one of the other's, which is all that has to be moved."""
    found = chain(False, False)
    made = pieces(found[0], found[2], found[1], ["t1"])
    halos = [piece for piece in made if piece.kind == "slice" and piece.op == "t0"]
    assert [(piece.reads, piece.region) for piece in halos] == [
        (("t0[2:4:8]",), Region.along(2, 0, 1)),
        (("t0[2:0:4]",), Region.along(2, 3, 4)),
    ]


@pytest.mark.parametrize(
    ("cuts", "words"),
    [
        ([Cut(op="nowhere", axes=(2,), at=((1,),))], "no op 'nowhere'"),
        ([Cut(op="t0", axes=(2,), at=((8,),))], "a part is empty"),
        ([Cut(op="x", axes=(2,), at=((4,),), chained=True)], "input 'x' is chained"),
        ([Cut(op="t0", axes=(5,), at=((1,),))], "axis 5 of 3"),
        ([Cut(op="t0", axes=(2,), at=((1,),)), Cut(op="t0", axes=(1,), at=((1,),))], "cut twice"),
        (
            [Cut(op="t0", axes=(1,), at=((2,),)), Cut(op="t1", axes=(2,), at=((4,),), chained=True)],
            "not cut the same way",
        ),
        ([Cut(op="t1", axes=(2,), at=((4,),), chained=True)], "not cut the same way"),
    ],
)
def test_what_cannot_be_cut_is_said(cuts: list[Cut], words: str):
    """One error that names the op and the reason."""
    ops, shapes, _ = chain(False, False)
    with pytest.raises(CutError, match=words):
        pieces(ops, cuts, shapes, ["t1"])


def test_borders_lie_between_groups():
    """An op whose channels come in groups is cut between them."""
    node = Node("t", ("x",), ("t",), partial(lambda groups, axis: groups, 2), lambda part: {"x": None})
    with pytest.raises(CutError, match="multiples of 2"):
        pieces([node], [Cut(op="t", axes=(1,), at=((1,),))], {"x": (1, 4, 8), "t": (1, 4, 8)}, ["t"])


def test_what_stays_whole_says_why():
    """A number, several outputs, axes that are too short or forbidden: the reason; None where one axis can be cut."""

    def node(granularity: int, *writes: str) -> Node:
        return Node("t", ("x",), writes, lambda axis: granularity, lambda part: {"x": None})

    shapes = {"t": (1, 4, 1), "u": (1, 4, 1), "n": ()}
    assert whole_because(node(1, "t"), shapes) is None
    assert whole_because(node(1, "t", "u"), shapes) == "it has 2 outputs"
    assert whole_because(node(1, "n"), shapes) == "it makes a single number"
    grouped = whole_because(node(4, "t"), shapes)
    assert grouped == "'t' has 4 along axis 1 in steps of 4: a part would be empty; " + (
        "'t' has 1 along axis 2 in steps of 4: a part would be empty"
    )


VALUES: st.SearchStrategy[Any] = st.sampled_from([0, -1, 2, 3, 2**62, 1.5, "x", "SAME_UPPER", (), (1,), (3, 3), (0, 0)])
VALUES |= st.lists(st.sampled_from([-1, 0, 1, 2, 2**62]), max_size=5).map(tuple) | st.just(("a", "b")) | st.just((1.5,))
ATTRIBUTES = ["auto_pad", "axes", "axis", "block_size", "dilations", "group", "kernel_shape", "mode", "nearest_mode"]
ATTRIBUTES += ["output_padding", "output_shape", "pads", "perm", "storage_order", "strides", "transA", "transB"]
SHAPES = st.lists(st.sampled_from([0, 1, 2, 4, 6, 8]), max_size=5).map(tuple)


@given(
    kind=st.sampled_from([*RULES]),
    attributes=st.dictionaries(st.sampled_from(ATTRIBUTES), VALUES, max_size=3),
    shapes=st.lists(SHAPES, min_size=1, max_size=4),
    parameters=st.lists(SHAPES, max_size=2),
)
@settings(max_examples=200)
def test_ops_that_are_none_stay_whole(
    kind: str, attributes: dict[str, Any], shapes: list[tuple[int, ...]], parameters: list[tuple[int, ...]]
) -> None:
    """Whatever a stranger's graph says, a part is refused, or reads what is there and is an op."""
    names = [f"t{k}" for k in range(len(shapes))]
    *reads, made = names
    constants = tuple(TensorType(shape=shape, dtype="float32") for shape in parameters)
    op = Op(type=kind, attributes=attributes, inputs=tuple(reads), outputs=(made,), parameters=constants)
    tensors = tuple(Tensor(name=name, shape=shape, dtype="float32") for name, shape in zip(names, shapes, strict=True))
    graph = ModelGraph(name="g", tensors=tensors, ops=(op,), inputs=tuple(reads), outputs=(made,))
    for axis, size in enumerate(shapes[-1]):
        with suppress(CutError):
            part = part_of(graph, op, Region.along(axis, 0, (size + 1) // 2))
            for name, region in zip(reads, part.reads, strict=True):
                for at, start, stop in region.spans if region else ():
                    assert 0 <= start < stop <= graph.tensor[name].shape[at]
            assert Op(type=kind, attributes=part.attributes, outputs=(made,))


def rectified(conv: str, *others: str) -> ModelGraph:
    """A pointwise convolution of this name with a rectifier ``y`` behind it, and more that read the input."""
    weights = TensorType(shape=(4, 4, 1, 1), dtype="float32")
    ops = [Op(type="Conv", inputs=("x",), outputs=(name,), parameters=(weights,)) for name in (conv, *others)]
    ops.append(Op(type="Relu", inputs=(conv,), outputs=("y",)))
    tensors = tuple(Tensor(name=name, shape=(1, 4, 8, 8), dtype="float32") for name in ("x", "y", conv, *others))
    return ModelGraph(name="g", tensors=tensors, ops=tuple(ops), inputs=("x",), outputs=("y",))


@pytest.mark.parametrize(
    "graph", [rectified("c" * 512), rectified("c", "c[2:0:4]"), rectified("c", "y[2:0:4]"), rectified("c", "x[2:0:4]")]
)
def test_no_part_takes_the_name_of_another(graph: ModelGraph) -> None:
    """Where a part, or an op within one, would have a name that is too long or a tensor's own, its op stays whole."""
    with pytest.raises(CutError, match="stays whole"):
        cut_graph(graph, [Cut(op="y", axes=(2,), at=((4,),))])


def test_what_nobody_reads_is_computed_beside_parts() -> None:
    """An op whose output leads nowhere is an op of the cut graph too."""
    graph = rectified("c", "dead")
    assert whole_because(node_of(merge(graph)[0]), {}) == "it has 0 outputs"
    made = cut_graph(graph, [Cut(op="y", axes=(2,), at=((4,),))])
    assert "dead" in made.op
    assert len(made.ops) == 1 + 2 * 3 + 1  # of each half a slice and two ops, and the join of both

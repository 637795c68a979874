"""Super-ops partition a graph without closing a loop, and their signatures depend on nothing but the work."""

from __future__ import annotations

import random
import sys

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hope_schema import ModelGraph, Op, SuperOp, Tensor, TensorType, by_recipe, merge, recipe_of
from tests.schema.graphs import chain, graphs, relisted, renamed


def merged_types(graph: ModelGraph) -> list[str]:
    """Return each super-op's types joined by '+'."""
    return ["+".join(op.type for op in group.ops) for group in merge(graph)]


@given(graph=graphs())
def test_super_ops_partition_the_ops(graph: ModelGraph) -> None:
    """Every op stands in exactly one super-op."""
    placed = sorted(op.id for group in merge(graph) for op in group.ops)
    assert placed == sorted(op.id for op in graph.ops)


@given(graph=graphs())
def test_the_quotient_is_acyclic_and_listed_in_order(graph: ModelGraph) -> None:
    """Contracting super-ops leaves a DAG, each super-op is convex, and merge() lists them in topological order."""
    groups = merge(graph)
    home = {op.id: index for index, group in enumerate(groups) for op in group.ops}
    full = nx.DiGraph()
    full.add_nodes_from(home)
    full.add_edges_from((graph.producer[n], op.id) for op in graph.ops for n in op.inputs if n in graph.producer)
    quotient = nx.DiGraph((home[a], home[b]) for a, b in full.edges if home[a] != home[b])
    assert nx.is_directed_acyclic_graph(quotient)
    assert all(a < b for a, b in quotient.edges)
    for index, group in enumerate(groups):
        own = {op.id for op in group.ops}
        below = set().union(*(nx.descendants(full, op) for op in own)) - own
        above = set().union(*(nx.ancestors(full, op) for op in own)) - own
        assert not below & above, f"a path leaves super-op {index} and comes back"


@given(graph=graphs())
def test_boundaries_are_what_crosses(graph: ModelGraph) -> None:
    """Inputs are what is read from outside, outputs what outsiders or the caller read; nothing else crosses."""
    for group in merge(graph):
        own = {op.id for op in group.ops}
        written = [name for op in group.ops for name in op.outputs]
        expected_inputs = {name for op in group.ops for name in op.inputs} - set(written)
        readers = {n: [op.id for op in graph.ops if n in op.inputs] for n in written}
        expected_outputs = [n for n in written if n in graph.outputs or set(readers[n]) - own]
        assert set(group.inputs) == expected_inputs
        assert len(set(group.inputs)) == len(group.inputs)
        assert list(group.outputs) == expected_outputs
        if len(group.ops) > 1:
            assert set(group.outputs) <= set(group.ops[-1].outputs), (
                "only the last op's outputs may leave a merged group"
            )
        assert group.id == group.ops[-1].id


@given(graph=graphs(), seed=st.integers())
def test_merging_does_not_depend_on_the_listing(graph: ModelGraph, seed: int) -> None:
    """A relisted graph gives the same super-ops, in the same order, with the same boundaries and signatures."""

    def facts(groups: tuple[SuperOp, ...]) -> list[object]:
        return [([op.id for op in group.ops], group.inputs, group.outputs, group.signature) for group in groups]

    assert facts(merge(relisted(graph, random.Random(seed)))) == facts(merge(graph))


@given(graph=graphs(), seed=st.integers())
def test_signatures_do_not_depend_on_names(graph: ModelGraph, seed: int) -> None:
    """Whatever the tensors are called, the same work has the same signatures."""
    names = [tensor.name for tensor in graph.tensors]
    shuffled = [f"n{index}" for index in range(len(names))]
    random.Random(seed).shuffle(shuffled)
    other = renamed(graph, dict(zip(names, shuffled, strict=True)))
    assert sorted(group.signature for group in merge(other)) == sorted(group.signature for group in merge(graph))


def test_signatures_tell_different_work_apart() -> None:
    """Shapes, dtypes, attributes, constants, types and wiring each change the signature."""

    def signature(shape=(1, 8, 4, 4), dtype="float32", out=(1, 8, 4, 4), **op: object) -> str:
        tensors = (Tensor(name="a", shape=shape, dtype=dtype), Tensor(name="b", shape=(1, 8, 4, 4), dtype="float32"))
        made = Op.model_validate({"type": "Sub", "inputs": ("a", "b"), "outputs": ("c",)} | op)
        last = Tensor(name="c", shape=out, dtype="float32")
        graph = ModelGraph(name="g", tensors=(*tensors, last), ops=(made,), inputs=("a", "b"), outputs=("c",))
        return merge(graph)[0].signature

    constant = TensorType(shape=(8,), dtype="float32")
    variants = [
        signature(),
        signature(shape=(1, 8, 4, 5)),
        signature(dtype="float16"),
        signature(out=(1, 8, 5, 4)),
        signature(type="Add"),
        signature(attributes={"axis": 1}),
        signature(attributes={"axis": 2}),
        signature(parameters=(constant,)),
        signature(parameters=(constant, constant)),
        signature(inputs=("a", "a")),
    ]
    assert len(set(variants)) == len(variants)


def test_swapped_operands_are_the_same_work_only_when_their_types_are() -> None:
    """Sub(a, b) and Sub(b, a) cost the same when a and b are alike; a group's wiring still counts."""

    def group(*reads: str) -> str:
        first = Op(type="Conv", inputs=("a",), outputs=("t",))
        tensors = tuple(Tensor(name=n, shape=(1, 2), dtype="float32") for n in ("a", "t", "u"))
        graph = ModelGraph(
            name="g",
            tensors=tensors,
            ops=(first, Op(type="Relu", inputs=reads, outputs=("u",))),
            inputs=("a",),
            outputs=("u",),
        )
        return SuperOp(graph=graph, ops=graph.topological_ops).signature

    assert group("t") != group("a")
    assert group("t", "a") != group("a", "t")


@pytest.mark.parametrize(
    ("ops", "expected"),
    [
        (["Conv", "Relu"], ["Conv+Relu"]),
        (["Conv", ("BatchNormalization", 4), "Relu"], ["Conv+BatchNormalization+Relu"]),
        (["Conv", ("BatchNormalization", 4), ("Mul", 1), ("Add", 1), "Relu"], ["Conv+BatchNormalization+Mul+Add+Relu"]),
        (["Pad", "Conv", "Relu"], ["Pad+Conv+Relu"]),
        (["Pad", "MaxPool"], ["Pad+MaxPool"]),
        (["Pad", "Relu"], ["Pad", "Relu"]),
        (["Gemm", "Relu", "Dropout"], ["Gemm+Relu+Dropout"]),
        (["MatMul", ("Add", 1), "Tanh"], ["MatMul+Add+Tanh"]),
        (["Concat", ("BatchNormalization", 4), "Relu"], ["Concat+BatchNormalization+Relu"]),
        (["MaxPool", "Relu"], ["MaxPool", "Relu"]),
        (["Relu", "Relu"], ["Relu", "Relu"]),
        (["Relu", "Conv"], ["Relu", "Conv"]),
        (["GlobalAveragePool", "Flatten", "Gemm"], ["GlobalAveragePool+Flatten", "Gemm"]),
        (["Conv", "Conv"], ["Conv", "Conv"]),
        (["Conv", "LRN"], ["Conv", "LRN"]),
        (["Softmax", "Reshape"], ["Softmax+Reshape"]),
        (["DequantizeLinear", "Conv", "QuantizeLinear"], ["DequantizeLinear+Conv+QuantizeLinear"]),
        (["Relu", "QuantizeLinear"], ["Relu+QuantizeLinear"]),
        (["DequantizeLinear", "QuantizeLinear"], ["DequantizeLinear", "QuantizeLinear"]),
    ],
)
def test_what_runtimes_fuse_is_merged(ops: list[str | tuple[str, int]], expected: list[str]) -> None:
    """Known fusions become one super-op, everything else stays apart."""
    assert merged_types(chain(*ops)) == expected


def test_a_tensor_that_others_need_ends_its_super_op() -> None:
    """A graph output, a second reader, and a second operand each keep a rectifier out."""
    assert merged_types(chain("Conv", "Relu", outputs=("t0",))) == ["Conv", "Relu"]
    fork = chain("Conv", "Relu", Op(type="Tanh", inputs=("t0",), outputs=("t2",)), outputs=("t1",))
    assert sorted(merged_types(fork)) == ["Conv", "Relu", "Tanh"]
    residual = chain("Conv", Op(type="Add", inputs=("t0", "x"), outputs=("t1",)), "Relu")
    assert merged_types(residual) == ["Conv", "Add+Relu"]
    second = chain(Op(type="Split", inputs=("x",), outputs=("t0", "s")), "Reshape", outputs=("s",))
    assert merged_types(second) == ["Split", "Reshape"]


def test_signatures_are_readable_and_bounded() -> None:
    """A signature starts with the types and fits the contract's field however many ops it covers."""
    graph = chain("Conv", *["Relu"] * 60)
    (group,) = merge(graph)
    assert group.signature.startswith("Conv+Relu+Relu")
    assert len(group.signature) <= 160
    foreign = chain(Op(type="com.acme:Magic", inputs=("x",), outputs=("t0",)))
    assert merge(foreign)[0].signature.startswith("Magic:")


@pytest.mark.parametrize(
    "types", [("Conv", "Relu"), ("Conv", "Identity"), ("Pad", "Pad"), ("DequantizeLinear", "QuantizeLinear")]
)
def test_merging_takes_as_many_steps_as_there_are_ops(types: tuple[str, str]) -> None:
    """However many ops become one, each costs the same: counted in lines, twice the chain takes twice as many."""

    def lines(length: int) -> int:
        graph = chain(*(types[:1] + types[1:] * (length - 1)))
        _ = graph.topological_ops, graph.consumers, graph.producer
        count = 0

        def trace(_frame: object, event: str, _argument: object) -> object:
            nonlocal count
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            merge(graph)
        finally:
            sys.settrace(before)
        return count

    assert lines(400) < 2.5 * lines(200)


def test_a_graph_is_merged_once_and_a_copy_anew() -> None:
    """Super-ops are those of the very graph that is asked about."""
    graph = chain("Conv", "Relu", "Sigmoid")
    assert merge(graph) is merge(graph)
    again = graph.model_copy(update={"name": "again"})
    assert all(op.graph is again for op in merge(again))


@pytest.mark.parametrize("recipe", [None, 0, 7, 42, 999])
def test_a_signature_says_which_recipe_it_is_of(recipe: int | None) -> None:
    """What is written is read."""
    assert recipe_of(by_recipe("Conv+Relu:0f3a", recipe)) == ("Conv+Relu:0f3a", recipe)


@pytest.mark.parametrize("end", ["/1000", "/007", "/-1", "/\u0662", "/", "/2/", "/²"])
def test_what_no_step_may_have_is_no_recipe(end: str) -> None:
    """An upload may hold any signature: no plan fails of a number beyond what plans can say."""
    assert recipe_of(f"Conv:0f3a{end}") == (f"Conv:0f3a{end}", None)

"""Kernel times of a whole network belong to its super-ops: all of it, to those that the kernels compute."""

from __future__ import annotations

import random
import time
from types import SimpleNamespace

import pytest

from agent_sdk.model import read_model
from agent_sdk.model.work import work
from agent_sdk.runtimes.attribution import share_out
from agent_sdk.runtimes.base import whole_network
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.openvino.processor import OpenVinoProcessor, covered_ops, ops_named
from agent_sdk.runtimes.ort.graph import FrozenGraphs
from agent_sdk.runtimes.ort.profile import attribute
from hope_schema import ModelGraph, Op, merge
from tests.agent.runtimes.networks import random_model


@pytest.mark.parametrize("seed", range(8))
def test_kernels_are_shared_out_whole(seed: int) -> None:
    """Whatever kernels cover, each one's latest runs go to the super-ops it covers, and all of them to somebody."""
    draw = random.Random(seed)
    model = random_model(seed, steps=20)
    home = {op.id: super_op.id for super_op in merge(model.graph) for op in super_op.ops}
    covered = {f"k{k}": draw.sample(sorted(home), draw.randint(1, 4)) for k in range(12)}
    kernels = {kernel: [1e9] * draw.randint(0, 2) + [draw.uniform(1, 9)] * 3 for kernel in covered}
    kernels["k0"] = kernels["k0"][-3:]
    found = share_out(model, kernels, covered)
    assert sum(timing.us for timing in found.values()) == pytest.approx(sum(times[-1] for times in kernels.values()))
    assert found.keys() >= {home[op] for ops in covered.values() for op in ops}
    for kernel, ops in covered.items():
        owners = {home[op] for op in ops}
        mine = sum(timing.us for name, timing in found.items() if name in owners)
        assert mine >= kernels[kernel][-1] - 1e-6


def test_shares_are_by_work() -> None:
    """A kernel over a convolution and an activation of another super-op is mostly the convolution's."""
    model = random_model(26)
    home = {op.id: super_op.id for super_op in merge(model.graph) for op in super_op.ops}
    heavy = next(op for op in model.graph.ops if op.type == "Conv")
    light = next(op for op in model.graph.ops if op.type in ("Relu", "Add") and home[op.id] != home[heavy.id])
    found = share_out(model, {"fused": [10.0]}, {"fused": [heavy.id, light.id]})
    graph = model.graph
    assert found[home[heavy.id]].us / found[home[light.id]].us == pytest.approx(work(graph, heavy) / work(graph, light))


def test_a_kernel_of_nobody_counts_for_nobody() -> None:
    """A change of layout belongs to no op, and its time to none; without kernels there is nothing to share."""
    model = random_model(3, steps=4)
    op = model.graph.ops[0].id
    found = share_out(model, {"a": [2.0], "reorder": [50.0]}, {"a": [op]})
    assert sum(timing.us for timing in found.values()) == 2.0
    assert share_out(model, {}, {}) == {}


def test_frozen_nodes_are_shared_by_work(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernel times invented per node come back, all of them, as times of the super-ops that they cover."""
    model = random_model(25, steps=20)
    frozen = FrozenGraphs(tmp_path_factory.mktemp("ort")).get(model)
    assert frozen is not None
    kernels = {node.name: [float(10 + index)] * 3 for index, node in enumerate(frozen.kernels)}
    found = attribute(model, frozen, kernels)
    assert sum(timing.us for timing in found.values()) == pytest.approx(sum(times[0] for times in kernels.values()))
    assert all(timing.us > 0 for timing in found.values())
    assert attribute(model, frozen, {}) == {}


@pytest.mark.parametrize("name", ["shufflenet", "nasnet_mobile"])
def test_a_whole_network_shows_all_of_its_convolutions(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Normalisations that a runtime folds into a convolution, under names of its own, do not hide it: nothing that
    computes is left to be measured alone, which would count it twice.
    """
    model = read_model(name)
    heavy = {s.id for s in merge(model.graph) if any(op.type in ("Conv", "Gemm", "Relu", "Add", "Sum") for op in s.ops)}
    firsts = {p.spec.runtime: p for p in discover(cache=tmp_path_factory.mktemp("ort")) if p.spec.threads == 1}
    for processor in firsts.values():
        found = processor.time_ops(model, time.monotonic() + 1)
        assert heavy <= found.keys(), processor.id


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ("r1", ["r1"]),
        ("r1/WithoutBiases,r1,r2", ["r1", "r2"]),
        ("Multiply_7935,r1,r2", ["r1", "r2"]),
        ("conv,1", ["conv,1"]),
        ("r2,conv,1,r1", ["r2", "conv,1", "r1"]),
        ("step/input/from", ["step/input/from"]),
        ("step/input/from_ab_ba_r1", ["step/input"]),
        ("Reorder_1", []),
        ("", []),
    ],
)
def test_openvino_names_belong_to_ops(names: str, found: list[str]) -> None:
    """A kernel's list of names gives the ops among them, whatever the runtime appends and ids hold."""
    ids = ("r1", "r2", "conv,1", "step/input", "step/input/from")
    graph = SimpleNamespace(op=dict.fromkeys(ids))
    assert ops_named(names, graph) == found


def test_a_change_of_layout_belongs_to_nobody(tmp_path_factory: pytest.TempPathFactory) -> None:
    """OpenVINO names a reorder after the op it stands before, or within whose name it begins: it is neither's."""
    model = read_model("squeezenet")
    processor = next(p for p in discover("ov", cache=tmp_path_factory.mktemp("ov")) if p.spec.threads == 1)
    assert isinstance(processor, OpenVinoProcessor)
    compiled = processor.compiled(processor.read(whole_network(model)))
    layers = {
        str(op.get_friendly_name()): op.get_rt_info()["layerType"].value
        for op in compiled.get_runtime_model().get_ops()
    }
    covered = covered_ops(compiled, layers, model.graph)
    assert any(kind == "Reorder" for kind in layers.values())
    assert all(not covered[name] for name, kind in layers.items() if kind == "Reorder")
    assert any(len(ops) > 1 for ops in covered.values())


def test_work_grows_with_the_convolution() -> None:
    """A convolution counts its multiply-adds: more than any element-wise op on its output."""
    graph = random_model(26).graph
    convolutions = [op for op in graph.ops if op.type == "Conv" and "group" not in op.attributes]
    simple = [op for op in graph.ops if op.type in ("Relu", "Add")]
    assert convolutions
    assert simple
    for op in convolutions:
        window = op.parameters[0].elements // op.parameters[0].shape[0]
        assert work(graph, op) == elements(graph, op) * (window + 8) + 1
    for op in simple:
        assert work(graph, op) == elements(graph, op) * 8 + 1


def elements(graph: ModelGraph, op: Op) -> int:
    """How many elements an op makes."""
    return sum(graph.tensor[name].elements for name in op.outputs)

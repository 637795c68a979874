"""The frozen graph means what we think, and pieces cut from it compute what the network computes."""

from __future__ import annotations

import errno
import os
import random
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, helper, numpy_helper

import hope_zoo as zoo
from agent_sdk.errors import OutOfMemory
from agent_sdk.machine.soc import read_soc
from agent_sdk.model import Model, read_model
from agent_sdk.model.source import expected_bytes
from agent_sdk.model.weights import GRAPH_FILE, PREFIX, WEIGHTS_FILE, LightModels, WeightsFile
from agent_sdk.runtimes.base import segment_of, whole_network
from agent_sdk.runtimes.ort import graph as ort_graph
from agent_sdk.runtimes.ort.cut import block_size, cut, physical
from agent_sdk.runtimes.ort.graph import FrozenGraph, FrozenGraphs
from agent_sdk.runtimes.ort.options import LEVELS, opened
from agent_sdk.runtimes.ort.processor import OrtProcessor
from hope_schema import SuperOp, merge
from tests import CAMPAIGN
from tests.agent.runtimes.networks import (
    Network,
    borders,
    cut_points,
    error,
    evaluate,
    image,
    random_model,
    residual_network,
    run_segments,
    segments_of,
)

SEEDS = range(400 if CAMPAIGN else 25)
SHIPPED = ("squeezenet", "shufflenet")
MISTAKEN = 1e-3
"""A tensor taken for another one is off by far more; deep networks differ by up to a third of it in rounding alone."""


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> FrozenGraphs:
    """Frozen graphs kept for this module."""
    return FrozenGraphs(tmp_path_factory.mktemp("ort"))


def processor(graphs: FrozenGraphs) -> OrtProcessor:
    """ONNX Runtime on the first usable core."""
    soc = read_soc()
    return OrtProcessor(soc, frozenset(soc.cores[:1]), frozen=graphs)


def in_steps(frozen: FrozenGraph) -> list[onnx.NodeProto]:
    """The kernels of a frozen graph, those that can be taken apart in their steps."""
    nodes: list[onnx.NodeProto] = []
    for kernel in frozen.kernels:
        fusion = frozen.fusions.get(kernel.output[0])
        nodes += [kernel] if fusion is None else [frozen.nodes[place] for place in fusion.steps]
    return nodes


def assert_meanings_hold(model: Model, frozen: FrozenGraph, ort: OrtProcessor, *, apart: bool = True) -> int:
    """Run the whole frozen graph with every identified tensor as an output; compare each with the source's."""
    inputs = image(model)
    proto = onnx.ModelProto()
    proto.CopyFrom(frozen.proto)
    if apart:
        del proto.graph.node[:]
        proto.graph.node.extend(in_steps(frozen))
    made = {name for node in proto.graph.node for name in node.output}
    watched = {
        name: meaning
        for name, meaning in frozen.meaning.items()
        if name in made and len(frozen.source.tensor[meaning[0]].shape) > 0
    }
    del proto.graph.output[:]
    for name, (klass, blocked) in watched.items():
        kind = physical(frozen.source.tensor[klass].type, blocked=blocked)
        proto.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, kind.shape))
    own = ort.options(LEVELS[-1])
    own.add_session_config_entry("session.model_external_initializers_file_folder_path", str(frozen.directory))
    session = opened(proto.SerializeToString(), own)
    values = dict(zip(watched, session.run(list(watched), inputs), strict=True))
    wanted = sorted({klass for klass, _ in watched.values()})
    right = evaluate(model, inputs, wanted)
    for name, (klass, blocked) in watched.items():
        expected = right[klass]
        found = values[name]
        if blocked:
            found = unblocked(found, expected.shape)
        assert error(found, expected) < MISTAKEN, f"'{name}' is not '{klass}' (blocked: {blocked})"
    return len(watched)


def unblocked(blocked: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The plain tensor in a blocked one, worked out by NumPy: (N, C/B, H, W, B) → (N, C, H, W)."""
    batch, channels, height, width = shape
    padded = blocked.shape[1]
    block = block_size()
    plain = blocked.reshape(batch, padded // block, height, width, block).transpose(0, 1, 4, 2, 3)
    return plain.reshape(batch, padded, height, width)[:, :channels]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("apart", [False, True])
def test_every_identified_tensor_is_the_source_tensor(seed: int, apart: bool, graphs: FrozenGraphs) -> None:
    """Whatever the runtime fused, merged or renamed: a frozen tensor holds the source tensor it is taken for."""
    model = random_model(seed)
    frozen = graphs.get(model)
    assert frozen is not None
    assert assert_meanings_hold(model, frozen, processor(graphs), apart=apart) > 0


@pytest.mark.parametrize("name", SHIPPED)
def test_real_networks_are_identified(name: str, graphs: FrozenGraphs) -> None:
    """In real networks almost every border between super-ops exists in the frozen graph, and is what it should be."""
    model = read_model(zoo.build(name))
    frozen = graphs.get(model)
    assert frozen is not None
    assert_meanings_hold(model, frozen, processor(graphs))
    crossing = [name for super_op in merge(model.graph) for name in super_op.outputs]
    held = {klass for klass, _ in frozen.forms}
    lost = [name for name in crossing if frozen.class_of[name] not in held]
    assert len(lost) <= 0.25 * len(crossing), lost


@pytest.mark.parametrize("seed", SEEDS)
def test_any_cut_computes_the_network(seed: int, graphs: FrozenGraphs) -> None:
    """Segments at random borders, each border native or plain at random, chain to the unoptimised network's answer."""
    rng = random.Random(seed)
    model = random_model(seed)
    groups = cut_points(model, rng, largest=6)
    crossing = sorted(borders(segments_of(model, groups, set())))
    plain = {name for name in crossing if rng.random() < 0.3}
    inputs = image(model)
    outputs = run_segments([processor(graphs)], segments_of(model, groups, plain), inputs)
    for name, expected in evaluate(model, inputs).items():
        assert error(outputs[name], expected) < 1e-4, name


@pytest.mark.parametrize(("channels", "groups"), [(16, 1), (24, 1), (6, 1), (12, 2)])
@pytest.mark.parametrize(
    ("activation", "attributes"),
    [(None, {}), ("Relu", {}), ("Tanh", {}), ("LeakyRelu", {"alpha": 0.3}), ("HardSigmoid", {})],
)
def test_a_border_inside_a_fused_kernel_takes_it_apart(
    activation: str | None, attributes: dict[str, float], channels: int, groups: int, graphs: FrozenGraphs
) -> None:
    """What is cut off a convolution is not compiled from the source, nor is the rest, and the answer is the same."""
    model = residual_network(activation, channels, groups, **attributes)
    frozen = graphs.get(model)
    assert frozen is not None
    segments = segments_of(model, [[super_op] for super_op in merge(model.graph)], set())
    pieces = [cut(frozen, segment, graphs.lights) for segment in segments]
    assert len(frozen.fusions) > 0
    # Where the channels are no multiple of four, a plain tensor cannot become a blocked one, and the sum is left plain.
    assert any(piece.optimise for piece in pieces) == (channels % 4 > 0)
    assert frozen.native_blocked("second") == (channels % 4 == 0 and groups == 1)
    inputs = image(model)
    assert_meanings_hold(model, frozen, processor(graphs))
    found = run_segments([processor(graphs)], segments, inputs)
    for name, expected in evaluate(model, inputs).items():
        assert error(found[name], expected) < 1e-5, name


def test_a_clip_that_took_in_a_relu_is_not_taken_apart(graphs: FrozenGraphs) -> None:
    """ONNX Runtime drops the Relu before a Clip: cut between all three, nothing is taken for what it is not."""
    weights = np.random.default_rng(1).standard_normal((16, 16, 3, 3)).astype(np.float32)
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 16, 8, 8]) for name in ("x", "y")]
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 4),
        onnx.helper.make_node("Relu", ["c"], ["r"]),
        onnx.helper.make_node("Clip", ["r"], ["k"], max=6.0),
        onnx.helper.make_node("Conv", ["k", "w"], ["y"], pads=[1] * 4),
    ]
    graph = onnx.helper.make_graph(nodes, "clip", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    model = read_model(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 10)], ir_version=8))
    frozen = graphs.get(model)
    assert frozen is not None
    assert_meanings_hold(model, frozen, processor(graphs))
    inputs = image(model)
    whole = SuperOp(graph=model.graph, ops=model.graph.topological_ops)
    for groups in ([["c"], ["r"], ["k"], ["y"]], [["c", "r"], ["k"], ["y"]], [["c"], ["r", "k"], ["y"]]):
        parts = [[replace(whole, ops=tuple(model.graph.op[name] for name in group))] for group in groups]
        found = run_segments([processor(graphs)], segments_of(model, parts, set()), inputs)
        assert error(found["y"], evaluate(model, inputs)["y"]) < 1e-5


def test_slices_that_one_kernel_makes_are_not_made_where_they_are_given(
    graphs: FrozenGraphs, caplog: pytest.LogCaptureFixture
) -> None:
    """ONNX Runtime makes slices of one tensor by one Split: a segment that is given one and makes another compiles."""
    steps = range(3)
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3, 8]) for name in ("x", "y")]
    places = [numpy_helper.from_array(np.array([step]), f"at{step}") for step in range(4)]
    nodes = [onnx.helper.make_node("Slice", ["x", f"at{step}", f"at{step + 1}", "at0"], [f"x{step}"]) for step in steps]
    nodes += [onnx.helper.make_node("Exp", [f"x{step}"], [f"e{step}"]) for step in steps]
    nodes += [onnx.helper.make_node("Sum", [f"e{step}" for step in steps] + ["x"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "slices", ends[:1], ends[1:], places)
    model = read_model(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8))
    frozen = graphs.get(model)
    assert frozen is not None
    assert "Split" in {node.op_type for node in frozen.kernels}
    whole = SuperOp(graph=model.graph, ops=model.graph.topological_ops)
    parts = [
        [replace(whole, ops=tuple(model.graph.op[name] for name in group))]
        for group in (["x0"], ["e0", "x1"], ["e1", "x2", "e2", "y"])
    ]
    inputs = image(model)
    found = run_segments([processor(graphs)], segments_of(model, parts, set()), inputs)
    assert error(found["y"], evaluate(model, inputs)["y"]) < 1e-5
    assert not caplog.records


@pytest.mark.parametrize("seed", [239, 324])
def test_networks_that_break_the_optimiser_still_run(seed: int, graphs: FrozenGraphs) -> None:
    """ONNX Runtime 1.31 refuses these at its highest level, whole or in pieces; a lower one must do."""
    test_any_cut_computes_the_network(seed, graphs)
    test_every_identified_tensor_is_the_source_tensor(seed, True, graphs)


def test_most_borders_travel_blocked(graphs: FrozenGraphs) -> None:
    """Between segments of one family a convolution's output keeps its channel blocks: that is what cuts are for."""
    model = read_model(zoo.build("squeezenet"))
    frozen = graphs.get(model)
    assert frozen is not None
    segments = segments_of(model, [[super_op] for super_op in merge(model.graph)], set())
    pieces = [cut(frozen, segment, graphs.lights) for segment in segments]
    reorders = [node for piece in pieces for node in piece.proto.graph.node if node.op_type == "ReorderInput"]
    assert not any(piece.optimise for piece in pieces)
    assert not reorders


def test_padded_channels_have_room(graphs: FrozenGraphs) -> None:
    """A blocked tensor's buffer has whole blocks of channels, whatever the graph declares."""
    model = random_model(3, steps=30)
    ort = processor(graphs)
    frozen = graphs.get(model)
    assert frozen is not None
    for segment in segments_of(model, [[super_op] for super_op in merge(model.graph)], set()):
        executable = ort.compile(segment)
        for name, kind in executable.output_types.items():
            native = name not in segment.exports and frozen.native_blocked(name)
            assert kind.shape[1] % 8 == 0 if native else kind == model.graph.tensor[name].type


def test_damaged_files_are_made_anew(tmp_path: Path) -> None:
    """A frozen graph that was cut off on disk is noticed and replaced; the answer stays right."""
    model = random_model(1)
    first = FrozenGraphs(tmp_path).get(model)
    assert first is not None
    for name, keep in ((GRAPH_FILE, 100), (WEIGHTS_FILE, 10)):
        path = first.directory / name
        path.write_bytes(path.read_bytes()[:keep])
        graphs = FrozenGraphs(tmp_path)
        inputs = image(model)
        outputs = run_segments([processor(graphs)], segments_of(model, [list(merge(model.graph))], set()), inputs)
        for output, expected in evaluate(model, inputs).items():
            assert error(outputs[output], expected) < 1e-4


def test_weights_decide_the_frozen_graph(tmp_path: Path) -> None:
    """Equal graphs with other weights are frozen apart, although they share a model hash and plans."""
    network = Network(5, 10)
    first = read_model(network.proto)
    tensor = network.proto.graph.initializer[0]
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * 2, tensor.name))
    second = read_model(network.proto)
    graphs = FrozenGraphs(tmp_path)
    one, two = graphs.get(first), graphs.get(second)
    assert first.graph.model_hash == second.graph.model_hash
    assert one is not None
    assert two is not None
    assert one.directory != two.directory


def test_frozen_graphs_survive_the_process(tmp_path: Path) -> None:
    """A second reader of the same folder finds the same tensor names: plans stay valid across restarts."""
    model = random_model(2)
    one, two = FrozenGraphs(tmp_path).get(model), FrozenGraphs(tmp_path).get(model)
    assert one is not None
    assert two is not None
    assert [list(node.output) for node in one.nodes] == [list(node.output) for node in two.nodes]


def test_a_shortage_is_told_and_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Want of disk or memory is no refusal: it is OutOfMemory while it lasts, and then the graph is frozen."""
    model = random_model(2)
    in_the_way = tmp_path / "weights"
    in_the_way.touch()
    graphs = FrozenGraphs(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))  # where weights go that the cache does not take
        with pytest.raises(OutOfMemory, match="weights"):
            graphs.get(model)
    in_the_way.unlink()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    in_the_runtime = RuntimeError("Failed to write external initializers to file")
    for shortage in (full, in_the_runtime, MemoryError()):
        session = Mock(side_effect=shortage)
        monkeypatch.setattr(ort_graph.ort, "InferenceSession", session)
        with pytest.raises(OutOfMemory, match="optimised graph of"):
            graphs.get(model)
        session.assert_called_once()  # not again with less optimisation, which would be kept
    monkeypatch.undo()
    assert graphs.get(model) is not None


def test_a_whole_network_is_not_frozen(tmp_path: Path) -> None:
    """What nothing is cut from goes to the runtime as it is; the first cut freezes it."""
    ort = processor(FrozenGraphs(tmp_path))
    model = random_model(3)
    ort.compile(whole_network(model)).close()
    assert not list(tmp_path.glob(f"*/{GRAPH_FILE}"))
    ort.compile(segment_of(merge(model.graph)[0], model)).close()
    assert len(list(tmp_path.glob(f"*/{GRAPH_FILE}"))) == 1


@pytest.mark.parametrize("count", [3, 4099])
@pytest.mark.parametrize("kind", ["FLOAT", "FLOAT16", "BFLOAT16", "INT8", "INT64", "BOOL", "INT4", "UINT4"])
@pytest.mark.parametrize("raw", [False, True])
def test_weights_are_in_the_file_as_they_were(kind: str, count: int, raw: bool, tmp_path: Path) -> None:
    """Of any type, few or many, and however the network's file writes them: 4 bits share bytes."""
    number = getattr(TensorProto, kind)
    tensor = helper.make_tensor("w", number, [count], [index % 2 for index in range(count)])
    given = numpy_helper.from_array(numpy_helper.to_array(tensor), "w") if raw else tensor
    with WeightsFile(tmp_path / WEIGHTS_FILE) as weights:
        kept = weights.keep(given)
    if external_data_helper.uses_external_data(kept):
        external_data_helper.load_external_data_for_tensor(kept, str(tmp_path))
    assert len(kept.raw_data) == expected_bytes(tensor)
    np.testing.assert_array_equal(numpy_helper.to_array(kept), numpy_helper.to_array(tensor))


def test_only_folders_that_nobody_uses_are_removed(tmp_path: Path) -> None:
    """A second process clears away what a killed one left, and nothing of one that has been running for days."""
    model, other = random_model(1, steps=3), random_model(2, steps=3)
    running = LightModels(tmp_path)
    _, used = running.get(model)
    left = tmp_path / f"{PREFIX}left"
    left.mkdir()
    for folder in (used, left):
        os.utime(folder, (ago := time.time() - 600, ago))
    second = LightModels(tmp_path)
    _, own = second.get(other)
    assert set(tmp_path.iterdir()) == {used, own}
    assert (used / GRAPH_FILE).exists()

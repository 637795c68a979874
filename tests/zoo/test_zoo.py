"""The zoo's networks are the published ones, alive, and the same bytes for the same seed."""

from __future__ import annotations

import json
import multiprocessing
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import openvino
import pytest

import hope_zoo as zoo
from agent_sdk.errors import ModelError, UnknownNameError
from agent_sdk.journey.verify import relative_error
from agent_sdk.model import Model, pre_softmax_outputs, read_model
from hope_schema import merge
from hope_zoo import shipped
from tests import CAMPAIGN

PHONES = Path(__file__).parents[3] / "shared" / "phones"
SMALL = ("inception_v1", "lstm", "nasnet_mobile", "shufflenet", "squeezenet")
"""Networks of every family that are quick to build and to run with every tensor kept."""

MILLIONS = {
    "inception_v3": 23.8,
    "inception_v4": 42.7,
    "nasnet_mobile": 5.3,
    "nasnet_large": 88.9,
    "pnasnet_mobile": 5.1,
    "pnasnet_large": 86.1,
    "resnet50": 25.6,
    "vgg19": 143.7,
    "vgg16": 138.4,
    "resnet18": 11.7,
    "darknet53": 41.6,
    "hrnet_w18": 21.3,
    "squeezenet": 1.24,
    "lstm": 8.39,
}
"""Parameters as the papers and TF-Slim print them (the LSTM's by hand: 4 gates of 2 x 1024 x 1024, and biases)."""


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    """Build into a folder of this test, not into the user's cache."""
    patch = pytest.MonkeyPatch()
    patch.setenv("HOPE_ZOO", str(tmp_path_factory.mktemp("zoo")))
    yield
    patch.undo()


def feeds(model: Model, seed: int) -> dict[str, np.ndarray]:
    """Return random normal inputs."""
    rng = np.random.default_rng(seed)
    return {n: rng.standard_normal(model.graph.tensor[n].shape).astype(np.float32) for n in model.graph.inputs}


def opened(proto: onnx.ModelProto, outputs: Iterable[str]) -> onnx.ModelProto:
    """Return the network with these tensors, inner ones too, as its outputs."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    del model.graph.output[:]
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs
    )
    return model


def run(proto: onnx.ModelProto, outputs: list[str], inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run with ONNX Runtime and return the named tensors, inner ones too."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        opened(proto, outputs).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return dict(zip(outputs, session.run(outputs, inputs), strict=True))


def test_the_networks_of_the_paper_and_of_onnx_are_there() -> None:
    """Every network that is promised by name exists, and nothing else."""
    of_the_paper = {
        "inception_v3",
        "inception_v4",
        "pnasnet_mobile",
        "pnasnet_large",
        "nasnet_large",
        "squeezenet",
        "lstm",
    }
    of_onnx = {"inception_v1", "inception_v2", "resnet50", "densenet121", "shufflenet", "vgg19", "alexnet", "zfnet512"}
    of_tiers = {"vgg16", "resnet18", "darknet53"}
    assert set(zoo.names()) == of_the_paper | of_onnx | of_tiers | {"nasnet_mobile", "hrnet_w18"}
    with pytest.raises(UnknownNameError, match="nasnet_large"):
        zoo.build("nasnet_larg")


@pytest.mark.parametrize("name", zoo.names())
def test_sizes_are_the_published_ones(name: str) -> None:
    """Parameter counts agree with the literature within 1.5 %, and op counts are of the paper's order."""
    details = zoo.describe(name)
    if name in MILLIONS:
        assert details.parameters / 1e6 == pytest.approx(MILLIONS[name], rel=0.015)
    assert 20 <= details.ops <= 1050
    assert details.ops >= 1000 or name != "nasnet_large"
    assert details.megabytes == pytest.approx(4e-6 * details.parameters)
    assert all(shape[0] == (10 if tensor == "x" else 1) for tensor, shape in details.inputs.items())


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("inception_v3", "redmi--inception-v3"),
        ("inception_v4", "redmi--inception-v4"),
        ("nasnet_large", "redmi--nasnet-large"),
        ("pnasnet_mobile", "redmi--pnasnet-mobile"),
        ("pnasnet_large", "redmi--pnasnet-large"),
    ],
)
def test_topologies_match_the_published_profiles(name: str, profile: str) -> None:
    """As many convolutions, sums, joins and pools as in the phone profile, with the same output shapes."""
    path = PHONES / f"{profile}.json"
    if not path.is_file():
        pytest.skip("the published phone profiles are not beside this repository")
    published = json.loads(path.read_text())
    # The last words of TensorFlow's names tell the type; '___tr4' marks a layout change that only MNN has.
    kinds = {
        "Conv2D": "Conv", "depthwise": "Conv", "separable_conv2d": "Conv", "add": "Add", "concat": "Concat",
        "MaxPool": "MaxPool", "AvgPool": "AveragePool", "AvgPool2D": "AveragePool", "AvgPool_1": "AveragePool",
        "AvgPool2D_1": "AveragePool",
    }  # fmt: skip
    expected: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for op in published["ops"]:
        kind = kinds.get(op["name"].rsplit("/", 1)[-1])
        if kind and "___tr4" not in op["name"]:
            expected[kind, tuple(published["tensors"][op["outputs"][0]])] += 1
    # As built: the profiles hold twins too, which reading merges.
    built = onnx.shape_inference.infer_shapes(_unweighted(name)).graph
    shapes = {
        info.name: tuple(size.dim_value for size in info.type.tensor_type.shape.dim)
        for info in (*built.value_info, *built.output)
    }
    found = Counter((node.op_type, shapes[node.output[0]]) for node in built.node if node.op_type in kinds.values())
    if name == "inception_v4":
        # Its last mean is a global one here; the profile calls it AvgPool.
        expected["AveragePool", (1, 1536, 1, 1)] -= 1
    assert +expected == found


def _unweighted(name: str) -> onnx.ModelProto:
    """Return the network with its weights among its inputs, which is all that its shapes need."""
    from hope_zoo.catalogue import _entry

    topology = _entry(name)[1]()
    inputs, outputs = (
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
        for shapes in ({**topology.inputs, **topology.parameters}, topology.outputs)
    )
    graph = onnx.helper.make_graph(topology.nodes, name, inputs, outputs, topology.constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", topology.opset)], ir_version=8)


@pytest.mark.parametrize("name", zoo.names() if CAMPAIGN else SMALL)
def test_activations_stay_alive_and_outputs_follow_the_input(name: str) -> None:
    """No tensor dies or blows up, and two random inputs give clearly different outputs before the softmax."""
    model = read_model(zoo.build(name), name=name)
    graph = model.graph
    inner = [
        t.name for t in graph.tensors if t.name in graph.producer and graph.op[graph.producer[t.name]].type != "Pad"
    ]
    tensors = run(model.proto, inner, feeds(model, 1))
    final = set(pre_softmax_outputs(graph))
    for tensor, values in tensors.items():
        kind = graph.op[graph.producer[tensor]].type
        assert np.isfinite(values).all(), tensor
        assert np.abs(values).max() < 1e4, f"{tensor} blows up"
        if kind != "Softmax":
            assert values.std() > 1e-3, f"{tensor} ({kind}) dies"
    other = run(model.proto, sorted(final), feeds(model, 2))
    for tensor in final:
        change = np.abs(other[tensor] - tensors[tensor]).max() / np.abs(tensors[tensor]).max()
        assert change > 0.02, f"{tensor} hardly depends on the input ({change:.2%})"


@pytest.mark.parametrize("name", zoo.names() if CAMPAIGN else SMALL)
def test_rounding_is_not_blown_up(name: str, tmp_path: Path) -> None:
    """Two runtimes, which add in different orders, agree far within what ``hope-agent run`` calls the same answer."""
    model = read_model(zoo.build(name), name=name)
    inputs, final = feeds(model, 1), pre_softmax_outputs(model.graph)
    path = tmp_path / "opened.onnx"
    path.write_bytes(opened(model.proto, final).SerializeToString())
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    answers = compiled(inputs)
    theirs = {name: answers[name] for name in final}
    assert relative_error(theirs, run(model.proto, list(final), inputs)) <= 5e-5


@pytest.mark.parametrize("name", zoo.names() if CAMPAIGN else SMALL)
def test_a_seed_gives_the_same_bytes(name: str) -> None:
    """Built twice from one seed, a network is the same file; from another seed, the same graph with other weights."""
    first = zoo.build(name).SerializeToString(deterministic=True)
    assert zoo.build(name).SerializeToString(deterministic=True) == first
    other = zoo.build(name, seed=1)
    assert other.SerializeToString(deterministic=True) != first
    assert read_model(other, name=name).graph.model_hash == read_model(first, name=name).graph.model_hash


def test_shipped_graphs_keep_their_topology() -> None:
    """A shipped graph has the ops, names and shapes of the file in onnx; only the weights are ours."""
    for name in ("inception_v1", "shufflenet"):
        original = read_model(shipped.FOLDER / shipped.FILES[name], name=name).graph
        ours = read_model(zoo.build(name), name=name).graph
        assert ours.model_hash == original.model_hash


def test_every_network_is_read_and_merged_within_its_size() -> None:
    """Super-ops of the big ones: fewer than ops, and far fewer signatures to measure than super-ops."""
    for name in ("inception_v3", "pnasnet_mobile", "nasnet_large"):
        graph = read_model(_unweighted(name)).graph
        groups = merge(graph)
        assert len(groups) < len(graph.ops)
        assert len({group.signature for group in groups}) < len(groups) / 1.5


def test_the_store_builds_once_and_hands_out_whole_files() -> None:
    """A file holds exactly what build() makes, is made once, and replaces those of older code, not of other seeds."""
    path = zoo.path("squeezenet", 3)
    assert path.read_bytes() == zoo.build("squeezenet", 3).SerializeToString(deterministic=True)
    outdated = path.with_name("squeezenet-3-0badc0de.onnx")
    outdated.touch()
    other = path.with_name("squeezenet-4-0badc0de.onnx")
    other.touch()
    path.unlink()
    assert zoo.path("squeezenet", 3) == path
    assert not outdated.exists()
    assert other.exists()
    before = path.stat().st_mtime_ns
    assert zoo.path("squeezenet", 3) == path
    assert path.stat().st_mtime_ns == before
    assert not [p for p in path.parent.iterdir() if p.suffix == ".part"]
    with pytest.raises(UnknownNameError):
        zoo.path("nothing")


def test_builders_may_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four processes that want the same network at once all get the whole of it."""
    right = zoo.build("squeezenet").SerializeToString(deterministic=True)
    monkeypatch.setenv("HOPE_ZOO", str(tmp_path))
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        (made,) = set(pool.map(zoo.path, ["squeezenet"] * 4))
    assert list(tmp_path.iterdir()) == [made]
    assert made.read_bytes() == right


def test_a_name_reads_as_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A zoo network's name means the network of that seed, whatever else is called so; a path means the file."""
    monkeypatch.chdir(tmp_path)
    Path("squeezenet").write_bytes(b"not a model")
    model = read_model("squeezenet", seed=3)
    assert model.name == model.graph.name == "squeezenet"
    assert model.path == zoo.path("squeezenet", 3)
    with pytest.raises(ModelError):
        read_model("./squeezenet")

"""Networks as people have them: narrowed by the usual tools, detectors, exports of the usual libraries."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static
from onnxruntime.transformers.float16 import convert_float_to_float16

from agent_sdk import Agent
from agent_sdk.journey.verify import relative_error
from agent_sdk.model import read_model
from agent_sdk.model.feeds import draw
from agent_sdk.model.opaque import OPAQUE
from hope_schema import merge
from tests import CAMPAIGN
from tests.agent.models import branching_model

BOXES = 24
Narrow = Callable[[Path, Path], None]


class Drawn(CalibrationDataReader):
    """A few random images, for calibration."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.left = [{"x": rng.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(4)]

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next one."""
        return self.left.pop() if self.left else None


def to_half(source: Path, target: Path) -> None:
    """Everything in float16, inputs and outputs too."""
    onnx.save(convert_float_to_float16(onnx.load(source)), target)


NARROWED: dict[str, tuple[Narrow, set[str]]] = {
    "QDQ": (lambda source, target: quantize_static(source, target, Drawn(), QuantFormat.QDQ), {"int8"}),
    "QOperator": (lambda source, target: quantize_static(source, target, Drawn(), QuantFormat.QOperator), {"int8"}),
    "dynamic": (lambda source, target: quantize_dynamic(source, target), {"uint8"}),
    "float16": (to_half, {"float16"}),
}
"""How a network is narrowed, and a type that its ops must then say they compute with."""


@pytest.mark.parametrize("how", NARROWED)
def test_narrowed_networks_are_planned_as_they_are(how: str, agent: Agent, tmp_path: Path) -> None:
    """Their ops have signatures of their own, which hold their types; the answer is right, and always the same bits."""
    narrow, dtypes = NARROWED[how]
    wide, file = tmp_path / "wide.onnx", tmp_path / "narrow.onnx"
    wide.write_bytes(branching_model().SerializeToString())
    narrow(wide, file)
    graph = read_model(file).graph
    types = {tensor.dtype for tensor in graph.tensors} | {kind.dtype for op in graph.ops for kind in op.parameters}
    assert dtypes <= types
    before = {op.signature for op in merge(read_model(wide).graph)}
    for op in merge(graph):
        computed = {kind.dtype for own in op.ops for kind in (*op.types(own.outputs), *own.parameters)}
        assert computed == {"float32"} or op.signature not in before
    with agent.load(file, background=False) as session:
        assert session.verify().correct, str(session.verify())
        feed = draw(session.latest.model, 1)
        first = session.run(feed)
        for _ in range(5):
            assert all((value == first[name]).all() for name, value in session.run(feed).items())


def detector(fixed: bool) -> bytes:
    """A convolution that proposes boxes and scores, suppression of those that overlap, and what is left of them.

    With ``fixed`` the answer is the score of each box or 0 where it was suppressed; else the boxes that are left, of
    which nobody knows how many there are.
    """
    rng = np.random.default_rng(3)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((rng.standard_normal(shape) * 0.2).astype(np.float32), name)

    node = helper.make_node
    corners = rng.uniform(0, 40, (1, BOXES, 2))
    anchors = np.concatenate([corners, corners + rng.uniform(4, 20, (1, BOXES, 2))], axis=2).astype(np.float32)
    nodes = [
        node("Conv", ["image", "w0"], ["c0"], kernel_shape=[3, 3], strides=[2, 2]),
        node("Relu", ["c0"], ["features"]),
        node("GlobalAveragePool", ["features"], ["pooled"]),
        node("Flatten", ["pooled"], ["flat"]),
        node("Gemm", ["flat", "w1"], ["moved"]),
        node("Reshape", ["moved", "as_boxes"], ["offsets"]),
        node("Add", ["offsets", "anchors"], ["boxes"]),
        node("Gemm", ["flat", "w2"], ["logits"]),
        node("Sigmoid", ["logits"], ["likely"]),
        node("Reshape", ["likely", "as_scores"], ["scores"]),
        node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["kept"]),
        node("Slice", ["kept", "two", "three", "one"], ["which"]),
    ]
    if fixed:
        nodes += [
            node("Reshape", ["scores", "flat_shape"], ["line"]),
            node("GatherND", ["line", "which"], ["won"]),
            node("Mul", ["line", "zero"], ["none"]),
            node("ScatterND", ["none", "which", "won"], ["answer"]),
        ]
        output = helper.make_tensor_value_info("answer", TensorProto.FLOAT, [BOXES])
    else:
        nodes += [
            node("Squeeze", ["which", "one"], ["index"]),
            node("Gather", ["boxes", "index"], ["answer"], axis=1),
        ]
        output = helper.make_tensor_value_info("answer", TensorProto.FLOAT, [1, "found", 4])
    numbers = {
        "as_boxes": [1, BOXES, 4], "as_scores": [1, 1, BOXES], "flat_shape": [BOXES], "two": [2], "three": [3],
        "one": [1], "most": [10],
    }  # fmt: skip
    constants = [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in numbers.items()]
    constants += [
        numpy_helper.from_array(np.array(value, np.float32), name)
        for name, value in (("overlap", [0.3]), ("least", [0.45]), ("zero", 0.0))
    ]
    constants += [weights("w0", 8, 3, 3, 3), weights("w1", 8, 4 * BOXES), weights("w2", 8, BOXES)]
    constants.append(numpy_helper.from_array(anchors, "anchors"))
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 32, 32])
    graph = helper.make_graph(nodes, "detector", [image], [output], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


def by_onnxruntime(source: bytes | Path, feed: dict[str, np.ndarray]) -> dict[str, Any]:
    """Compute what ONNX Runtime makes of a file."""
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    return dict(zip((output.name for output in session.get_outputs()), session.run(None, feed), strict=True))


@pytest.fixture
def images() -> list[dict[str, np.ndarray]]:
    """Some inputs of the detector."""
    return [
        {"image": np.random.default_rng(seed).standard_normal((1, 3, 32, 32)).astype(np.float32)} for seed in range(3)
    ]


def test_a_detector_is_planned_around_its_suppression(agent: Agent, images: list[dict[str, np.ndarray]]) -> None:
    """What depends on data hides in one op, everything before it is planned, and every image is answered right."""
    source = detector(fixed=True)
    with agent.load(source, background=False) as session:
        [hidden] = [op for op in session.latest.model.graph.ops if op.type == OPAQUE]
        assert "NonMaxSuppression" in str(hidden.attributes["ops"])
        assert {"Conv", "Gemm", "Sigmoid"} <= {op.type for op in session.latest.model.graph.ops}
        [row] = [row for row in session.explain(runs=1).ops if row.type == OPAQUE]
        assert "NonMaxSuppression" in row.why
        found = []
        for feed in images:
            right = by_onnxruntime(source, feed)
            assert relative_error(session.run(feed), right) < 1e-4
            found.append(int((right["answer"] > 0).sum()))
    assert all(0 < count < BOXES for count in found)


def test_a_detector_that_gives_what_it_finds_runs_whole(agent: Agent, images: list[dict[str, np.ndarray]]) -> None:
    """No border can have an open number of boxes: the whole network runs, says why, and is right."""
    source = detector(fixed=False)
    with agent.load(source, background=False) as session:
        assert session.explain(images[0], runs=1).answers.startswith("whole:")
        assert "answer" in session.notes[0]
        for feed in images:
            assert relative_error(session.run(feed), by_onnxruntime(source, feed)) < 1e-4


EXPORTED = {
    "mobilenet_v3_small": ("torchvision.models", 224),
    "efficientnet_b0": ("torchvision.models", 224),
    "regnet_y_400mf": ("torchvision.models", 224),
    "convnext_tiny": ("torchvision.models", 224),
    "swin_t": ("torchvision.models", 224),
    "ssdlite320_mobilenet_v3_large": ("torchvision.models.detection", 320),
    "vit_tiny_patch16_224": ("timm", 224),
    "grid_detector": ("", 160),
}
"""Networks of the libraries, and one of our own, where each is made, and the side of its image."""


def grid_detector(torch: Any, classes: int = 8) -> Any:
    """A detector built like YOLO: features at two scales, joined by upsampling, boxes decoded on the grid of each."""
    nn = torch.nn

    def unit(given: int, made: int, stride: int = 1) -> Any:
        return nn.Sequential(nn.Conv2d(given, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made), nn.SiLU())

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(unit(3, 16, 2), unit(16, 32, 2), unit(32, 64, 2))
            self.deep = nn.Sequential(unit(64, 128, 2), unit(128, 128))
            self.joined = unit(64 + 128, 64)
            self.heads = nn.ModuleList([nn.Conv2d(given, 4 + classes, 1) for given in (64, 128)])

        def forward(self, image: Any) -> Any:
            fine = self.stem(image)
            coarse = self.deep(fine)
            fine = self.joined(torch.cat([fine, nn.functional.interpolate(coarse, scale_factor=2.0)], 1))
            found = []
            for features, head, stride in zip((fine, coarse), self.heads, (8, 16), strict=True):
                raw = head(features)
                steps = (torch.arange(size) for size in raw.shape[2:])
                grid = torch.stack(torch.meshgrid(*steps, indexing="ij")[::-1]).float()
                centre = (raw[:, :2].sigmoid() * 2 - 0.5 + grid) * stride
                size = (raw[:, 2:4].sigmoid() * 2) ** 2 * stride
                found.append(torch.cat([centre, size, raw[:, 4:].sigmoid()], 1).flatten(2))
            return torch.cat(found, 2).transpose(1, 2)

    return Detector()


@pytest.fixture(scope="module")
def torch() -> Any:
    """Torch, in which torchvision can be imported.

    Its compiled part fits one build of torch only. Beside another one the op that it brings is said to be there and
    suppresses nothing: an export records the op, not what it finds.
    """
    import torch

    try:
        import torchvision
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float overlap) -> Tensor")
        torch.library.impl("torchvision::nms", "CPU", lambda boxes, scores, overlap: scores.argsort(descending=True))
        import torchvision.extension

        torchvision.extension._has_ops = there
    return torch


def there() -> bool:
    """That torchvision's own ops can be called; no lambda, because torch compiles it."""
    return True


@pytest.mark.skipif(not CAMPAIGN, reason="exporting and measuring each takes up to a minute")
@pytest.mark.parametrize(
    ("name", "dynamo"),
    [
        pytest.param(name, dynamo, id=f"{name}-{'dynamo' if dynamo else 'opset18'}")
        for name in EXPORTED
        for dynamo in (False, True)
        if not (dynamo and "ssd" in name)  # torch.export itself does not get past the suppression of boxes
    ],
)
def test_exported_networks_run_right(name: str, dynamo: bool, torch: Any, agent: Agent, tmp_path: Path) -> None:
    """Random weights, exported by torch either way, are planned or run whole, and answered like ONNX Runtime."""
    where, side = EXPORTED[name]
    library = import_module(where) if where else None
    torch.manual_seed(0)
    if library is None:
        network = grid_detector(torch)
    elif where == "timm":
        network = library.create_model(name, pretrained=False)
    else:
        more = {"weights_backbone": None} if "detection" in where else {}
        network = getattr(library, name)(weights=None, **more)
    image = torch.rand(1, 3, side, side)
    given: Any = ([image[0]],) if "detection" in where else (image,)
    file = tmp_path / f"{name}.onnx"
    torch.onnx.export(network.eval(), given, str(file), opset_version=18, dynamo=dynamo)
    assert (b"NonMaxSuppression" in file.read_bytes()) == ("detection" in where)
    with agent.load(file, background=False) as session:
        [port] = session.get_inputs()
        feed = {port.name: image.numpy().reshape([size for size in port.shape if isinstance(size, int)])}
        right = by_onnxruntime(file, feed)
        assert all(value.size for value in right.values())
        assert relative_error(session.run(feed), right) < 1e-3
        assert session.verify(feed).correct


def decoder(torch: Any, width: int = 32, heads: int = 4, layers: int = 2, words: int = 64) -> Any:
    """A small GPT-2: attention over keys and values of earlier words, which it takes and gives back longer."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.mixed, self.joined = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.wider, self.narrower = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, x: Any, past: Any) -> tuple[Any, Any]:
            batch, length, _ = x.shape
            split = self.mixed(self.first(x)).reshape(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
            query, present = split[0], torch.cat([past, split[1:]], dim=3)
            score = query @ present[0].transpose(-1, -2) / (width // heads) ** 0.5
            allowed = torch.ones(length, present.shape[3]).tril(past.shape[3])
            seen = score.masked_fill(allowed == 0, -1e9).softmax(-1) @ present[1]
            x = x + self.joined(seen.transpose(1, 2).reshape(batch, length, width))
            return x + self.narrower(torch.nn.functional.gelu(self.wider(self.second(x)))), present

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedded = torch.nn.Embedding(words, width)
            self.blocks = torch.nn.ModuleList([Block() for _ in range(layers)])

        def forward(self, tokens: Any, past: Any) -> tuple[Any, Any]:
            x, presents = self.embedded(tokens), []
            for block, own in zip(self.blocks, past, strict=True):
                x, present = block(x, own)
                presents.append(present)
            return x @ self.embedded.weight.T, torch.stack(presents)

    return Decoder().eval()


@pytest.mark.skipif(not CAMPAIGN, reason="torch takes its time to export")
@pytest.mark.parametrize("dynamo", [False, True], ids=["opset18", "dynamo"])
def test_a_decoder_with_past_keys_goes_on_where_it_stopped(
    dynamo: bool, torch: Any, agent: Agent, tmp_path: Path
) -> None:
    """Exported from torch, fed its own keys and values, two steps of two words give what four words at once give."""
    torch.manual_seed(0)
    network = decoder(torch)
    tokens, past = torch.tensor([[5, 9, 33, 2]]), torch.zeros(2, 2, 1, 4, 3, 8)
    steps = []
    for index, length in enumerate((3, 5)):  # the keys of three words are there, then of five
        file = tmp_path / f"{index}.onnx"
        given = (tokens[:, :2], torch.zeros(2, 2, 1, 4, length, 8))
        names = {"input_names": ["tokens", "past"], "output_names": ["logits", "present"]}
        torch.onnx.export(network, given, str(file), opset_version=18, dynamo=dynamo, **names)
        steps.append(agent.load(file, background=False))
    with torch.no_grad():
        right, _ = network(tokens, past)
    first = steps[0].run({"tokens": tokens[:, :2].numpy(), "past": past.numpy()})
    second = steps[1].run({"tokens": tokens[:, 2:].numpy(), "past": first["present"]})
    said = np.concatenate([first["logits"], second["logits"]], axis=1)
    assert relative_error({"logits": said}, {"logits": right.numpy()}) < 1e-4
    assert all(session.plans.ready() for session in steps)

"""The networks inside packages that people install: each is read, planned as far as it can be, and computed right."""

from __future__ import annotations

from importlib.metadata import files
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from agent_sdk.cli import commands as cli
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.single import single_processor_plan
from agent_sdk.errors import UnplannableError
from agent_sdk.journey.rounding import rounding
from agent_sdk.journey.verify import relative_error
from agent_sdk.model import Shapes, read_model
from agent_sdk.model.feeds import draw
from agent_sdk.runtimes.ort.whole import WholeOrt
from tests import CAMPAIGN
from tests.agent.haste import measure_hastily

SHIPPED: dict[str, tuple[str, Shapes]] = {
    "common.onnx": ("ddddocr", {"input1": (1, 1, 64, 160)}),
    "common_det.onnx": ("ddddocr", {}),
    "common_old.onnx": ("ddddocr", {"input1": (1, 1, 64, 160)}),
    "model.onnx": ("magika", {}),
    "320n.onnx": ("nudenet", {"images": (1, 3, 320, 320)}),
    "ch_PP-OCRv4_det_infer.onnx": ("rapidocr-onnxruntime", {"x": (1, 3, 320, 320)}),
    "ch_PP-OCRv4_rec_infer.onnx": ("rapidocr-onnxruntime", {"x": (1, 3, 48, 320)}),
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": ("rapidocr-onnxruntime", {"x": (1, 3, 48, 192)}),
    "silero_vad.onnx": ("silero-vad", {"input": (1, 576), "state": (2, 1, 128)}),
    "silero_vad_16k_op15.onnx": ("silero-vad", {"input": (1, 576)}),
    "silero_vad_16k_sequence.onnx": ("silero-vad", {"input": (4, 576)}),
    "silero_vad_half.onnx": ("silero-vad", {"input": (1, 576)}),
    "silero_vad_op18_ifless.onnx": ("silero-vad", {"input": (1, 576)}),
    "silero_vad_openvino_16k.onnx": ("silero-vad", {}),
}
"""File name to the package that ships it (``tests/carried.txt``), and the shapes that it leaves open."""
SPEECH = {"silero_vad.onnx", "silero_vad_16k_op15.onnx", "silero_vad_op18_ifless.onnx"}
"""These take a sampling rate, of which they know two."""

QUICK = ("silero_vad.onnx", "silero_vad_half.onnx", "ch_ppocr_mobile_v2.0_cls_infer.onnx")
"""What every suite takes through the whole journey: one that runs whole, one in float16, one convolutional."""


def file_of(name: str) -> Path:
    """Where the package manager put a file."""
    package, _ = SHIPPED[name]
    return next(Path(str(file.locate())) for file in files(package) or () if file.name == name)


def feed_of(name: str) -> dict[str, np.ndarray]:
    """Draw inputs of the shapes above."""
    model = read_model(
        file_of("silero_vad_op18_ifless.onnx" if name == "silero_vad.onnx" else name),
        shapes={key: shape for key, shape in SHIPPED[name][1].items() if name != "silero_vad.onnx" or key == "input"},
    )
    feed = draw(model, 0)
    return feed | {"sr": np.array(16_000)} if name in SPEECH else feed


def right(name: str, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute what ONNX Runtime makes of the file on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(file_of(name), options, providers=["CPUExecutionProvider"])
    return dict(zip((info.name for info in session.get_outputs()), session.run(None, feed), strict=True))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_networks_are_computed_right(name: str, core: Device) -> None:
    """At the shapes given, every file runs on one core, or as a whole, and says what ONNX Runtime says of it."""
    feed = feed_of(name)
    try:
        model = read_model(file_of(name), shapes=SHIPPED[name][1])
    except UnplannableError:
        assert name == "silero_vad.onnx", "its branches end in different shapes; no other file here runs as a whole"
        assert relative_error(WholeOrt(file_of(name), 1).run(feed), right(name, feed)) < 1e-4
        return
    plan = single_processor_plan(model.graph, next(iter(core.processors)), soc="here", frequency="now")
    with Executor(build_program(plan, model, core.processors), core) as executor:
        outputs, _ = executor.run(feed)
    assert relative_error(outputs, right(name, feed)) <= rounding(model.graph).tolerance


@pytest.mark.parametrize("name", SHIPPED if CAMPAIGN else QUICK)
def test_shipped_networks_end_well_on_the_command_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``hope-agent run`` with the file's inputs measures, plans, runs, finds the answer right and exits with 0."""
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path))
    options = ["--quiet"]
    if not CAMPAIGN:
        monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
        measure_hastily(monkeypatch)
        options += ["--processors", "ort@0", "--runs", "1"]
    np.savez(tmp_path / "feed.npz", **feed_of(name))
    assert cli.main(["run", str(file_of(name)), "--input", str(tmp_path / "feed.npz"), *options]) == cli.OK
    out, err = capsys.readouterr()
    assert "right" in out
    assert "Traceback" not in out + err

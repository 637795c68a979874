"""What a device finds by itself, and which names it knows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_sdk.errors import UnknownNameError
from agent_sdk.machine.soc import Soc
from agent_sdk.runtimes.base import Processor
from agent_sdk.runtimes.offered import discover
from tests.agent.runtimes.networks import of


def test_unknown_processors_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown id names what there is and starts none of it; a runtime's name means all of its processors."""
    with monkeypatch.context() as patch:
        patch.setattr("agent_sdk.runtimes.offered.OrtProcessor", lambda *_, **__: pytest.fail("it was started"))
        with pytest.raises(UnknownNameError, match=r"'gpu@7'; .*ort@0"):
            discover("gpu@7", cache=tmp_path)
    with pytest.raises(UnknownNameError):
        discover("", cache=tmp_path)
    chosen = discover("ort", cache=tmp_path)
    assert {processor.spec.runtime for processor in chosen} == {"ort"}
    assert [processor.id for processor in discover("ort@0,ort@0", cache=tmp_path)] == ["ort@0"]


def discovered(spec: str | None, cache: Path, packages: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What a new process finds, and whether it has imported OpenVINO; ``packages`` come before the installed ones."""
    command = (
        "import sys, pathlib; from agent_sdk.runtimes.offered import discover; "
        f"print([p.id for p in discover({spec!r}, cache=pathlib.Path({str(cache)!r}))], 'openvino' in sys.modules)"
    )
    root = Path(__file__).parents[3]
    paths = os.pathsep.join(str(path) for path in (packages, root) if path)
    return subprocess.run(
        [sys.executable, "-c", command], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True
    )


def test_a_runtime_that_is_not_named_is_left_alone(tmp_path: Path, processors: list[Processor]) -> None:
    """Whoever wants ONNX Runtime alone does not wait for OpenVINO to be imported."""
    ids = [processor.id for processor in of(processors, "ort")]
    assert discovered("ort", tmp_path).stdout == f"{ids} False\n"
    assert discovered(ids[0], tmp_path).stdout == f"{ids[:1]} False\n"


def broken_openvino(failure: str, folder: Path) -> Path:
    """Where OpenVINO is found first, and fails when it is imported."""
    (folder / "openvino").mkdir()
    (folder / "openvino" / "__init__.py").write_text(f"raise {failure}('lib.so: cannot open')")
    return folder


@pytest.mark.parametrize("failure", ["ImportError", "RuntimeError", "OSError"])
def test_a_runtime_that_does_not_start_is_left_out(failure: str, tmp_path: Path, processors: list[Processor]) -> None:
    """A broken OpenVINO costs its own processors: it is told, and the others are found."""
    found = discovered(None, tmp_path, broken_openvino(failure, tmp_path))
    assert found.stdout == f"{[processor.id for processor in of(processors, 'ort')]} False\n"
    assert "OpenVINO" in found.stderr
    assert "lib.so: cannot open" in found.stderr


def test_naming_a_runtime_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    """Nothing is said of it where it is not named."""
    broken_openvino("ImportError", tmp_path)
    assert discovered("ort@0", tmp_path, tmp_path).stderr == ""
    assert "UnknownNameError: unknown processor 'ov@0'; did you mean ort@0" in (
        discovered("ov@0", tmp_path, tmp_path).stderr
    )


def test_providers_of_one_device_exclude_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA and TensorRT share a GPU, what computes on the cores claims them, and others have hardware of their own."""
    kinds = ("Tensorrt", "CUDA", "MIGraphX", "Dnnl", "Xnnpack", "OpenVINO", "Azure", "WebGpu", "CPU")
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: [f"{kind}ExecutionProvider" for kind in kinds])
    soc = Soc("test", "test", dict.fromkeys((0, 1), "core"))
    found = {processor.id: processor.spec.resources for processor in discover(soc=soc, cache=tmp_path)}
    cores = ("cpu0", "cpu1")
    assert {name: resources for name, resources in found.items() if name.startswith("ort-")} == {
        "ort-tensorrt@0": ("cuda0",),
        "ort-cuda@0": ("cuda0",),
        "ort-migraphx@0": ("rocm0",),
        "ort-dnnl@0": cores,
        "ort-xnnpack@0": cores,
        "ort-openvino@0": cores,
        "ort-webgpu@0": ("webgpu0",),
    }

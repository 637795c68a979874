"""A compiler that crashes takes a child process with it, not the application."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_sdk import Agent
from agent_sdk.runtimes import probe
from agent_sdk.verify import relative_error
from tests.agent.engine.conftest import WITH_OPENVINO
from tests.agent.haste import measure_hastily
from tests.agent.models import BRANCHING, expected

CRASHING = """
import sys
if "agent_sdk.runtimes.probe" in sys.orig_argv:
    import ctypes
    import openvino
    openvino.Core.compile_model = lambda *given, **named: ctypes.string_at(0)
"""


@WITH_OPENVINO
def test_a_compiler_that_crashes_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real segmentation fault in the child: the note says so, other runtimes answer, and nobody tries again."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)
    (tmp_path / "sitecustomize.py").write_text(CRASHING)
    monkeypatch.syspath_prepend(str(tmp_path))
    inputs, right = expected(BRANCHING, seed=1)
    cache = tmp_path / "cache"
    with Agent(processors="ort@0,ov@0", cache=cache) as agent, agent.load(BRANCHING, background=False) as session:
        assert "OpenVINO is left out, because its compiler crashes at this network: Segmentation fault" in session.notes
        assert not [name for name in session.serving.contenders if name.startswith(("ov", "openvino"))]
        assert session.obtained.source == "planner"
        assert session.plan.processors_used == ("ort@0",)
        assert relative_error(session.run(inputs), right) < 1e-5

    def never(*given: object) -> str:
        pytest.fail("a network that was probed is probed again")

    monkeypatch.setattr(probe, "_crash", never)
    with Agent(processors="ort@0,ov@0", cache=cache) as agent, agent.load(BRANCHING, background=False) as session:
        assert any("OpenVINO is left out" in note for note in session.notes)


@WITH_OPENVINO
def test_a_compiler_that_lives_is_used(tmp_path: Path) -> None:
    """The child compiles the file for real; what it refuses is no crash; each is asked once."""
    file = tmp_path / "net.onnx"
    file.write_bytes(BRANCHING)
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(BRANCHING[: len(BRANCHING) // 2])
    probes = probe.Probes(tmp_path / "probes")
    assert probes.crash("openvino", "1", "net", file) == ""
    assert probes.crash("openvino", "1", "damaged", damaged) == ""
    assert len(os.listdir(tmp_path / "probes")) == 2

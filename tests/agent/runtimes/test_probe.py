"""A compiler that crashes takes a child process with it, not the application."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agent_sdk import Agent
from agent_sdk.errors import ModelError
from agent_sdk.runtimes import probe
from agent_sdk.verify import relative_error
from tests.agent.haste import measure_hastily
from tests.agent.models import BRANCHING, expected

CRASHING = """
import sys
if sys.orig_argv[1:4] == ["-m", "agent_sdk.compiling", "{runtime}"]:
    import ctypes
    import {runtime}
    {runtime}.{what} = lambda *given, **named: ctypes.string_at(0)
"""
WHAT = {"openvino": "Core.compile_model", "onnxruntime": "InferenceSession"}
"""What each runtime compiles with."""


@pytest.fixture
def probing() -> None:
    """Children, as everywhere but in the other tests."""


def test_a_compiler_that_crashes_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real segmentation fault in the child: the note says so, other runtimes answer, and nobody tries again."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)
    (tmp_path / "sitecustomize.py").write_text(CRASHING.format(runtime="openvino", what=WHAT["openvino"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    inputs, right = expected(BRANCHING, seed=1)
    cache = tmp_path / "cache"
    note = "OpenVINO is left out, because its compiler crashes at this network: Segmentation fault"
    with Agent(processors="ort@0,ov@0", cache=cache) as agent, agent.load(BRANCHING, background=False) as session:
        assert note in session.notes
        assert {
            own.compiler.runtime for own in session.latest.executor.program.processors.values() if own.compiler
        } == {"onnxruntime"}
        assert session.latest.obtained.source == "planner"
        assert session.plan.processors_used == ("ort@0",)
        assert relative_error(session.run(inputs), right) < 1e-5
        assert session.verify().correct

    def never(*given: object) -> str:
        pytest.fail("a network that was probed is probed again")

    monkeypatch.setattr(probe, "_crash", never)
    with Agent(processors="ort@0,ov@0", cache=cache) as agent, agent.load(BRANCHING, background=False) as session:
        assert note in session.notes


def test_without_a_judge_no_plan_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ONNX Runtime crashes at a file, nobody can say whether a plan is right: the network runs as a whole."""
    (tmp_path / "sitecustomize.py").write_text(CRASHING.format(runtime="onnxruntime", what=WHAT["onnxruntime"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    inputs, right = expected(BRANCHING, seed=1)
    with (
        Agent(processors="ort@0,ov@0", cache=tmp_path / "cache") as agent,
        agent.load(BRANCHING, background=False) as session,
    ):
        assert session.stats.prepared == 0
        assert "nothing can judge an answer" in session.notes[0]
        assert relative_error(session.run(inputs), right) < 1e-5
        with pytest.raises(ModelError, match="nothing can judge"):
            session.verify()


def test_a_network_that_crashes_every_compiler_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is left to run it, as a plan or whole: one sentence says why, and the process lives."""
    (tmp_path / "sitecustomize.py").write_text(CRASHING.format(runtime="onnxruntime", what=WHAT["onnxruntime"]))
    monkeypatch.syspath_prepend(str(tmp_path))
    with Agent(processors="ort@0", cache=tmp_path / "c") as agent, pytest.raises(ModelError, match="compiler crashes"):
        agent.load(BRANCHING, background=False)


@pytest.mark.parametrize(
    "compiler",
    [
        probe.Compiler("onnxruntime", "1", "CPUExecutionProvider"),
        probe.Compiler("openvino", "1", "CPU"),
    ],
    ids=["onnxruntime", "openvino"],
)
def test_a_compiler_that_lives_is_used(compiler: probe.Compiler, tmp_path: Path) -> None:
    """The child compiles the file for real; what it refuses is no crash; each is asked once."""
    file = tmp_path / "net.onnx"
    file.write_bytes(BRANCHING)
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(BRANCHING[: len(BRANCHING) // 2])
    probes = probe.Probes(tmp_path / "probes")
    assert probes.crashes([compiler], "net", file) == {}
    assert probes.crashes([compiler], "damaged", damaged) == {}
    assert len(os.listdir(tmp_path / "probes")) == 2

"""``hope-agent run`` with the planner inside the process: every method, second runs, and what it falls back to."""

from __future__ import annotations

import io
import json
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent_sdk.cli import commands as cli
from agent_sdk.journey.reference import Reference
from tests.agent.models import branching_model
from tests.e2e.conftest import at_home, model_in

PROMISED = {
    "model", "model_hash", "soc", "frequency", "processors", "plan_id", "plan_cached", "method", "planned_us",
    "at_load_us", "lower_bound_us", "measured_us", "baselines_us", "processors_used", "segments", "max_rel_error",
    "profiled_signatures", "profiling_seconds",
}  # fmt: skip


@dataclass(frozen=True)
class Known:
    """What a device keeps that has run the model of ``model_file`` on ``ort``, and the report of that run."""

    cache: Path
    report: dict[str, Any]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Known:
    """The first run, once for every test of what comes after one, with all its children."""
    folder = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as monkeypatch:
        directory = at_home(folder, monkeypatch)
        return Known(directory, run("--model", str(model_in(folder)), "--processors", "ort"))


@pytest.fixture(autouse=True)
def _known(first: Known, cache: Path) -> None:
    """Every test has a device of its own that has run the model once, and so need not measure it again."""
    shutil.copytree(first.cache, cache)


def run(*arguments: str) -> dict[str, Any]:
    """Run ``hope-agent run --json``, expect success and exactly one object on stdout, and return it."""
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        code = cli.main(["run", *arguments, "--json", "--runs", "3"])
    assert code == cli.OK, err.getvalue()
    return json.loads(out.getvalue())


@pytest.mark.parametrize("method", ["greedy", "ilp", "auto"])
def test_every_method_gives_a_right_answer(method: str, model_file: Path, first: Known) -> None:
    """A plan by every method is executed, is never below its bound, and computes what the whole model computes."""
    asked = ("--model", str(model_file), "--method", method, "--processors", "ort")
    report = first.report if method == "auto" else run(*asked)
    assert report.keys() >= PROMISED
    assert report["max_rel_error"] <= 1e-4
    assert report["segments"] >= 1
    assert report["planned_us"] >= report["lower_bound_us"] > 0
    assert report["gap"] == pytest.approx(report["planned_us"] / report["lower_bound_us"] - 1, abs=1e-3)
    assert set(report["plan_processors_used"]) <= set(report["processors"])
    # Where the plan is not worth it one runtime answers: on a processor, or plain ONNX Runtime.
    assert report["executed"].partition("/")[0] in {"plan", "onnxruntime", *report["processors"]}
    planned = report["executed"] == "plan"
    assert report["processors_used"] == (report["plan_processors_used"] if planned else [report["executed"]])
    assert (report["profiled_signatures"] > 0) == (report is first.report)


def test_the_second_run_measures_and_solves_nothing(model_file: Path, first: Known) -> None:
    """A known model needs no profiling, and its plan comes from the cache under the same id."""
    second = run("--model", str(model_file), "--processors", "ort")
    assert (first.report["plan_cached"], second["plan_cached"]) == (False, True)
    assert (second["profiled_signatures"], second["profiling_seconds"]) == (0, 0)
    assert second["plan_id"] == first.report["plan_id"]
    assert second["planned_us"] == first.report["planned_us"]


def test_another_model_shares_what_was_measured(tmp_path: Path, first: Known) -> None:
    """Figures belong to op signatures: a second model with the same ops under other names measures nothing."""
    renamed = branching_model()
    for node in renamed.graph.node:
        node.output[:] = [name if name == "y" else f"other_{name}" for name in node.output]
        node.input[:] = [f"other_{name}" if f"other_{name}" in _made(renamed) else name for name in node.input]
    path = tmp_path / "renamed.onnx"
    path.write_bytes(renamed.SerializeToString())
    second = run("--model", str(path), "--processors", "ort")
    assert first.report["model_hash"] != second["model_hash"]
    assert first.report["profiled_signatures"] > 0
    assert second["profiled_signatures"] == 0


def _made(model: Any) -> set[str]:
    return {name for node in model.graph.node for name in node.output}


def test_compare_times_every_kind_of_processor(model_file: Path) -> None:
    """With ``--compare`` every kind of single processor is timed as often as asked, and what runs is none slower."""
    report = run("--model", str(model_file), "--processors", "ort", "--compare")
    assert "ort@0" in report["baselines_us"]
    assert {name.partition("/")[0] for name in report["baselines_us"]} <= {*report["processors"], "onnxruntime"}
    assert report["measured_us"] <= min(report["baselines_us"].values())
    assert report["runs"] == 3


def test_mixed_runtimes_agree(model_file: Path) -> None:
    """ONNX Runtime and OpenVINO may share one plan, and the answer stays right."""
    report = run("--model", str(model_file), "--processors", "ort@0,ov@0")
    assert report["max_rel_error"] <= 1e-4


def test_the_trace_opens(model_file: Path, tmp_path: Path) -> None:
    """``--trace`` writes JSON in the Trace Event Format with one complete event per executed segment."""
    target = tmp_path / "out.trace.json"
    report = run("--model", str(model_file), "--processors", "ort", "--trace", str(target))
    events = json.loads(target.read_text())["traceEvents"]
    assert sum(event.get("cat") == "segment" for event in events) == report["segments"]


def test_the_table_is_for_people(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without ``--json`` stdout holds the table and the timeline, and progress stays on stderr."""
    assert cli.main(["run", "--model", str(model_file), "--processors", "ort", "--runs", "2", "--compare"]) == cli.OK
    out, err = capsys.readouterr()
    for word in ("planned", "x measured", "right", "ort@0"):
        assert word in out
    assert "asking the planner" in err
    assert "asking the planner" not in out


def test_a_wrong_answer_fails_the_command(
    model_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the outputs differ from the reference by more than is allowed, the command exits with 1 and says so."""
    right = Reference.inside
    monkeypatch.setattr(Reference, "inside", lambda *given: {name: v * 1.01 for name, v in right(*given).items()})
    run = ["run", "--model", str(model_file), "--processors", "ort", "--runs", "1", "--json"]
    code = cli.main(run)
    out, err = capsys.readouterr()
    assert code == cli.FAILED
    assert "hope-agent: wrong: " in err
    assert "more than 1.0e-03" in err
    assert json.loads(out)["correct"] is False
    assert cli.main([*run, "--tolerance", "0.02"]) == cli.OK
    assert json.loads(capsys.readouterr().out)["correct"] is True


def test_an_answer_that_cannot_be_compared_is_reported(
    model_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an output is not finite as the reference's is, the object is printed all the same, and says wrong."""
    right = Reference.inside
    monkeypatch.setattr(
        Reference, "inside", lambda *given: {name: np.full_like(v, np.nan) for name, v in right(*given).items()}
    )
    code = cli.main(["run", "--model", str(model_file), "--processors", "ort", "--runs", "1", "--json"])
    out, err = capsys.readouterr()
    assert code == cli.FAILED
    assert "an output is missing" in err
    report = json.loads(out)
    assert (report["correct"], report["max_rel_error"]) == (False, None)


def test_a_trace_that_cannot_be_written_costs_no_report(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a full disk the report is printed before the complaint about the trace."""
    run = ["run", "--model", str(model_file), "--processors", "ort", "--runs", "1", "--json"]
    assert cli.main([*run, "--trace", "/dev/full"]) == cli.BAD_INPUT
    out, err = capsys.readouterr()
    assert json.loads(out)["correct"] is True
    assert "cannot write the trace" in err


def test_without_the_planner_extra_a_single_processor_runs(
    cache: Path, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the planner is not installed and no URL is given, the best single processor runs, and it is said."""
    shutil.rmtree(cache)  # a device that has never had a plan
    monkeypatch.setitem(sys.modules, "planner_api.embedded", None)
    report = run("--model", str(model_file), "--processors", "ort")
    assert (report["plan_source"], report["plan_id"], report["planned_us"]) == ("single", None, None)
    assert len(report["processors_used"]) == 1
    assert "'planner' extra" in report["notes"][0]
    assert "the fastest single processor" in report["notes"][0]


def test_the_last_plan_survives_the_planner(
    cache: Path, model_file: Path, first: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan made before is used from disk when the planner has lost its database and cannot be started; it is said."""
    (cache / "planner.sqlite").unlink()
    monkeypatch.setitem(sys.modules, "planner_api.embedded", None)
    second = run("--model", str(model_file), "--processors", "ort")
    assert (second["plan_source"], second["plan_id"]) == ("disk", first.report["plan_id"])
    assert "disk cache" in second["notes"][0]

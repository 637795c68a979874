"""What the engine's benchmark found is held against what was asked for: another list for few cores than for many."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.engine.__main__ import OtherRunError, earlier
from benchmarks.engine.judging import judge


def one_network(name: str, cores: int, ours_us: float, openvino_us: float, answered_by: str) -> dict[str, Any]:
    """A file of the benchmark: ONNX Runtime takes 100 µs, the plan 120 µs, half of which two processors work."""
    us = {"ort_1": 150.0, "ort_all": 100.0, "openvino_all": openvino_us, "ours": ours_us, "ours_planned": 120.0}
    rows = [
        {
            "model": name,
            "config": config,
            "median_us": took,
            "ratio_to_best_ort": took / 100.0,
            "ratio_to_best_single": took / min(100.0, openvino_us),
            "prediction_error": 0.05,
            "planner_error": 0.1,
            "max_rel_error": 1e-6,
            "overlap": 0.5,
            "segments": 3,
        }
        for config, took in us.items()
    ]
    facts = {"model": name, "answered_by": answered_by, "planned_us": 110.0, "lower_bound_us": 90.0}
    circumstances = {"machine": f"test, {cores} cores", "date": "2026-01-01", "commit": "abc"}
    return {"rows": rows, "models": [facts], "machine": {"cores": cores}, "circumstances": circumstances}


def verdicts(cores: int) -> dict[str, tuple[float, bool | None]]:
    """What is said of two networks, on so many cores."""
    found = [one_network("a", cores, 64.0, 200.0, "plan"), one_network("b", cores, 100.0, 80.0, "onnxruntime")]
    measures, (table, promised) = judge(
        {**found[0], **{part: [one for content in found for one in content[part]] for part in ("rows", "models")}}
    )
    assert [row[0] for row in table.rows] == ["a", "b"]
    assert promised.rows[0] == ["a", 0.11, 0.12, pytest.approx(120 / 110)]
    assert [row[3] for row in promised.rows[2:]] == [pytest.approx(120 / 110)] * 2
    return {measure.measure: (measure.value, measure.ok) for measure in measures}


def test_of_two_cores_the_networks_are_judged_together() -> None:
    """By the geometric mean beside ONNX Runtime, and by the worst beside any runtime."""
    assert verdicts(2) == {
        "ours / best ONNX Runtime, geometric mean of 2": (pytest.approx(0.8), True),
        "ours / best single runtime, worst (b)": (1.25, False),
        "largest error of an answer": (1e-6, True),
    }


def test_of_many_cores_each_network_is_judged() -> None:
    """Beside ONNX Runtime's best, by its answer and, where a plan answers, by predictions; how many won by overlap."""
    found = verdicts(16)
    assert len(found) == 2 * 2 + 2 + 2
    assert found["a: ours (plan) / best ONNX Runtime (ort_all)"] == (0.64, True)
    assert found["a: the plan, as the planner timed it, against measured"] == (0.1, False)
    assert found["networks <= 0.85 with two or more at work for a third of the run"] == (1, False)


def test_a_file_of_earlier_networks_is_gone_on_with(tmp_path: Path) -> None:
    """Networks of the same machine and commit stay, one that is measured again does not; others' files are refused."""
    path = tmp_path / "found.json"
    content = one_network("a", 2, 64.0, 200.0, "plan")
    here = {"circumstances": content["circumstances"] | {"date": "2026-01-02"}, "machine": content["machine"]}
    assert earlier(path, here, ["b"]) == here | {"rows": [], "models": []}
    path.write_text(json.dumps(content))
    assert earlier(path, here, ["b"]) == content | here
    assert earlier(path, here, ["a"])["rows"] == []
    with pytest.raises(OtherRunError, match="abc"):
        earlier(path, {**here, "circumstances": here["circumstances"] | {"commit": "def"}}, ["b"])

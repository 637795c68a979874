"""The report: right and wrong are told apart, and what is drawn is what happened."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

from agent_sdk.cli.report import RunReport, WholeReport, headline, list_rows, show, show_whole
from agent_sdk.explain import Bar
from agent_sdk.journey.verify import Verdict, relative_error


def report(**changes) -> RunReport:
    """Return a plausible report with changes."""
    values = {
        "model": "m", "model_hash": "0" * 64, "ops": 4, "super_ops": 2, "soc": "soc", "frequency": "any",
        "processors": ("a", "b"), "plan_id": "p", "plan_version": 1, "plan_cached": True, "plan_source": "planner",
        "method": "greedy", "planned_us": 1000.0, "lower_bound_us": 900.0, "gap": 0.11, "at_load_us": 1100.0,
        "timed_us": {"plan": 1000.0, "a": 2000.0, "b": 1500.0}, "executed": "plan", "compared": True,
        "processors_used": ("a", "b"), "segments": 3, "plan_segments": 3,
        "plan_processors_used": ("a", "b"), "runs": 5, "verdict": Verdict(1e-7, 1e-3, "rounding"),
        "profiled_signatures": 2, "profiling_seconds": 0.5, "planner_ms": 3.0,
    }  # fmt: skip
    return RunReport(**{**values, **changes})


def drawn(shown: RunReport, encoding: str = "utf-8") -> str:
    """Return what is printed on a terminal of 120 columns."""
    written = io.BytesIO()
    file = io.TextIOWrapper(written, encoding=encoding)
    show(shown, Console(file=file, width=120, force_terminal=False))
    file.flush()
    return written.getvalue().decode(encoding)


def test_speed_up_is_over_the_best_single_processor() -> None:
    """The gain is claimed over the fastest single processor, not the slowest."""
    assert report().speedup == 1.5


@pytest.mark.parametrize(("error", "correct"), [(0.0, True), (1e-3, True), (1.1e-3, False), (float("nan"), False)])
def test_correctness_needs_a_comparison(error: float, correct: bool) -> None:
    """Only a comparison within tolerance counts as right; NaN does not."""
    assert Verdict(error, 1e-3, "rounding").correct is correct


def test_nothing_is_said_in_powers_of_ten_that_people_read() -> None:
    """Equal answers are called equal, and a planner's minute is no 60000 ms."""
    verdict = Verdict(0.0, 1e-3, "rounding")
    assert str(verdict) == "right: the same numbers (rounding: up to 1.0e-03)"
    assert "asked for 1.13 min" in drawn(report(planner_ms=67_900.0))


def test_no_time_is_said_to_have_passed_in_a_planner_that_gave_no_plan() -> None:
    """Without a plan, and where the last one is on disk, the table says how long it was asked for."""
    for given in (report(plan_id=None, planner_ms=1230.0), report(plan_source="disk", planner_ms=1230.0)):
        assert "asked for 1.23 s" in (shown := drawn(given))
        assert "in the planner" not in shown


def test_json_has_every_promised_key_and_no_timeline() -> None:
    """The JSON object carries the keys that scripts rely on."""
    keys = {
        "model", "model_hash", "soc", "frequency", "processors", "plan_id", "plan_cached", "method", "planned_us",
        "at_load_us", "lower_bound_us", "measured_us", "baselines_us", "processors_used", "segments",
        "max_rel_error", "profiled_signatures", "profiling_seconds",
    }  # fmt: skip
    row = json.loads(json.dumps(report(planned=(Bar("a", 0, 1),)).as_json()))
    assert keys <= row.keys()
    assert "planned" not in row


@pytest.mark.parametrize("error", [float("inf"), float("nan")])
def test_the_worst_answers_can_be_told_as_json(error: float) -> None:
    """An error that JSON has no number for becomes null, and the answer is wrong all the same."""
    row = json.loads(json.dumps(report(verdict=Verdict(error, 1e-3, "rounding")).as_json(), allow_nan=False))
    assert (row["max_rel_error"], row["correct"]) == (None, False)


@pytest.mark.parametrize(("encoding", "full", "idle"), [("utf-8", "█", "·"), ("ascii", "#", ".")])
def test_the_timeline_shows_who_was_busy_when(encoding: str, full: str, idle: str) -> None:
    """A processor busy in the second half only is drawn busy there and idle before, in plain ASCII if need be."""
    text = drawn(report(measured=(Bar("a", 0, 500), Bar("b", 500, 1000))), encoding)
    lanes = [line[23:].strip() for line in text.splitlines() if full * 20 in line]
    first, second = lanes
    half = len(first) // 2
    assert (set(first[: half - 1]), set(first[half + 1 :])) == ({full}, {idle})
    assert (set(second[: half - 1]), set(second[half + 1 :])) == ({idle}, {full})


def test_a_fallback_is_said() -> None:
    """When a single processor ran instead of the plan, the table says which and the note why, in one line of a pipe."""
    why = "; ".join(["the plan lost to b"] * 8)
    text = drawn(report(executed="b", timed_us={"plan": 2000.0, "b": 1500.0}, notes=(why,)))
    assert "b alone, the fastest here" in text
    assert f"note: {why}" in text


def test_names_from_outside_are_shown_as_they_are() -> None:
    """Square brackets are neither swallowed nor obeyed, and no control character reaches the terminal."""
    text = drawn(report(model="net[int8]", method="[/b]", notes=("[/red] \x1b]0;title\x07 over\nand out",)))
    assert "net[int8]: 4 ops" in text
    assert "found by [/b]" in text
    assert "note: [/red] ?]0;title? over and out" in text
    file = io.StringIO()
    show_whole(
        WholeReport("net[b]\x1b", "onnxruntime", 1e3, 1, Verdict(0.0, 1e-3, ""), ()), Console(file=file, width=120)
    )
    assert "net[b]?: 1.00 ms" in file.getvalue()
    Console(file=file, width=120).print(list_rows("a[b]", ("name",), [("c[/d]\x1b",)]))
    assert "a[b]" in file.getvalue()
    assert "c[/d]?" in file.getvalue()


def test_wrong_outputs_are_shouted() -> None:
    """A wrong answer cannot be overlooked."""
    assert "WRONG" in drawn(report(verdict=Verdict(0.5, 1e-3, "rounding")))
    assert "WRONG" not in drawn(report())


@pytest.mark.parametrize(
    ("ours", "expected", "error"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.2], [1.0, 2.0], 0.1),
        ([1.0, np.nan], [1.0, 2.0], np.inf),
        ([1.0, np.nan], [1.0, np.nan], 0.0),
        ([1.0, np.inf], [1.0, np.inf], 0.0),
        ([1.0, -np.inf], [1.0, np.inf], np.inf),
        ([0.0, 0.5], [0.0, 0.0], 0.5),
        ([1.0], [1.0, 2.0], np.inf),
        ([], [], 0.0),
    ],
)
def test_relative_error_by_hand(ours: list[float], expected: list[float], error: float) -> None:
    """The error is max |Δ| over max |reference|, and what cannot be compared is infinitely wrong."""
    got = relative_error({"t": np.array(ours, np.float64)}, {"t": np.array(expected, np.float64)})
    assert got == pytest.approx(error)


def test_a_missing_tensor_is_wrong() -> None:
    """An output that was never computed is not a right one."""
    assert relative_error({}, {"t": np.zeros(3)}) == np.inf


def test_another_kind_of_numbers_is_wrong() -> None:
    """Truth values, whole numbers and floats may be equal and are not the same answer."""
    assert relative_error({"t": np.ones(3, bool)}, {"t": np.ones(3)}) == np.inf
    assert relative_error({"t": np.ones(3, np.int64)}, {"t": np.ones(3)}) == np.inf


@pytest.mark.parametrize(
    ("timed_us", "lines"),
    [
        (
            {"plan": 1000.0, "onnxruntime": 1780.0, "openvino": 1200.0},
            ["1.78× faster than ONNX Runtime by default: 1.00 ms against 1.78 ms",
             "best single runtime: OpenVINO by default, 1.20 ms", "the plan (a, b): 1.00 ms"],
        ),
        (
            {"plan": 1100.0, "onnxruntime": 1500.0, "ov@0-1": 1000.0},
            ["1.50× faster than ONNX Runtime by default: 1.00 ms against 1.50 ms",
             "OpenVINO on ov@0-1 alone is the fastest here: 1.00 ms", "the plan (a, b): 1.10 ms"],
        ),
        (
            {"plan": 1100.0, "onnxruntime": 1000.0},
            ["ONNX Runtime alone is the fastest here, as it is by default: 1.00 ms", "the plan (a, b): 1.10 ms"],
        ),
        (
            {"plan": 1100.0, "onnxruntime": 1500.0, "onnxruntime/2": 1000.0},
            ["1.50× faster than ONNX Runtime by default: 1.00 ms against 1.50 ms",
             "ONNX Runtime with 2 threads alone is the fastest here: 1.00 ms", "the plan (a, b): 1.10 ms"],
        ),
        (
            {"plan": 1100.0, "onnxruntime": 1500.0, "openvino": 1000.0},
            ["1.50× faster than ONNX Runtime by default: 1.00 ms against 1.50 ms",
             "OpenVINO alone is the fastest here, as it is by default: 1.00 ms", "the plan (a, b): 1.10 ms"],
        ),
        (
            {"plan": 1000.0, "onnxruntime": 1010.0},
            ["as fast as ONNX Runtime by default: 1.00 ms against 1.01 ms",
             "best single runtime: ONNX Runtime by default, 1.01 ms", "the plan (a, b): 1.00 ms"],
        ),
        ({"plan": 1000.0}, ["the plan (a, b): 1.00 ms"]),
    ],
)  # fmt: skip
def test_what_was_gained_is_said_first(timed_us: dict[str, float], lines: list[str]) -> None:
    """Beside what the user had, the best single runtime, the plan; that a runtime wins alone is no failure."""
    shown = report(timed_us=timed_us, executed=min(timed_us, key=lambda name: timed_us[name]))
    assert headline(shown) == lines
    assert drawn(shown).splitlines()[: len(lines)] == lines


def test_without_a_planner_nothing_speaks_of_a_plan() -> None:
    """There is none, so neither the headline, nor the table, nor the timeline has one."""
    nothing = dict.fromkeys(("plan_id", "plan_version", "method", "planned_us", "lower_bound_us", "gap"))
    text = drawn(
        report(
            **nothing, plan_source="single", plan_cached=False, executed="ov@0-1", plan_processors_used=(),
            plan_segments=0, timed_us={"ov@0-1": 1000.0, "onnxruntime": 1500.0},
        )
    )  # fmt: skip
    assert text.splitlines()[:2] == [
        "1.50× faster than ONNX Runtime by default: 1.00 ms against 1.50 ms",
        "there was no planner to ask: OpenVINO on ov@0-1 alone, 1.00 ms",
    ]
    assert not re.search(r"\bplan(s|ned)?\b", text)


@pytest.mark.parametrize("seed", range(50))
def test_no_sentence_contradicts_another_or_the_table(seed: int) -> None:
    """Whatever was timed: who is called the fastest is, no factor is below 1, and every time was measured."""
    names = ["plan", "onnxruntime", "onnxruntime/2", "openvino", "ov@0", "ort@0-1"]
    drawing = np.random.default_rng(seed)
    timed_us = {name: float(drawing.uniform(900, 1100)) for name in names if name == "plan" or drawing.random() < 0.7}
    fastest = min(timed_us, key=lambda name: timed_us[name])
    text = drawn(report(timed_us=timed_us, executed=fastest))
    head, table = text.split("m: 4 ops in 2 super-ops")
    times = {f"{us / 1e3:.2f}" for us in timed_us.values()}
    assert set(re.findall(r"([\d.]+) ms", head)) <= times
    assert all(float(factor) >= 1 for factor in re.findall(r"([\d.]+)×", head))
    assert all(float(factor) >= 1 for factor in re.findall(r"([\d.]+) x measured", table))
    assert "slower than" not in head
    assert ("alone is the fastest" in head) == (fastest != "plan")
    assert re.findall(r"(?<!plan )measured +│? *([\d.]+) ms", table) == [f"{timed_us[fastest] / 1e3:.2f}"]

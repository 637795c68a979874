"""Benchmarks on phones take any phone's profiles, and say what they could not judge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import phones, prediction, splits


def write(folder: Path, phone: str, model: str, factor: float) -> None:
    """A chain of convolutions and activations as somebody's phone measured it: two CPU configurations, one partly."""
    ops, shapes, before = [], {"image": [1, 8, 32, 32]}, "image"
    for number in range(24):
        name, out = f"{model}/{number}_3x3/{'Conv2D' if number % 2 else 'Relu'}", f"t{number}"
        us: dict[str, float | None] = {"gpu": None if number == 3 else 40.0 + number}
        us |= {"cpu_big_1": factor * (90 + 7 * number), "cpu_big_3": factor * (50 + 5 * number)}
        ops.append({"name": name, "inputs": [before], "outputs": [out], "latency_us": us})
        shapes[out], before = [1, 8 + 4 * number, 32, 32], out
    moves = [{"shape": [1, 8, 32, 32], "cpu_to_gpu": 20.0, "gpu_to_cpu": 25.0}]
    content = {"ops": ops, "tensors": shapes, "transfer_us": moves}
    (folder / f"{phone}--{model}.json").write_text(json.dumps(content))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two networks on two phones that nobody has heard of."""
    for phone, factor in (("nokia", 1.0), ("fairphone", 1.4)):
        for model in ("one", "two"):
            write(tmp_path, phone, model, factor)
    return tmp_path


def test_any_phone_is_predicted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every network of unknown phones is left out in turn, where some op runs on one processor alone, too."""
    prediction.main([str(folder), "--rounds", "1"])
    printed = capsys.readouterr().out
    assert all(printed.count(f"{phone}--{model}") > 1 for phone in ("nokia", "fairphone") for model in ("one", "two"))


def test_any_phone_is_split(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Chains of an unknown phone are planned on its most cores."""
    splits.main(["--phones", str(folder), "--models", "nokia--one", "--budget", "0.2"])
    printed = capsys.readouterr().out
    assert "nokia--one chain" in printed
    assert "cpu_big_3" in printed


def test_what_only_auto_has_stands_beside_auto(folder: Path, tmp_path: Path) -> None:
    """Bound, gap and seconds are columns where ``auto`` is one, filled; the title says what else a reader asks."""
    out = tmp_path / "out.json"
    for methods, more in (("heft,mulayer", []), ("auto,heft", ["bound", "gap of auto", "seconds of auto"])):
        words = [str(folder), "--models", "nokia--one", "--methods", methods, "--budget", "0.2", "--json", str(out)]
        phones.main(words)
        (table,) = json.loads(out.read_text())["tables"]
        assert table["columns"] == ["profile", "CPU", "authors' HOPE:LP", *methods.split(","), *more]
        assert all(len(row) == len(table["columns"]) and None not in row[3:] for row in table["rows"])


@pytest.mark.parametrize(("methods", "headed"), [("heft,single", 0), ("ilp,dmdar", 1)])
def test_a_heading_has_lines(folder: Path, methods: str, headed: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The paper's headline is there where a method that it speaks of was planned with, beside HOPE's."""
    phones.main([str(folder), "--models", "nokia--one", "--methods", methods, "--budget", "0.2"])
    assert capsys.readouterr().out.count("HOPE:LP is faster by") == headed


def test_less_time_is_no_failure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With less than the budget that a limit is for, the figure is shown and not judged."""
    phones.main([str(folder), "--models", "nokia--one", "--methods", "auto,heft", "--budget", "0.2"])
    printed = capsys.readouterr().out
    assert "must be <= 0.92 with 5 s: smaller budget" in printed
    assert "NO" not in printed

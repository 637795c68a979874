"""The benchmark of the compiler's backend: what it makes of its rows, and where it is not run."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from benchmarks import backend


def row(model: str, config: str, us: float, ratio: float, error: float = 1e-3) -> dict[str, Any]:
    """One configuration of a network."""
    found = {"model": model, "config": config, "us": us, "ratio_to_best": ratio, "best": "eager"}
    return {**found, "error": error, "format_error": 1e-3}


def test_ours_are_judged_by_mean_worst_and_error() -> None:
    """Only our rows count; a ratio above its bar fails on a GPU, and is only said on the cores."""
    rows = [row("a", "eager", 100, 1.0), row("a", "hope", 50, 0.5), row("b", "hope", 200, 2.0, error=5e-3)]
    assert [(one.value, one.ok) for one in backend.judged(rows, bars=True)] == [
        (pytest.approx(1.0), False),
        (2.0, False),
        (pytest.approx(5.0), False),
    ]
    assert [one.ok for one in backend.judged(rows[:2], bars=True)] == [True, True, True]
    assert [one.ok for one in backend.judged(rows, bars=False)] == [None, None, None]


def test_a_table_has_a_line_for_each_network() -> None:
    """What a network was not measured with stays empty."""
    rows = [row("a", "eager", 1000, 1.0), row("a", "hope", 500, 0.5), row("b", "hope", 2000, 2.0)]
    assert backend.table(rows).rows == [["a", 1.0, 0.5, 0.5, "eager"], ["b", None, 2.0, 2.0, "eager"]]


def test_without_torchvision_or_a_gpu_it_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says so, and nothing is measured."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["backend"])
    with pytest.raises(SystemExit, match=r"^skipped: "):
        backend.main()


def test_calls_take_turns_and_the_first_ones_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is called in every round, and waited for before and after."""
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)  # imports torch's compiler
    said: list[str] = []
    calls = {name: partial(said.append, name) for name in "ab"}
    found = backend.interleaved(calls, 2, lambda: said.append("."))
    assert found.keys() == {"a", "b"}
    assert "".join(said) == (".a." * backend.TURN + ".b." * backend.TURN) * (backend.WARM + 2)

"""The page of figures and the chart say what the files of results say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.chart import LETTER, MARGIN, WIDTH, Strip, chart


def test_the_page_is_up_to_date() -> None:
    """What stands in docs/figures.md and in the chart is what the results give, and each names its circumstances."""
    assert page.main(["--check"]) == 0


def test_rows_are_told_with_their_limits(tmp_path: Path) -> None:
    """Values of every kind, databases and misses appear; a file that does not say where it was measured is refused."""
    rows = [
        {"measure": "speed", "database": "sqlite", "value": 1.234567, "must": ">= 1", "ok": True},
        {
            "measure": "solves",
            "database": "postgresql",
            "value": {"one_key": 1, "many": 12000},
            "must": "1",
            "ok": False,
        },
    ]
    result = {"machine": "two cores", "date": "2026-01-01", "commit": "abc", "notes": ["One.", "Two."], "rows": rows}
    (tmp_path / "service.json").write_text(json.dumps(result))
    text = page.page(tmp_path)
    assert "two cores; 2026-01-01; commit abc.\n\n- One.\n- Two.\n\n|" in text
    assert "| speed | sqlite | 1.235 | >= 1 | yes |" in text
    assert "| solves | postgresql | one key 1, many 12,000 | 1 | **no** |" in text
    (tmp_path / "service.json").write_text(json.dumps({**result, "commit": ""}))
    with pytest.raises(page.BadResultError, match="commit"):
        page.page(tmp_path)


def test_a_ratio_is_to_the_best_rival_that_has_a_figure(tmp_path: Path) -> None:
    """A dot is ours over the least of the rivals; a row that no rival has is no dot."""
    table = {
        "columns": ["network", "ours", "one", "other"],
        "rows": [["a", 2.0, 4.0, 8.0], ["b", "3.0*", None, 2.0], ["c", 1.0, None, None]],
    }
    (tmp_path / "some.json").write_text(json.dumps({"tables": [table]}))
    strip = Strip("title", "some.json", "ours", ("one", "other"), ("network",))
    assert strip.ratios(tmp_path) == {"a": 0.5, "b": 1.5}


def test_labels_of_the_chart_are_read() -> None:
    """The two labels of a strip stand beside each other within the chart, however long their names are."""
    ends = re.findall(r'<text x="([\d.]+)" y="(\d+)" text-anchor="(start|end)">([^<]+)</text>', chart(page.RESULTS))
    rows: dict[str, list[tuple[float, float]]] = {}
    for x, y, anchor, text in ends:
        left = float(x) - (LETTER * len(text) if anchor == "end" else 0)
        rows.setdefault(y, []).append((left, left + LETTER * len(text)))
    assert len(rows) > 1
    for best, worst in rows.values():
        assert MARGIN <= best[0] < best[1] < worst[0] < worst[1] <= WIDTH - MARGIN

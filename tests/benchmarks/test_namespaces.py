"""A table of hosts that is measured in several calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.namespaces.__main__ import beside, standing, written
from benchmarks.namespaces.rows import BY_EDGES, TIERS


def row(network: str, link: str, edges: int, ours: float, commit: str) -> dict[str, Any]:
    """A row in which every tier and method takes 2 ms."""
    others = dict.fromkeys((*TIERS, "auto", *BY_EDGES[edges], "ours planned", "bound"), 2000.0)
    said = {"kind": "row", "network": network, "link": link, "edges": edges, "commit": commit}
    return said | others | {"ours": ours, "ours bytes": 1, "cloud bytes": 2}


def test_a_file_of_results_grows_by_what_another_call_measures(tmp_path: Path) -> None:
    """Rows of other links, networks and numbers of edges stay with their commits; what is measured anew replaces."""
    file = tmp_path / "found.json"
    assert standing(file) == standing(None) == []
    written(file, [row("a", "wifi", 1, 1000.0, "x"), row("b", "wifi", 1, 1500.0, "x")])
    written(file, beside(standing(file), [row("b", "wifi", 1, 500.0, "y"), row("b", "wifi", 4, 400.0, "y")]))
    found = [(one["network"], one["edges"], one["ours"], one["commit"]) for one in standing(file)]
    assert found == [("a", 1, 1000.0, "x"), ("b", 1, 500.0, "y"), ("b", 4, 400.0, "y")]
    means = {one["measure"]: one["value"] for one in json.loads(file.read_text())["rows"]}
    assert means["one edge: ours ÷ the best single tier, mean"] == 0.375
    assert means["4 edges: ours ÷ the best single tier, mean"] == 0.2

"""A table of hosts that is measured in several calls, with any number of edges."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import results
from benchmarks.namespaces.__main__ import beside, main, standing, written
from benchmarks.namespaces.rows import DEVICE_SHARE, TIERS, methods_of, scene_of


def row(network: str, link: str, edges: int, ours: float, commit: str) -> dict[str, Any]:
    """A row in which every tier and method takes 2 ms."""
    others = dict.fromkeys((*TIERS, "auto", *methods_of(edges), "ours planned", "bound"), 2000.0)
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


def test_any_number_of_edges_has_its_shares_and_methods(tmp_path: Path) -> None:
    """Two edges are a scene of their own, and their rows a table: no more than a core for all edges together."""
    for edges in range(1, 5):
        scene = scene_of("wifi", edges)
        assert len(scene.hosts) == edges + 1
        assert sum(scene.shares[host] for host in scene.hosts if host != "cloud") <= 1
        assert DEVICE_SHARE < scene.shares["edge"] < scene.shares["cloud"]
    file = tmp_path / "found.json"
    written(file, [row("a", "wifi", 2, 500.0, "x")])
    content = json.loads(file.read_text())
    assert [table["title"] for table in content["tables"]] == ["Latency, ms, edges: 2"]
    assert content["rows"][0]["value"] == 0.25


@pytest.mark.parametrize("wrong", [["--edges", "5"], ["--edges", "two"], ["--links", "wifi,6g"], ["--parts", "all"]])
def test_what_is_not_there_is_refused_before_anything_is_made(
    wrong: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of edges, links and parts one is named that the benchmark does not have: one line says which there are."""
    monkeypatch.setattr("sys.argv", ["namespaces", *wrong])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "there are" in capsys.readouterr().err


def test_where_no_namespaces_can_be_made_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without root nothing is made or measured, and one line says what it takes."""
    monkeypatch.setattr("sys.argv", ["namespaces"])
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("something was made"))
    main()
    assert "this takes root" in capsys.readouterr().out


def test_notes_stay_and_results_change_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody noted in a file stays when it is written anew, and a file of results makes no other commit."""
    folder = tmp_path / results.RESULTS
    folder.mkdir(parents=True)
    file, code = folder / "found.json", tmp_path / "code.py"
    file.write_text(json.dumps({"notes": ["by hand"]}))
    code.write_text("")
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "first"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    monkeypatch.setattr(results, "ROOT", tmp_path)
    clean = results.commit()
    for _ in range(2):
        written(file, [row("a", "wifi", 1, 1000.0, "x")])
    content = json.loads(file.read_text())
    assert (content["notes"], content["commit"]) == (["by hand"], clean)
    code.write_text("changed")
    assert results.commit() == f"{clean}+"

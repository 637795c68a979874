"""The benchmark of several networks at once: what it makes of phones, and of a mix on this machine."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path

import pytest

from agent_sdk.scheduling.mixes import Stream, read_mix
from benchmarks.mixes import __main__ as mixes
from benchmarks.mixes import capacity, phones
from benchmarks.profiles import find
from tests.benchmarks.test_phones import write


def test_phones_are_replayed_under_every_policy(tmp_path: Path) -> None:
    """Of any phone's profiles, least slack on both processors misses no more than each on its best one in order."""
    for model, factor in (("one", 1.0), ("two", 1.3), ("three", 0.8)):
        write(tmp_path, "nokia", model, factor)
    table, found = phones.replay(find(tmp_path))
    assert len(table.rows) == len(phones.LOADS)
    by_load = found["nokia"]
    assert all(one["least_slack"] <= one["fifo"] for one in by_load.values())
    assert by_load[max(phones.LOADS)]["fifo"] > by_load[min(phones.LOADS)]["fifo"]


def test_a_capacity_is_where_deadlines_begin_to_be_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest load that is kept is found by halving: of who keeps up to 1.5 that is 1.5."""
    monkeypatch.setattr(capacity, "at_load", lambda mix, load, *_, **__: load)
    monkeypatch.setattr(capacity, "missed", lambda load: 0.0 if load <= 1.5 else 1.0)
    mix = read_mix("a@10ms")

    def ask(stream: Stream, due_ms: float | None) -> Future[None]:
        raise AssertionError("nothing is run")

    assert capacity.capacity(mix, {"a": 1.0}, ask, 1.0, 12) == pytest.approx(1.5, rel=0.01)


def test_decisions_are_judged_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without time for mixes the benchmark still judges decisions, and writes rows."""
    monkeypatch.setattr("benchmarks.mixes.decisions.ROUNDS", 2)
    monkeypatch.setattr("sys.argv", ["mixes", "--minutes", "0", "--json", str(tmp_path / "found.json")])
    mixes.main()
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert [sorted(row) for row in rows] == [["measure", "must", "ok", "value"]] * 2

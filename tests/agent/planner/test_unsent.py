"""Figures that cannot be sent: kept, sent at the next start, and never in the way of a plan."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from agent_sdk.records import Records
from hope_schema import Observations
from hope_schema.hashing import digest
from tests.agent.planner.planner_double import ScriptedTransport, plan_answer, problem, small_plan
from tests.agent.planner.supplying import CURRENT, FIGURES, GONE, MISSING_TWICE, RECEIPT, never, obtain, supplier


def test_a_foreseen_plan_answers_where_the_planner_goes_away(tmp_path: Path) -> None:
    """Figures that could not be sent are kept, and the plan that was there before them is used."""
    foreseen, gone = plan_answer(small_plan()), GONE
    obtained, _ = obtain(tmp_path, foreseen, *MISSING_TWICE, gone)
    assert (obtained.source, obtained.plan) == ("planner", small_plan())
    assert "kept and sent at the next start" in obtained.notes[-2]
    assert "the plan that it had before" in obtained.notes[-1]


def test_figures_that_could_not_be_sent_are_sent_at_the_next_start(tmp_path: Path) -> None:
    """A planner that goes away while the device measures costs nothing: the report counts, the disk keeps."""
    obtained, _ = obtain(tmp_path, problem(404), *MISSING_TWICE, GONE)
    assert (obtained.source, obtained.profiled_signatures) == ("single", 1)
    assert obtained.profiling_seconds > 0
    assert "kept and sent at the next start" in obtained.notes[-1]
    _, paths = obtain(tmp_path, RECEIPT, *CURRENT, measure=never)
    assert paths == ["POST /profiles", "POST /plans", "POST /profiles/missing"]
    _, paths = obtain(tmp_path, httpx.Response(304), measure=never)
    assert paths == ["GET /plans/plan-1"]


def test_what_was_measured_is_told_when_the_planner_goes_away_afterwards(tmp_path: Path) -> None:
    """A planner that fails between upload and plan leaves the number of measured signatures right."""
    gone = GONE
    obtained, _ = obtain(tmp_path, problem(404), *MISSING_TWICE, RECEIPT, gone)
    assert (obtained.source, obtained.profiled_signatures) == ("single", 1)


def test_kept_figures_that_the_planner_refuses_are_dropped(tmp_path: Path) -> None:
    """Figures that the planner will never take cost one note, not every start."""
    obtain(tmp_path, problem(404), *MISSING_TWICE, GONE)
    obtained, _ = obtain(tmp_path, problem(422), *CURRENT, measure=never)
    assert "dropped" in obtained.notes[-1]
    obtained, paths = obtain(tmp_path, httpx.Response(304))
    assert paths == ["GET /plans/plan-1"]
    assert obtained.notes == ()


def test_kept_figures_that_a_planner_chokes_on_do_not_keep_it_from_planning(tmp_path: Path) -> None:
    """A planner that fails on an upload from an earlier start is asked for its plan all the same."""
    obtain(tmp_path, problem(404), *MISSING_TWICE, GONE)
    obtained, _ = obtain(tmp_path, problem(500), *CURRENT, measure=never)
    assert obtained.source == "planner"
    assert "kept on" in obtained.notes[-1]
    _, paths = obtain(tmp_path, RECEIPT, httpx.Response(304))
    assert paths == ["POST /profiles", "GET /plans/plan-1"]


@pytest.mark.parametrize("answer", [problem(404), httpx.Response(429, headers={"Retry-After": "20"}), problem(503)])
def test_kept_figures_cost_a_start_no_more_than_a_note(answer: httpx.Response, tmp_path: Path) -> None:
    """Whatever the planner says of an upload from an earlier start, a plan that is current is confirmed at once."""
    obtain(tmp_path, *CURRENT)
    figures = FIGURES
    Records(tmp_path / "unsent" / digest("http://planner")[:32], Observations, 1).keep("kept", figures)
    obtained, paths = obtain(tmp_path, answer, httpx.Response(304), measure=never, attempts=4)
    assert paths == ["POST /profiles", "GET /plans/plan-1"]
    assert obtained.source == "planner"
    assert "kept on" in obtained.notes[-1]


def test_figures_that_can_neither_be_sent_nor_kept_are_said_to_be_lost(tmp_path: Path) -> None:
    """Without a planner and without a disk, nobody is promised that the figures will be sent later."""
    (tmp_path / "unsent").write_text("in the way")
    obtained, _ = obtain(tmp_path, problem(404), *MISSING_TWICE, GONE)
    assert "neither be sent nor kept" in obtained.notes[-1]


def test_figures_are_kept_whoever_tidies_up_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may send and remove a file of the same folder while the oldest are looked for."""
    unsent = Records(tmp_path, Observations, 1)
    figures = FIGURES
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda here, pattern: [*glob(here, pattern), here / "gone.json"])
    assert unsent.keep("kept", figures)


def test_kept_figures_are_bounded_and_whole(tmp_path: Path) -> None:
    """A long time without a planner keeps the newest uploads only, and a damaged file counts as none."""
    unsent = Records(tmp_path, Observations, 2)
    figures = FIGURES
    for age, name in ((300, "a"), (200, "b"), (100, "c")):
        before = set(tmp_path.iterdir())
        unsent.keep(name, figures.model_copy(update={"upload_id": name}))
        (new,) = set(tmp_path.iterdir()) - before
        os.utime(new, (new.stat().st_mtime - age,) * 2)
    assert {kept.upload_id for kept in unsent.all()} == {"b", "c"}
    new.write_bytes(b"{")
    assert {kept.upload_id for kept in unsent.all()} == {"b"}
    assert not new.exists()


def test_measured_times_that_cannot_be_sent_are_reported_not_raised(tmp_path: Path) -> None:
    """Execution figures are a gift to the fleet: losing them never fails a run."""
    source = supplier(tmp_path, ScriptedTransport(GONE))
    message = source.upload(FIGURES)
    source.close()
    assert "not sent" in message

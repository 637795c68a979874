"""What can go wrong around obtaining a plan, from the agent's side: spoilt files, settings and plans."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from agent_sdk import Agent, errors
from agent_sdk.files import PART, replace_whole
from agent_sdk.journey.trial import Trial, hold_trial
from agent_sdk.journey.verify import relative_error
from agent_sdk.model import read_model
from agent_sdk.planner.client import PlannerClient, ServedPlan
from agent_sdk.planner.identity import device_id, store_token, stored_token
from hope_schema import PlanRequest
from planner_api.db.outage import FULL
from tests.agent.haste import hasten
from tests.agent.models import BRANCHING, branching_model, expected
from tests.disks import fill, small_disk
from tests.planner.in_thread import InThread

pytestmark = pytest.mark.usefixtures("hasty")


def test_an_illegal_plan_never_runs_and_is_not_kept(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planner that orders steps before what they read yields to the best single processor, and is forgotten."""
    honest = PlannerClient.plan

    def backwards(self: PlannerClient, request: PlanRequest, *, wait_s: float | None = None) -> ServedPlan:
        served = honest(self, request, wait_s=wait_s)
        plan = served.reply.plan.model_copy(update={"order": served.reply.plan.order[::-1]})
        return served.model_copy(update={"reply": served.reply.model_copy(update={"plan": plan})})

    with monkeypatch.context() as patched:
        patched.setattr(PlannerClient, "plan", backwards)
        with agent.load(BRANCHING, background=False) as session:
            assert session.latest.obtained.source == "single"
            assert "cannot be carried out" in session.notes[0]
    assert list((tmp_path / "plans").glob("*.json")) == []
    with agent.load(BRANCHING, background=False) as session:
        assert session.latest.obtained.source == "planner"


def test_an_embedded_planner_rests_during_a_trial(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it computes in the background would take a core from what is timed; afterwards it goes on."""
    seen: list[bool | str] = []

    def seen_trial(*given: Any) -> Trial:
        with agent._supplier.resting():  # another session's trial, which ends sooner
            pass
        seen.append("trial")
        return hold_trial(*given)

    monkeypatch.setattr(InThread, "rest", lambda _, resting: seen.append(resting))
    monkeypatch.setattr("agent_sdk.journey.opening.hold_trial", seen_trial)
    with agent.load(BRANCHING, background=False):
        assert seen == [True, "trial", False] * (len(seen) // 3)
        assert seen


def test_who_waits_for_a_better_plan_does_so_where_nothing_more_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A plan that rests on rules, asked for in between, is the improved one: it is that which is tried."""
    honest, asked = PlannerClient.plan, []

    def provisional(self: PlannerClient, request: PlanRequest, *, wait_s: float | None = None) -> ServedPlan:
        served = honest(self, request, wait_s=wait_s)
        asked.append(wait_s)
        if wait_s:
            return served
        plan = served.reply.plan.model_copy(update={"filled": ("by a rule",)})
        reply = served.reply.model_copy(update={"plan": plan, "provisional": True})
        return served.model_copy(update={"reply": reply})

    with Agent(processors="ort@0", cache=tmp_path, wait_s=0.5) as agent:
        model = read_model(BRANCHING)
        agent.obtain(model)
        monkeypatch.setattr(PlannerClient, "plan", provisional)
        found = agent.obtain(model, renew=True, at_once=True)
    assert asked == [None, 0.5]
    assert found.plan is not None
    assert not found.plan.filled
    assert not found.profiled_signatures


def test_a_spoilt_device_id_is_made_anew(tmp_path: Path) -> None:
    """A file that is no text counts as none, and is replaced for good."""
    (tmp_path / "device-id").write_bytes(b"\xff\xfe")
    made = device_id(tmp_path)
    assert device_id(tmp_path) == made


def test_a_spoilt_token_counts_as_none(tmp_path: Path) -> None:
    """A token file that is no text leaves the device without a token, which the planner then says."""
    store_token(tmp_path, "http://planner", "token").write_bytes(b"\xff\xfe")
    assert stored_token(tmp_path, "http://planner") is None


def put_a_file_in_its_place(cache: Path) -> None:
    """No directory can be made there."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    cache.write_text("in the way")


def put_a_pipe_in_its_place(cache: Path) -> None:
    """Opening it waits for ever."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(cache)


def give_it_to_somebody_else(cache: Path) -> None:
    """What is in it may be meant to mislead."""
    if os.geteuid():
        pytest.skip("only root can give a directory away")
    cache.mkdir(parents=True)
    os.chown(cache, 12345, -1)


@pytest.mark.parametrize(
    "trouble",
    [put_a_file_in_its_place, put_a_pipe_in_its_place, give_it_to_somebody_else, None],
    ids=["file", "pipe", "owner", "full"],
)
def test_a_cache_that_cannot_be_used_costs_persistence_only(
    trouble: Callable[[Path], None] | None, tmp_path: Path
) -> None:
    """The plan is made and run all the same, in a temporary directory that is gone afterwards; one sentence says so."""
    cache = tmp_path / "deep" / "cache"
    inputs, right = expected(BRANCHING, seed=6)
    with ExitStack() as ending:
        if trouble is None:  # a file system of one page is full after one file
            ending.enter_context(small_disk(cache, "4k"))
        else:
            trouble(cache)
        with Agent(processors="ort@0", cache=cache) as agent, agent.load(BRANCHING, background=False) as session:
            assert session.latest.obtained.source == "planner"
            (note,) = [note for note in session.notes if "nothing is kept" in note]
            assert str(cache) in note
            assert "HOPE_CACHE_DIR" in note
            assert relative_error(session.run(inputs), right) <= 1e-5
            used = agent._kept.path
        assert not used.exists()


def test_a_disk_that_fills_up_is_named(tmp_path: Path) -> None:
    """Later networks are answered all the same, and a note says that the disk is full and what helps."""
    with (
        small_disk(tmp_path / "cache", "16m"),
        Agent(processors="ort@0", cache=tmp_path / "cache") as agent,
        agent.load(BRANCHING, background=False) as session,
    ):
        assert session.latest.obtained.source == "planner"
        fill(tmp_path / "cache" / "full")
        source = branching_model(channels=4).SerializeToString()
        with agent.load(source, background=False) as later:
            assert [note for note in later.notes if FULL in note]
            inputs, right = expected(source, seed=6)
            assert relative_error(later.run(inputs), right) <= 1e-5


@pytest.mark.parametrize("place", ["plans", "unsent", "ort", "profiling.lock", "device-id"])
@pytest.mark.parametrize("thing", ["file", "pipe", "directory"])
def test_whatever_stands_in_the_cache_hangs_nobody(place: str, thing: str, tmp_path: Path) -> None:
    """A pipe instead of a file or a folder, a folder instead of a file: what is kept there is not, the run goes on."""
    match thing:
        case "file":
            (tmp_path / place).write_bytes(b"\xff")
        case "pipe":
            os.mkfifo(tmp_path / place)
        case "directory":
            (tmp_path / place).mkdir()
    inputs, right = expected(BRANCHING, seed=6)
    with Agent(processors="ort@0", cache=tmp_path) as agent, agent.load(BRANCHING, background=False) as session:
        assert relative_error(session.run(inputs), right) <= 1e-5


@pytest.mark.parametrize("said", ["argument", "variable"])
def test_what_is_kept_stays_where_the_process_was(
    said: str, hasty: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is named from there is the same one when the process works elsewhere, as a service does in /."""
    begun, later = tmp_path / "begun", tmp_path / "later"
    begun.mkdir()
    later.mkdir()
    monkeypatch.chdir(begun)
    monkeypatch.setenv("HOPE_CACHE_DIR", "kept")
    with Agent(processors="ort@0", cache="kept" if said == "argument" else None) as agent:
        monkeypatch.chdir(later)
        agent.load(BRANCHING, background=False).close()
    assert [*(begun / "kept").glob("plans/*")]
    assert not [*later.iterdir()]


def test_a_kept_plan_that_is_a_pipe_is_asked_for_anew(tmp_path: Path) -> None:
    """Each file in the cache may have been replaced by anything."""
    with Agent(processors="ort@0", cache=tmp_path) as agent:
        agent.obtain(read_model(BRANCHING))
    (kept,) = (tmp_path / "plans").glob("*.json")
    kept.unlink()
    os.mkfifo(kept)
    with Agent(processors="ort@0", cache=tmp_path) as agent:
        assert agent.obtain(read_model(BRANCHING)).source == "planner"


def test_what_a_killed_process_left_half_written_goes(tmp_path: Path) -> None:
    """With the next write into its folder, once it is old enough to be nobody's; other people's files stay."""
    folder = tmp_path / "plans"
    folder.mkdir()
    old, new = (folder / f"{name}".join(PART) for name in "ab")
    others = [folder / "film.part", tmp_path / "below" / "film.part"]
    others[1].parent.mkdir()
    for path in (old, new, *others):
        path.write_text("half")
    for path in (old, *others):
        os.utime(path, (ago := time.time() - 600, ago))
    with Agent(processors="ort@0", cache=tmp_path):
        replace_whole(folder / "a.json", b"{}")
    assert not old.exists()
    assert all(path.exists() for path in (new, *others))


def measure_in(cache: str, ready: Barrier, measured: SimpleQueue[int]) -> None:
    """Obtain the plan in a process of its own; say how many signatures that took."""
    patched = pytest.MonkeyPatch()
    hasten(patched)
    with Agent(processors="ort@0", cache=Path(cache)) as agent:
        model = read_model(BRANCHING)
        ready.wait(60)
        measured.put(agent.obtain(model).profiled_signatures)


def test_of_two_processes_on_one_cache_one_measures(tmp_path: Path) -> None:
    """The other one waits, and uses what the first one found."""
    spawn = multiprocessing.get_context("spawn")
    ready, measured = spawn.Barrier(2), spawn.SimpleQueue()
    Agent(processors="ort@0", cache=tmp_path).close()
    both = [spawn.Process(target=measure_in, args=(str(tmp_path), ready, measured)) for _ in range(2)]
    for process in both:
        process.start()
    found = sorted(measured.get() for _ in both)
    for process in both:
        process.join()
    assert found[0] == 0
    assert found[1] > 0


def test_a_setting_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that the embedded planner cannot use is bad input, named with its value."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "abc")
    with (
        Agent(processors="ort@0", cache=tmp_path) as agent,
        pytest.raises(errors.InputError, match="HOPE_SOLVE_BUDGET_S='abc'"),
    ):
        agent.load(BRANCHING, background=False)

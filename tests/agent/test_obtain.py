"""What can go wrong around obtaining a plan, from the agent's side: spoilt files, settings and plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent_sdk import Agent, errors
from agent_sdk.planner.client import PlannerClient, ServedPlan
from agent_sdk.planner.identity import device_id, store_token, stored_token
from hope_schema import PlanRequest
from tests.agent.models import BRANCHING


def test_an_illegal_plan_never_runs_and_is_not_kept(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planner that orders steps before what they read yields to the best single processor, and is forgotten."""
    honest = PlannerClient.plan

    async def backwards(self: PlannerClient, request: PlanRequest, *, wait_s: float | None = None) -> ServedPlan:
        served = await honest(self, request, wait_s=wait_s)
        plan = served.reply.plan.model_copy(update={"order": served.reply.plan.order[::-1]})
        return replace(served, reply=served.reply.model_copy(update={"plan": plan}))

    with monkeypatch.context() as patched:
        patched.setattr(PlannerClient, "plan", backwards)
        with agent.load(BRANCHING) as session:
            assert session.obtained.source == "single"
            assert "cannot be carried out" in session.notes[0]
    assert list((tmp_path / "plans").glob("*.json")) == []
    with agent.load(BRANCHING) as session:
        assert session.obtained.source == "planner"


def test_a_spoilt_device_id_is_made_anew(tmp_path: Path) -> None:
    """A file that is no text counts as none, and is replaced for good."""
    (tmp_path / "device-id").write_bytes(b"\xff\xfe")
    made = device_id(tmp_path)
    assert device_id(tmp_path) == made


def test_a_spoilt_token_counts_as_none(tmp_path: Path) -> None:
    """A token file that is no text leaves the device without a token, which the planner then says."""
    store_token(tmp_path, "http://planner", "token").write_bytes(b"\xff\xfe")
    assert stored_token(tmp_path, "http://planner") is None


def test_a_place_that_is_none_is_named(tmp_path: Path) -> None:
    """Where the embedded planner cannot keep its database, a single processor runs and the note names the cure."""
    (tmp_path / "file").write_text("in the way")
    with Agent(processors="ort@0", cache=tmp_path / "file" / "cache") as agent, agent.load(BRANCHING) as session:
        assert session.obtained.source == "single"
        assert "HOPE_CACHE_DIR" in session.notes[0]


def test_a_setting_that_is_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that the embedded planner cannot use is bad input, named with its value."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "abc")
    with (
        Agent(processors="ort@0", cache=tmp_path) as agent,
        pytest.raises(errors.InputError, match="HOPE_SOLVE_BUDGET_S='abc'"),
    ):
        agent.load(BRANCHING)

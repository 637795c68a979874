"""What a session that serves does with a newer plan."""

from __future__ import annotations

import threading

import pytest

from agent_sdk import Agent
from agent_sdk.errors import DeviceClosedError, ExecutionError, OutOfMemory
from agent_sdk.journey.opening import Opening
from agent_sdk.journey.prepared import Prepared
from agent_sdk.journey.services import Services
from agent_sdk.journey.verify import relative_error
from tests.agent.models import BRANCHING, expected, newer_plan


def test_a_refresh_takes_up_a_newer_plan_while_runs_go_on(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A better plan replaces the old one under running requests, none of which fails or answers wrongly."""
    inputs, right = expected(BRANCHING, seed=3)
    with agent.load(BRANCHING, background=False) as session:
        assert agent.refresh(session) is False
        newer = newer_plan(agent, session, "ort@0")
        monkeypatch.setattr(Services, "obtain", lambda *_, **__: newer)
        stop = threading.Event()
        worst: list[float] = []

        def keep_running() -> None:
            while not stop.is_set():
                worst.append(relative_error(session.run(inputs), right))

        threads = [threading.Thread(target=keep_running) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            assert agent.refresh(session) is True
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert session.plan == newer.plan
        assert max(worst) <= 1e-5
        assert relative_error(session.run(inputs), right) <= 1e-5
        assert sum(session.stats.answered.values()) == len(worst) + 1


def test_a_failed_refresh_changes_nothing_and_is_repeated(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a newer plan needs may be missing for a moment: the old one answers on, and the next refresh tries again."""
    inputs, right = expected(BRANCHING, seed=4)
    with agent.load(BRANCHING, background=False) as session:
        before = (session.latest.obtained, session.plan, session.latest, list(session.notes))
        newer = newer_plan(agent, session, "ort@0")
        monkeypatch.setattr(Services, "obtain", lambda *_, **__: newer)
        compiled = Opening._compile
        monkeypatch.setattr(Opening, "_compile", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            agent.refresh(session)
        assert (session.latest.obtained, session.plan, session.latest, session.notes) == before
        assert relative_error(session.run(inputs), right) <= 1e-5
        monkeypatch.setattr(Opening, "_compile", compiled)
        assert agent.refresh(session) is True
        assert session.plan == newer.plan


def test_a_newer_plan_that_cannot_run_leaves_the_old_one(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """For want of memory beside the old plan, say: that answers on, which is said, and the next refresh tries again.

    However often it fails, and in whatever words, it is the latest reason that is said.
    """
    lacking = iter(range(7, 99))

    def fail(*args: object, **kwargs: object) -> None:
        raise OutOfMemory(f"ort@1: no room for {next(lacking)} bytes")

    inputs, right = expected(BRANCHING, seed=4)
    with agent.load(BRANCHING, background=False) as session:
        before = (session.latest.obtained, session.plan, session.latest)
        newer = newer_plan(agent, session, "ort@0")
        monkeypatch.setattr(Services, "obtain", lambda *_, **__: newer)
        with monkeypatch.context() as patch:
            patch.setattr("agent_sdk.journey.opening.Executor", fail)
            assert [agent.refresh(session) for _ in range(3)] == [False] * 3
        assert (session.latest.obtained, session.plan, session.latest) == before
        (said,) = [note for note in session.notes if "no room" in note]
        assert f"no room for {next(lacking) - 1} bytes" in said
        assert relative_error(session.run(inputs), right) <= 1e-5
        assert agent.refresh(session) is True
        assert session.plan == newer.plan


def test_a_plan_that_made_room_meanwhile_is_not_renewed(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other shapes may take its place while a newer one is made: that is no error, and the newer one does not stay."""
    with agent.load(BRANCHING, background=False) as session:
        newer, older, opened = newer_plan(agent, session, "ort@0"), session.latest, list[Prepared]()

        def done(opening: Opening, **named: bool) -> Prepared:
            session.plans._models.clear()
            opened.append(own(opening, **named))
            return opened[0]

        own = Opening.done
        monkeypatch.setattr(Services, "obtain", lambda *_, **__: newer)
        monkeypatch.setattr(Opening, "done", done)
        assert agent.refresh(session) is False
        assert session.latest is older
        with pytest.raises(DeviceClosedError):
            opened[0].run(session.draw())
        older.close()


def test_a_closed_session_takes_up_no_plan(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh after the end is refused and opens nothing that nobody would close."""
    session = agent.load(BRANCHING, background=False)
    newer = newer_plan(agent, session, "ort@0")
    monkeypatch.setattr(Services, "obtain", lambda *_, **__: newer)
    session.close()
    with pytest.raises(ExecutionError, match="closed"):
        agent.refresh(session)
    with pytest.raises(ExecutionError, match="closed"):
        session.run(expected(BRANCHING, seed=4)[0])


def test_an_old_plan_that_hangs_keeps_no_new_one_away(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh has succeeded once the new plan is in place, also where the old one cannot be freed."""
    inputs, right = expected(BRANCHING, seed=4)
    with agent.load(BRANCHING, background=False) as session:
        newer = newer_plan(agent, session, "ort@0")
        monkeypatch.setattr(Services, "obtain", lambda *_, **__: newer)
        old = session.latest
        close = old.close

        def hang() -> None:
            raise ExecutionError("a run of this session hangs")

        monkeypatch.setattr(old, "close", hang)
        assert agent.refresh(session) is True
        assert session.plan == newer.plan
        assert any("hangs" in note for note in session.notes)
        assert relative_error(session.run(inputs), right) <= 1e-5
        close()

"""What an application sees of a plan that is made behind its answers, and what it reads before and after."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from agent_sdk import Agent, Session
from agent_sdk.cli.examine import examine
from agent_sdk.errors import DeviceClosedError, InputError
from agent_sdk.first.measuring import Measuring
from agent_sdk.journey.services import Services
from agent_sdk.progress import Progress
from agent_sdk.runtimes.ort.whole import WholeOrt
from tests.agent.models import BRANCHING

X = np.zeros((1, 3, 16, 16), np.float32)


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Events that say when measuring has begun, and that it may go on."""
    begun, going_on = threading.Event(), threading.Event()
    measured = Measuring.measured

    def held_up(self: Measuring, *given: Any, **named: Any) -> Any:
        begun.set()
        assert going_on.wait(60)
        return measured(self, *given, **named)

    monkeypatch.setattr(Measuring, "measured", held_up)
    return begun, going_on


def test_a_preparation_is_seen(agent: Agent, measuring: tuple[threading.Event, threading.Event]) -> None:
    """There is no plan until it is ready; a note and a callback say what is done; waiting ends when it is over."""
    begun, going_on = measuring
    heard: list[Progress] = []
    session = agent.load(BRANCHING, progress=heard.append)
    session.run({"x": X})
    assert begun.wait(60)
    assert (session.ready, session.plan, session.wait(0.01)) == (False, None, False)
    assert re.fullmatch(r"measuring, \d+ of 55 s", session.notes[-1])
    going_on.set()
    assert session.wait(120)
    assert session.ready
    assert session.plan is not None
    assert session.plan == session.latest.obtained.plan
    assert not any("measuring" in note for note in session.notes)
    phases = list(dict.fromkeys(each.phase for each in heard))
    assert [phase for phase in phases if phase in ("asking the planner", "measuring")] == [
        "asking the planner",
        "measuring",
    ]


def test_a_renewal_that_is_over_is_in_no_note(agent: Agent) -> None:
    """A session that has asked for a newer plan no longer says that it asks."""
    heard: list[Progress] = []
    session = agent.load(BRANCHING, background=False, progress=heard.append)
    heard.clear()
    session.preparing.refresh()
    assert heard
    assert not {str(each) for each in heard} & set(session.notes)


def test_whatever_is_done_behind_is_in_the_notes(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what nobody knows the time of; once nothing is done there, the note is gone."""
    begun, going_on, obtain = threading.Event(), threading.Event(), Services.obtain
    heard: list[Progress] = []

    def held_up(*given: Any, **named: Any) -> Any:
        begun.set()
        assert going_on.wait(60)
        return obtain(*given, **named)

    monkeypatch.setattr(Services, "obtain", held_up)
    session = agent.load(BRANCHING, progress=heard.append)
    session.run({"x": X})
    assert begun.wait(60)
    assert heard[-1].most_s is None
    assert session.notes[-1] == str(heard[-1])
    assert str(heard[-1]) not in (told := session.explain(runs=1)).notes, "an explanation outlives what is being done"
    assert told.why != str(heard[-1])
    going_on.set()
    assert session.wait(120)
    assert not {each.phase for each in heard} & set(session.notes)


def test_a_run_ends_as_it_began_while_the_plan_takes_over(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the whole network has begun it answers, and nobody loads it again or keeps it afterwards."""
    begun, ending, run, obtain = threading.Event(), threading.Event(), WholeOrt.run, Services.obtain

    def held_up(self: WholeOrt, *given: Any, **named: Any) -> dict[str, Any]:
        if threading.current_thread().name.startswith("late"):
            begun.set()
            assert ending.wait(120)
        return run(self, *given, **named)

    def later(*given: Any, **named: Any) -> Any:
        assert begun.wait(60)
        return obtain(*given, **named)

    monkeypatch.setattr(Services, "obtain", later)
    with agent.load(BRANCHING) as session, ThreadPoolExecutor(1, "late") as pool:
        before = session.run({"x": X})
        monkeypatch.setattr(WholeOrt, "run", held_up)
        late = pool.submit(session.run, {"x": X})
        assert session.wait(120)
        assert session.plan is not None
        ending.set()
        np.testing.assert_array_equal(late.result(60)["y"], before["y"])
        assert session.plans.whole.loaded is None


def test_who_waits_is_told_of_a_close(agent: Agent, measuring: tuple[threading.Event, threading.Event]) -> None:
    """A session that is closed is never ready: who waits for it hears so, and does not wait on."""
    begun, going_on = measuring
    session = agent.load(BRANCHING)
    session.run({"x": X})
    assert begun.wait(60)
    raised: list[Exception] = []

    def waits() -> None:
        try:
            session.wait()
        except DeviceClosedError as error:
            raised.append(error)

    waiting = threading.Thread(target=waits)
    waiting.start()
    session.close()
    going_on.set()
    waiting.join(60)
    assert len(raised) == 1
    with pytest.raises(InputError, match="timeout"):
        session.wait(-1)


def test_a_callback_that_fails_costs_nobody_the_plan(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and preparing goes on."""

    def fails(_: Progress) -> None:
        raise ValueError("mine")

    with agent.load(BRANCHING, background=False, progress=fails) as session:
        assert session.plan is not None
    assert any(record.exc_info and "mine" in str(record.exc_info[1]) for record in caplog.records)


def test_without_a_planner_nothing_speaks_of_a_plan(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Notes, logs, progress and explanation tell of who answers, and ``session.plan`` is None."""
    monkeypatch.setitem(__import__("sys").modules, "planner_api.embedded", None)
    caplog.set_level("INFO", "agent_sdk")
    heard: list[Progress] = []
    with agent.load(BRANCHING, progress=heard.append) as session:
        session.run({"x": X})
        assert session.wait(120)
        assert session.plan is None
        said = [repr(session), *session.notes, str(session.explain()), *map(str, heard)]
        said += [record.getMessage() for record in caplog.records if record.name.startswith("agent_sdk")]
    assert not [text for text in said if re.search(r"\bplan(s|ned)?\b", text)]


WRONG: list[Callable[[], Any]] = [
    dict,
    lambda: {"x": X[:, :1]},
    lambda: {"x": X.astype(np.float64)},
    lambda: {"x": X, "q": X},
    lambda: {"q": X},
    lambda: {"x": None},
    lambda: {"x": [[1]]},
    lambda: {"x": np.array("text")},
]


def refusals(session: Session) -> list[str]:
    """What a session says of wrong inputs, and of arrays that its output does not fit into."""
    said = []
    for make in WRONG:
        with pytest.raises(InputError) as raised:
            session.run(make())
        said.append(str(raised.value))
    for array in (np.zeros((1, 3), np.float32), np.zeros((1, 10), np.float64), np.zeros((10,), np.float32)):
        bound = session.io_binding()
        bound.bind_cpu_input("x", X)
        bound.bind_output("y", "cpu", 0, array.dtype, array.shape, array.ctypes.data)
        with pytest.raises(InputError) as raised:
            session.run_with_iobinding(bound)
        said.append(str(raised.value))
    return said


def test_what_is_wrong_reads_the_same_before_and_after_the_plan(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong input, or array for an output, is refused in the same words by the whole network and by the plan."""
    refused, obtain = threading.Event(), Services.obtain

    def later(*given: Any, **named: Any) -> Any:
        refused.wait(30.0)
        return obtain(*given, **named)

    monkeypatch.setattr(Services, "obtain", later)
    with agent.load(BRANCHING) as session:
        before = refusals(session)
        assert session.plan is None
        refused.set()
        session.prepare()
        assert refusals(session) == before


@pytest.mark.parametrize("junk", [b"junk" * 100, b"\x00" * 64, bytes(range(256)), BRANCHING[: len(BRANCHING) // 2]])
@pytest.mark.parametrize("background", [True, False])
def test_a_file_that_is_none_gets_one_sentence(
    junk: bytes, background: bool, agent: Agent, capfd: pytest.CaptureFixture[str]
) -> None:
    """What is no network is refused in one sentence of ours; no library adds its own, to it or to the streams."""
    with pytest.raises(InputError) as raised:
        agent.load(junk, background=background)
    assert re.fullmatch(r"the given model [^\n]*", str(raised.value))
    assert "ONNXRuntimeError" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("runs", [1, 2, 7])
def test_as_many_runs_are_timed_as_were_asked_for(runs: int, returning_agent: Agent) -> None:
    """``--runs N`` is N, for everybody who is timed; and ONNX Runtime by default always is."""
    with returning_agent.load(BRANCHING, background=False) as session:
        report, _ = examine(returning_agent, session, session.draw(), runs=runs, compare=False)
    assert report.runs == runs
    assert {"plan", "onnxruntime"} <= report.timed_us.keys()
    assert report.measured_us == min(report.timed_us.values())
    assert report.planned_us == session.latest.plan_executor.program.plan.makespan_us

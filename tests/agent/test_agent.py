"""The façade in Python: load, run from many threads, refuse, close, and leave nothing behind."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import agent_sdk
from agent_sdk import Agent, errors
from agent_sdk.journey.verify import relative_error
from agent_sdk.model import read_model
from agent_sdk.model.weights import PREFIX
from agent_sdk.planner.embedded import embedded_client
from agent_sdk.planner.identity import device_id, store_token, stored_token
from hope_schema import Job, MissingRequest, PlanRequest
from tests.agent.haste import measure_hastily
from tests.agent.models import BRANCHING, branching_model, expected

OTHER = branching_model(channels=4).SerializeToString()


def test_the_public_names_are_these() -> None:
    """What the package offers is listed, importable, and nothing else."""
    assert set(agent_sdk.__all__) == {"Agent", "PlannerClient", "Session"}
    assert all(getattr(agent_sdk, name).__name__ == name for name in agent_sdk.__all__)
    with pytest.raises(AttributeError, match="Nothing"):
        _ = agent_sdk.Nothing


@pytest.mark.parametrize("name", ["measuring_s", "wait_s", "planner_timeout_s"])
@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_seconds_are_a_number_that_is_not_negative(name: str, seconds: float, tmp_path: Path) -> None:
    """A time that is none is refused at once, by its name."""
    with pytest.raises(errors.InputError, match=name):
        Agent(cache=tmp_path, **{name: seconds})


@pytest.mark.parametrize("queued", [0, -1, 0.5, float("nan")])
def test_who_lets_nobody_wait_is_told(queued: int, tmp_path: Path) -> None:
    """A queue without room refused each run, and one of NaN none: what is no number of runs is refused at once."""
    with pytest.raises(errors.InputError, match="queued"):
        Agent(cache=tmp_path, queued=queued)


@pytest.mark.parametrize("kind", ["path", "text", "bytes", "proto"])
def test_a_model_may_come_in_any_form(kind: str, returning_agent: Agent, tmp_path: Path) -> None:
    """A path, its text, the bytes and the proto of one model give one answer."""
    path = tmp_path / "model.onnx"
    path.write_bytes(BRANCHING)
    source = {"path": path, "text": str(path), "bytes": BRANCHING, "proto": onnx.load_from_string(BRANCHING)}[kind]
    inputs, right = expected(BRANCHING, seed=1)
    with returning_agent.load(source, background=False) as session:
        assert relative_error(session.run(inputs), right) <= 1e-5


BARE = """
import sys
sys.modules["click"] = sys.modules["rich"] = None  # as if neither was installed
from agent_sdk import Agent
with Agent(processors="ort@0", cache=sys.argv[2]) as agent, agent.load(sys.argv[1], background=False) as session:
    print(session.verify().correct)
"""


def test_a_device_needs_no_terminal_library(tmp_path: Path) -> None:
    """Without the packages of the command line a network is measured, planned, run and found right; paths are text."""
    file = tmp_path / "net.onnx"
    file.write_bytes(BRANCHING)
    command = [sys.executable, "-c", BARE, str(file), str(tmp_path / "cache")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    assert (tmp_path / "cache" / "plans").is_dir()


def test_sessions_run_at_once_from_many_threads(agent: Agent) -> None:
    """Two sessions of one agent, run from eight threads with different inputs, each answer right every time."""
    cases = [(source, *expected(source, seed)) for source in (BRANCHING, OTHER) for seed in range(4)]
    with (
        agent.load(BRANCHING, background=False) as one,
        agent.load(OTHER, background=False) as two,
        ThreadPoolExecutor(8) as pool,
    ):
        sessions = {BRANCHING: one, OTHER: two}

        def check(index: int) -> float:
            source, inputs, right = cases[index % len(cases)]
            return relative_error(sessions[source].run(inputs), right)

        assert max(pool.map(check, range(64))) <= 1e-5


def test_a_table_of_two_rows_can_be_loaded(agent: Agent) -> None:
    """The rehearsal's own indices fit the smallest tables in use, e.g. of token types."""
    infos = [
        helper.make_tensor_value_info("i", TensorProto.INT64, [1, 64]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
    ]
    table = numpy_helper.from_array(np.arange(8, dtype=np.float32).reshape(2, 4), "table")
    nodes = [helper.make_node("Gather", ["table", "i"], ["g"], axis=0), helper.make_node("Relu", ["g"], ["y"])]
    graph = helper.make_graph(nodes, "tokens", infos[:1], infos[1:], [table])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with agent.load(proto, background=False) as session:
        assert session.run({"i": np.ones((1, 64), np.int64)})["y"].shape == (1, 64, 4)


def test_wrong_inputs_are_refused_and_the_next_run_works(agent: Agent) -> None:
    """A missing, misshapen or unknown input is one clear error, and the session goes on."""
    inputs, right = expected(BRANCHING, seed=5)
    with agent.load(BRANCHING, background=False) as session:
        for bad in ({}, {"x": inputs["x"][:, :2]}, {"x": inputs["x"].astype(np.float64)}, {**inputs, "z": inputs["x"]}):
            with pytest.raises(errors.InputError):
                session.run(bad)
        assert relative_error(session.run(inputs), right) <= 1e-5


def test_closing_ends_every_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After ``close`` no thread of ours is left, a second close is harmless, and a run says that it is closed."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)
    before = set(threading.enumerate())
    agent = Agent(processors="ort", cache=tmp_path)
    session = agent.load(BRANCHING, background=False)
    inputs, _ = expected(BRANCHING, seed=0)
    session.run(inputs)
    agent.close()
    agent.close()
    with pytest.raises(errors.ExecutionError, match="closed"):
        session.run(inputs)
    left = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("hope-")]
    assert left == []


def test_closing_leaves_no_weights_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What sessions map goes with their agent, though they and their models are still held: a process may just end."""
    measure_hastily(monkeypatch)
    with Agent(cache=tmp_path) as agent:
        session = agent.load(BRANCHING, background=False)
        assert list(tmp_path.rglob(f"{PREFIX}*"))
    assert not list(tmp_path.rglob(f"{PREFIX}*"))
    with pytest.raises(errors.ExecutionError, match="closed"):
        session.run(expected(BRANCHING, seed=0)[0])


def test_a_damaged_database_is_begun_anew(tmp_path: Path) -> None:
    """It costs what the planner knew, not the plan and not the run; one sentence says so, at one start."""
    (tmp_path / "planner.sqlite").write_bytes(b"this is no database" * 1000)
    inputs, right = expected(BRANCHING, seed=6)
    with Agent(processors="ort@0", cache=tmp_path) as agent, agent.load(BRANCHING, background=False) as session:
        assert session.latest.obtained.source == "planner"
        assert "planner.sqlite' was damaged" in session.notes[0]
        assert relative_error(session.run(inputs), right) <= 1e-5
    with Agent(processors="ort@0", cache=tmp_path) as agent, agent.load(BRANCHING, background=False) as session:
        assert not any("damaged" in note for note in session.notes)


def test_a_database_of_an_earlier_planner_is_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What no way leads from to this release costs what the planner knew, not every plan from then on."""
    with closing(sqlite3.connect(tmp_path / "planner.sqlite")) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num TEXT)")
        database.execute("INSERT INTO alembic_version VALUES ('0011')")
    with Agent(processors="ort@0", cache=tmp_path) as agent:
        assert agent.obtain(read_model(BRANCHING)).source == "planner"
    assert [record.message for record in caplog.records if "begins anew" in record.message]


def test_a_database_that_is_a_pipe_hangs_nobody(tmp_path: Path) -> None:
    """Whatever stands in its place is removed, and it is begun anew."""
    os.mkfifo(tmp_path / "planner.sqlite")
    with Agent(processors="ort@0", cache=tmp_path) as agent:
        assert agent.obtain(read_model(BRANCHING)).source == "planner"


def test_a_database_that_has_to_stay_costs_the_plan_alone(tmp_path: Path) -> None:
    """What cannot be removed is not asked again and again: one sentence says what it is, and a processor runs all."""
    (tmp_path / "planner.sqlite").mkdir()
    with Agent(processors="ort@0", cache=tmp_path) as agent:
        obtained = agent.obtain(read_model(BRANCHING))
    assert obtained.source == "single"
    assert "planner.sqlite' is no file" in obtained.notes[0]


def test_the_client_speaks_to_the_real_app(tmp_path: Path) -> None:
    """The client's verbs and the planner's app agree over ASGI: submit, ask what is missing, be refused."""
    graph = read_model(BRANCHING).graph
    with Agent(processors="ort@0", cache=tmp_path) as agent:
        specs = tuple(processor.spec for processor in agent.device.processors.values())
    request = MissingRequest(
        model_hash=graph.model_hash, soc="test-soc", frequency="any", device_id="test", processors=specs
    )

    with embedded_client(tmp_path / "other.sqlite") as client:
        with pytest.raises(errors.ModelUnknownError):
            client.missing(request)
        receipt = client.submit_model(graph)
        assert (receipt.model_hash, receipt.created) == (graph.model_hash, True)
        assert client.submit_model(graph).created is False
        assert client.model(graph.model_hash) == graph
        missing = client.missing(request)
        assert len(missing.latencies) > 0
        wanted = PlanRequest(jobs=(Job(model_hash=graph.model_hash),), soc="test-soc", frequency="any")
        with pytest.raises(errors.NotFoundError, match="test-soc") as caught:
            client.plan(wanted)
        assert caught.value.request_id


def test_the_device_keeps_its_name_and_tokens(tmp_path: Path) -> None:
    """The id is made once; a damaged one is replaced; tokens are per planner and readable by their owner alone."""
    first = device_id(tmp_path)
    assert device_id(tmp_path) == first
    (tmp_path / "device-id").write_text("../../etc/passwd")
    assert device_id(tmp_path) not in (first, "../../etc/passwd")
    store_token(tmp_path, "http://one:8000/", "old").chmod(0o644)
    path = store_token(tmp_path, "http://one:8000/", "secret")
    assert stored_token(tmp_path, "http://one:8000") == "secret"
    assert stored_token(tmp_path, "http://two:8000") is None
    if sys.platform != "win32":
        assert path.stat().st_mode & 0o077 == 0

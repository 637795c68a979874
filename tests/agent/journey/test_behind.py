"""What goes on behind the answers ends: with its session, with the program, and with the shapes that asked for it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from agent_sdk import Agent
from agent_sdk.cancel import Cancel, cancelling, check
from agent_sdk.cli import main
from agent_sdk.errors import DeviceClosedError, ModelError, NotWantedError
from agent_sdk.forking import HERE
from agent_sdk.journey.behind import Worker
from agent_sdk.journey.demand import USES
from agent_sdk.journey.opening import Opening
from agent_sdk.journey.services import Services
from agent_sdk.journey.verify import relative_error
from agent_sdk.journey.whole import Whole
from agent_sdk.model import Network
from agent_sdk.pool import Pool
from agent_sdk.runtimes.ort.whole import WholeOrt
from tests.agent.models import BRANCHING, expected, one_op_model
from tests.agent.test_session_shapes import image, open_model, right, until
from tests.agent.threads import no_thread_left

HOLDS = 'import time; print("up", flush=True); time.sleep(600)'
PROGRAM = """
import sys, threading, time
from agent_sdk.journey.behind import Worker
from agent_sdk.cancel import Cancel, cancelling
import subprocess
worker, begun = Worker(Cancel()), threading.Event()

def child():
    process = subprocess.Popen([sys.executable, "-c", {holds!r}], stdout=subprocess.PIPE)
    process.stdout.readline()
    with cancelling(process.kill):
        begun.set()
        process.wait()

def stuck():
    begun.set()
    time.sleep(600)  # as a runtime that cannot be stopped

worker.submit({what})
begun.wait()
print("ready", flush=True)
{end}
"""


@pytest.mark.parametrize("what", ["child", "stuck"])
@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(3)", 3), ("1 / 0", 1), ("time.sleep(600)", -signal.SIGINT), ("", 0)]
)
def test_a_program_ends_whatever_is_done_behind_it(what: str, end: str, code: int) -> None:
    """With its own exit status, by returning, in failure, and by Ctrl-C, while a child or a runtime is at work."""
    program = PROGRAM.format(holds=HOLDS, what=what, end=end)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path(__file__).parents[3]
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        if code < 0:
            started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=180)
    assert started.returncode == code, said


def test_closing_kills_the_child_and_waits_for_nothing() -> None:
    """A child that is waited for dies, what had not begun is cancelled, and what cannot be stopped is left alone."""
    worker, begun, over = Worker(Cancel()), threading.Event(), threading.Event()

    def wait_for_a_child() -> int:
        process = subprocess.Popen([sys.executable, "-c", HOLDS])
        with cancelling(process.kill):
            begun.set()
            return process.wait()

    first, second = worker.submit(wait_for_a_child), worker.submit(check)
    begun.wait()
    worker.close()
    assert first.result(60) == -signal.SIGKILL
    with pytest.raises(NotWantedError):
        second.result(60)
    assert worker.submit(check).cancelled()
    stuck, begun = Worker(Cancel()), threading.Event()
    left = stuck.submit(lambda: (begun.set(), over.wait(60)))
    begun.wait()
    stuck.close()
    assert not left.done()
    over.set()
    left.result(60)


def test_a_cancel_ends_its_parts_and_nothing_else() -> None:
    """What is part of it is cancelled with it; what is stopped is stopped once, also where it comes too late."""
    whole = Cancel()
    part, other = Cancel(whole), Cancel()
    stopped: list[str] = []
    with part.calling(lambda: stopped.append("early")):
        part.cancel()
        part.cancel()
    with part.calling(lambda: stopped.append("late")):
        pass
    assert stopped == ["early", "late"]
    whole.check()
    whole.cancel()
    with pytest.raises(NotWantedError):
        Cancel(whole).check()
    other.check()
    with part.current(), pytest.raises(NotWantedError):
        check()
    check()


def test_a_step_that_begins_while_it_is_cancelled_is_stopped() -> None:
    """Whichever of the two comes first, one of them sees the other, also where it is part of what is cancelled."""
    for _ in range(200):
        whole = Cancel()
        part, stopped, begin = Cancel(whole), threading.Event(), threading.Barrier(2)
        ending = threading.Thread(target=lambda begin=begin, whole=whole: (begin.wait(), whole.cancel()))
        ending.start()
        begin.wait()
        with part.calling(stopped.set):
            assert stopped.wait(20)
        ending.join()
        assert not whole._steps
        assert not part._steps


def test_what_a_stop_raises_is_not_swallowed() -> None:
    """Whoever cancels hears of it, and a step that comes too late and cannot be stopped is forgotten."""
    cancel = Cancel()
    with cancel.calling({}.popitem), pytest.raises(KeyError):
        cancel.cancel()
    with pytest.raises(KeyError), cancel.calling({}.popitem):
        pass
    assert not cancel._steps


def test_a_forked_child_stops_its_own_steps_and_none_of_the_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that cancels what its parent began ends nothing there, and all that it began itself."""
    cancel, stopped = Cancel(), list[str]()
    with cancel.calling(lambda: stopped.append("parent's")):
        monkeypatch.setattr(HERE, "process", -1)
        with cancel.calling(lambda: stopped.append("child's")):
            cancel.cancel()
    assert stopped == ["child's"]


def chain(length: int) -> bytes:
    """Return a network of so many ops, one after the other, which takes long to read and to compile."""
    nodes = [helper.make_node(("Add", "Mul")[k % 2], [f"x{k}", "half"], [f"x{k + 1}"]) for k in range(length)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [16]) for name in ("x0", f"x{length}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], [numpy_helper.from_array(np.float32(0.5), "half")])
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )


@pytest.mark.parametrize("step", ["preparing.Preparing._bound", "services.Services.obtain"])
def test_a_session_closes_wherever_its_preparation_stands(
    step: str, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for what is done behind; who waits for a plan is told that the session is closed."""
    begun, over = threading.Event(), threading.Event()

    def stands(*given: Any, **named: Any) -> Any:
        begun.set()
        over.wait(60)
        check()
        pytest.fail("what nobody waits for goes on")

    monkeypatch.setattr(f"agent_sdk.journey.{step}", stands)
    session = agent.load(chain(50))
    session.run({"x0": np.ones(16, np.float32)})
    begun.wait(60)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(session.prepare)
        until(lambda: len(session.preparing._worker._futures) == 2)
        session.close()
        over.set()
        with pytest.raises(DeviceClosedError, match="session is closed"):
            waiting.result(60)
    assert session.stats.prepared == 0


def test_closing_waits_for_no_renewal(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that is closed while a newer plan is asked and measured for is closed at once; who asked is told."""
    begun, over = threading.Event(), threading.Event()

    def stands(*given: Any, **named: Any) -> Any:
        begun.set()
        over.wait(60)
        check()
        pytest.fail("what nobody waits for goes on")

    session = agent.load(BRANCHING, background=False)
    monkeypatch.setattr("agent_sdk.journey.services.Services.obtain", stands)
    with ThreadPoolExecutor(2) as threads:
        renewing = threads.submit(agent.refresh, session)
        assert begun.wait(60)
        threads.submit(agent.close).result(30)
        over.set()
        with pytest.raises(NotWantedError):
            renewing.result(60)


def test_shapes_that_come_once_cost_nothing_behind(agent: Agent) -> None:
    """A hundred sets of shapes, each once: nothing is begun; the third run of one of them begins its plan."""
    source = open_model()
    with agent.load(source, background=False) as session:
        for size in range(3, 103):
            session.run(image(1, 3, size, 4))
        assert session.preparing._worker.idle(60)
        assert (session.stats.prepared, session.notes) == (0, [])
        feed = image(1, 3, 50, 4)
        for _ in range(USES - 1):
            assert relative_error(session.run(feed), right(source, feed)) < 1e-5
        until(lambda: session.stats.prepared == 1)


def test_a_plan_takes_over_beneath_runs(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run fails because the whole network has just gone, and nobody loads that again to keep it."""
    feed, wanted = expected(BRANCHING, seed=1)
    opened: list[bool] = []
    load = Whole._opened

    def counting(whole: Whole, *, at_once: bool) -> WholeOrt:
        opened.append(True)
        return load(whole, at_once=at_once)

    monkeypatch.setattr(Whole, "_opened", counting)
    with agent.load(BRANCHING) as session, ThreadPoolExecutor(4) as threads:

        def runs() -> float:
            worst = 0.0
            while session.stats.prepared == 0:
                worst = max(worst, relative_error(session.run(feed), wanted))
            return max(worst, *(relative_error(session.run(feed), wanted) for _ in range(20)))

        assert max(each.result(60) for each in [threads.submit(runs) for _ in range(4)]) < 1e-5
        assert session.plans.whole.loaded is None
    assert len(opened) == 1


def test_what_ends_what_goes_on_behind_is_said_once(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it is, the notes say so, the log says where, who waits is told, and the whole network answers on."""

    class Ended(BaseException):
        pass

    def ends(*given: object, **named: object) -> None:
        raise Ended("somewhere")

    monkeypatch.setattr(Opening, "done", ends)
    feed, wanted = expected(BRANCHING, seed=1)
    with agent.load(BRANCHING) as session:
        assert session.wait(60)
        assert session.notes == ["what was being done behind the answers failed (Ended: somewhere)"]
        assert relative_error(session.run(feed), wanted) < 1e-5
    assert len([record for record in caplog.records if record.exc_info and record.exc_info[0] is Ended]) == 1


@pytest.mark.parametrize("size", [2, "n"])
def test_what_fails_behind_is_logged_with_where(
    agent: Agent, size: int | str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, in the words of the note, if it is no error of ours."""
    error = RuntimeError("somewhere")
    monkeypatch.setattr(Opening, "done", Mock(side_effect=error))
    with agent.load(one_op_model("Relu", shape=(size, 3)), shapes={"x": (2, 3)}) as session:
        assert session.wait(60)
        (note,) = session.notes
    (record,) = [record for record in caplog.records if record.exc_info and record.exc_info[1] is error]
    assert "RuntimeError: somewhere" in note
    assert (record.levelname, record.message) == ("ERROR", f"{session.name}: {note}")


def test_what_ends_a_thread_of_a_pool_reaches_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a thread of its own; the thread goes on with what comes next."""
    raised: list[BaseException | None] = []
    done: list[threading.Thread] = []
    monkeypatch.setattr(threading, "excepthook", lambda given: raised.append(given.exc_value))
    error = SystemError("of the work")
    with Pool(1) as pool:
        pool.begin(Mock(side_effect=error))
        pool.begin(lambda: done.append(threading.current_thread()))
    assert raised == [error]
    assert done


def test_every_callback_is_called(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that closing came before are told so; a callback may close; what a callback raises reaches the hook."""
    feed, _ = expected(BRANCHING, seed=1)
    told: list[str] = []
    raised: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda given: raised.append(str(given.exc_value)))
    session = agent.load(BRANCHING, background=False)
    closed = threading.Event()

    def closes(outputs: list[np.ndarray], data: object, error: str) -> None:
        session.close()
        closed.set()
        raise ValueError("of the callback")

    session.run_async(None, feed, closes)
    for _ in range(50):
        try:
            session.run_async(None, feed, lambda outputs, data, error: told.append(error))
        except DeviceClosedError:
            told.append("the session is closed")
    assert closed.wait(60)
    until(lambda: len(told) == 50 and bool(raised))
    assert {error for error in told if error} <= {"the session is closed"}
    assert raised == ["of the callback"]
    with pytest.raises(DeviceClosedError):
        session.plans.ready()


def twice() -> onnx.ModelProto:
    """Return a network that lists one output twice."""
    proto = onnx.ModelProto.FromString(BRANCHING)
    proto.graph.output.append(proto.graph.output[0])
    return proto


def in_its_own_format(folder: Path) -> Path:
    """Write a network in ONNX Runtime's own format."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "net.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(BRANCHING, options, providers=["CPUExecutionProvider"])
    return folder / "net.ort"


@pytest.mark.parametrize(
    ("made", "why"),
    [(lambda folder: twice(), "output"), (in_its_own_format, "ONNX Runtime's own format")],
    ids=["an output listed twice", "an .ort file"],
)
@pytest.mark.parametrize("background", [True, False])
def test_what_cannot_be_read_or_planned_runs_as_a_whole(
    made: Callable[[Path], Any], why: str, background: bool, agent: Agent, tmp_path: Path
) -> None:
    """In the foreground as behind: the right answers, one note that says why, and a comparison that says right."""
    feed, wanted = expected(BRANCHING, seed=1)
    with agent.load(made(tmp_path), background=background) as session:
        np.testing.assert_allclose(session.run(feed)["y"], wanted["y"], rtol=1e-4, atol=1e-6)
        assert all(relative_error({"y": y}, wanted) < 1e-5 for y in session.run(None, feed))
        until(lambda: [why in note for note in session.notes] == [True])  # nothing is done behind any more
        (note,) = session.notes
        assert "the whole network runs on onnxruntime, because nothing can be planned" in note
        assert session.verify(feed).correct
        assert session.verify().correct


@pytest.mark.parametrize("made", [lambda folder: twice(), in_its_own_format], ids=["an output twice", "an .ort file"])
def test_who_waits_for_a_plan_that_never_comes_is_told(
    made: Callable[[Path], Any], agent: Agent, tmp_path: Path
) -> None:
    """Also where shapes were given, and so are looked at before anything is done behind the answers."""
    with agent.load(made(tmp_path), shapes={"x": (1, 3, 16, 16)}) as session:
        assert session.wait(60)
        assert session.ready


def test_where_no_thread_is_left_the_whole_network_answers(agent: Agent) -> None:
    """Nobody waits for the plan, which is not made when there are threads again either, and a note says why."""
    feed, wanted = expected(BRANCHING, seed=1)
    with no_thread_left("hope-behind"):
        session = agent.load(BRANCHING)
    assert session.wait(60)
    assert any("no thread could be started" in note for note in session.notes)
    assert session.preparing._worker.idle(0.0)
    assert relative_error(session.run(feed), wanted) < 1e-5


@pytest.mark.parametrize("made", [lambda folder: twice(), in_its_own_format], ids=["an output twice", "an .ort file"])
def test_the_command_line_runs_what_a_session_runs(
    made: Callable[[Path], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    hasty: None,
) -> None:
    """It ends well, and says that the network ran as a whole, and why."""
    monkeypatch.setenv("HOPE_CACHE_DIR", str(tmp_path / "cache"))
    file = made(tmp_path)
    if isinstance(file, onnx.ModelProto):
        onnx.save(file, tmp_path / "net.onnx")
        file = tmp_path / "net.onnx"
    assert main(["run", str(file), "--processors", "ort", "--quiet"]) == 0
    said = capsys.readouterr()
    assert "right" in said.out
    assert "because nothing can be planned" in said.out + said.err


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("part", [(Services, "obtain"), (Network, "bound_in_place")], ids=["planning", "reading"])
@pytest.mark.parametrize(
    "error", [MemoryError("no room"), DeviceClosedError("a processor hangs"), KeyError("a fault of ours")]
)
def test_a_plan_that_fails_in_any_way_leaves_the_whole_network(
    error: Exception, part: tuple[type, str], background: bool, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of reading or planning costs the plan, in the foreground as behind; the note has its words."""

    def fails(*given: Any, **named: Any) -> Any:
        raise error

    feed, wanted = expected(BRANCHING, seed=1)
    monkeypatch.setattr(*part, fails)
    with agent.load(BRANCHING, background=background) as session:
        assert relative_error(session.run(feed), wanted) < 1e-5
        until(lambda: [str(error) in note for note in session.notes] == [True])  # nothing is done behind any more


def test_a_file_that_is_none_is_refused_in_one_sentence(agent: Agent, tmp_path: Path) -> None:
    """Ours alone, without what a runtime says of it, and nothing of it stays open."""
    (tmp_path / "junk.onnx").write_bytes(os.urandom(1000))
    gc.collect()  # or files that tests before this one dropped are closed meanwhile
    before = len(os.listdir("/proc/self/fd"))
    for background in (True, False):
        with pytest.raises(ModelError) as caught:
            agent.load(tmp_path / "junk.onnx", background=background)
        assert str(caught.value).startswith(f"'{tmp_path}/junk.onnx' is not an ONNX model")
        assert "runtime" not in str(caught.value)
    assert len(os.listdir("/proc/self/fd")) == before

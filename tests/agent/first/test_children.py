"""Whatever runs for the first time runs in a child: what crashes there crashes nobody else, and is remembered."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from agent_sdk import Agent, Session
from agent_sdk.errors import DeviceClosedError, ModelError, UnplannableError
from agent_sdk.first.bench import Bench, Reply, RunFile, Setting, saved
from agent_sdk.first.children import Children, CrashedError
from agent_sdk.journey.verify import relative_error
from agent_sdk.model import Content
from tests.agent.model.test_feeds import F, N, network
from tests.agent.models import BRANCHING, expected

CHANGED = """
import sys
if sys.orig_argv[1:3] == ["-m", "agent_sdk.first.child"]:
    import ctypes, time
    import {module} as module
{how}
    module.{what} = changed
"""
"""Makes something behave otherwise in children, and there alone."""
CRASHING = "    changed = lambda *given, **named: ctypes.string_at(0)"
HANGING = "    changed = lambda *given, **named: time.sleep(600)"
CRASHING_AT_MAXPOOL = """
    before = module.time_segment
    def changed(processor, segment, deadline):
        if processor.id == "ov@0" and "MaxPool" in {segment.model.graph.op[op].type for op in segment.ops}:
            ctypes.string_at(0)
        return before(processor, segment, deadline)
"""
Crash = Callable[..., None]


@pytest.fixture
def probing() -> None:
    """Children, as everywhere but in the other tests."""


@pytest.fixture
def crashing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hasty: None) -> Crash:
    """Have something crash, or hang, in children from now on."""

    def crash(module: str, what: str, how: str = CRASHING) -> None:
        text = CHANGED.replace("{module}", module).replace("{what}", what).replace("{how}", how)
        (tmp_path / "sitecustomize.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))

    return crash


def setting(folder: Path) -> Setting:
    """What a child on one core is told."""
    cores = (min(os.sched_getaffinity(0)),)
    return Setting(processors="ort@0", precision="fp32", cores=cores, frozen=str(folder))


def asked(children: Children, request: RunFile) -> Reply:
    """What a child answers."""
    reply = children.ask(request)
    assert reply is not None
    return reply


def runtimes_of(session: Session) -> set[str]:
    """The runtimes that may answer."""
    executors = session.latest.contenders.values()
    return {own.spec.runtime for executor in executors for own in executor.program.processors.values()}


def test_each_run_in_a_child_holds_the_device(tmp_path: Path) -> None:
    """Nothing computes there before the device is held for it, and between two runs others may hold it."""
    held, wanted = threading.Lock(), threading.Event()
    times = 0

    @contextmanager
    def holding() -> Iterator[None]:
        nonlocal times
        wanted.set()
        with held:
            times += 1
            yield

    model = tmp_path / "net.onnx"
    model.write_bytes(network([("Relu", "x", "out", {})], {"x": (F, [4])}).SerializeToString())
    with Children(setting(tmp_path), holding) as children, saved([{"x": np.ones(4, np.float32)}] * 2) as feeds:
        request = RunFile(file=str(model), runtime="onnxruntime", target="CPUExecutionProvider", feeds=feeds)
        with ThreadPoolExecutor(1) as pool, ExitStack() as others:
            others.enter_context(held)
            waited = pool.submit(asked, children, request)
            assert wanted.wait(60.0)
            with pytest.raises(TimeoutError):
                waited.result(0.3)
            others.close()
            assert waited.result(60.0).failure == ""
    assert times == 2
    assert not held.locked()


def test_networks_that_stand_under_one_path_are_told_apart(tmp_path: Path) -> None:
    """A file that is held is found by its handle's number, which is another network's once it is closed."""
    bench, seen = Bench(setting(tmp_path)), set()
    for name in ("x", "z"):
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(network([("Relu", name, "out", {})], {name: (F, [4])}).SerializeToString())
        with Content(path) as content, content.opened() as given, saved([{name: np.ones(4, np.float32)}]) as feeds:
            assert isinstance(given.file, str)
            seen.add(given.file)
            request = RunFile(file=given.file, runtime="onnxruntime", target="CPUExecutionProvider", feeds=feeds)
            assert bench.run_file(request, lambda _: None).failure == ""
    assert len(seen) == 1


def test_a_package_that_crashes_is_left_out(crashing: Crash, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real segmentation fault in the child: a note says so, the other one answers, and nobody tries again."""
    crashing("openvino", "Core.compile_model")
    inputs, right = expected(BRANCHING, seed=1)
    cache = tmp_path / "cache"
    note = "OpenVINO is left out, because it crashes at this network: Segmentation fault"
    with Agent(processors="ort@0,ov@0", cache=cache) as agent, agent.load(BRANCHING, background=False) as session:
        assert note in session.notes
        assert runtimes_of(session) == {"ort"}
        assert session.latest.obtained.source == "planner"
        assert relative_error(session.run(inputs), right) < 1e-5
        assert session.verify().correct

    def never(*given: object, **named: object) -> None:
        pytest.fail("what was tried is tried again")

    monkeypatch.setattr(Children, "ask", never)
    with Agent(processors="ort@0,ov@0", cache=cache) as agent, agent.load(BRANCHING, background=False) as session:
        assert note in session.notes


def test_what_nothing_can_judge_does_not_answer(crashing: Crash, tmp_path: Path) -> None:
    """Where ONNX Runtime crashes at a network, nobody else answers it: a sentence says why, and the process lives."""
    crashing("onnxruntime", "InferenceSession.__init__")
    with (
        Agent(processors="ort@0", cache=tmp_path / "c") as agent,
        pytest.raises(ModelError, match="crashes at this network"),
    ):
        agent.load(BRANCHING, background=False)


def test_a_file_is_judged_by_onnx_runtime_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other package compiles it in a child: what they are given later is made of it, and is tried by itself."""
    asked: list[str] = []

    def noted(_: Children, request: RunFile, *given: object) -> Reply:
        asked.append(request.runtime)
        return Reply()

    monkeypatch.setattr(Children, "ask", noted)
    with Agent(processors="ort@0,ov@0", cache=tmp_path) as agent:
        agent._services.first_runs.refuse_unjudged(Content(BRANCHING))
    assert asked == ["onnxruntime"]


def test_a_plan_that_crashes_does_not_answer(crashing: Crash, tmp_path: Path) -> None:
    """Its first run ends a child; a single processor answers instead, and the note says how it ended."""
    crashing("agent_sdk.first.bench", "Executor")
    inputs, right = expected(BRANCHING, seed=1)
    with Agent(processors="ort@0", cache=tmp_path / "c") as agent:
        session = agent.load(BRANCHING, background=False)
        assert any("its first run ended a child: Segmentation fault" in note for note in session.notes)
        assert "plan" not in session.latest.contenders
        assert relative_error(session.run(inputs), right) < 1e-5


def test_an_op_that_crashes_is_unsupported(crashing: Crash, tmp_path: Path) -> None:
    """While ops are measured one of them ends the child: another child goes on, and the plan puts it elsewhere."""
    crashing("agent_sdk.measure.profiler", "time_segment", CRASHING_AT_MAXPOOL)
    nodes = [("MaxPool", "x", "y", {"kernel_shape": [1, 1]}), ("Relu", "y", "out", {})]
    with Agent(processors="ort@0,ov@0", cache=tmp_path / "c") as agent:
        session = agent.load(network(nodes, {"x": (F, [1, 2, 4, 4])}), background=False)
        graph, plan = session.latest.model.graph, session.latest.obtained.plan
        assert plan is not None
        pooled = next(step for step in plan.steps for op in step.ops if graph.op[op].type == "MaxPool")
        assert pooled.processor == "ort@0"


FITTING = network(
    [("Concat", "n m", "shape", {"axis": 0}), ("Reshape", "x shape", "y", {}), ("Add", "y z", "out", {})],
    {"x": (F, [12]), "n": (N, [1]), "m": (N, [1])},
    z=np.ones((3, 4), np.float32),
)
"""A network that takes one pair of sizes only, which nobody can guess."""
OWN = {"x": np.arange(12, dtype=np.float32), "n": np.array([3]), "m": np.array([4])}


def test_where_no_draw_is_taken_the_applications_own_feed_is_tried(hasty: None, tmp_path: Path) -> None:
    """The plan waits for the first run, and is tried with what that was fed, whatever becomes of the array."""
    with Agent(processors="ort@0", cache=tmp_path) as agent:
        session = agent.load(FITTING)
        feed = {name: array.copy() for name, array in OWN.items()}
        assert session.run(feed)["sum"] == 78.0
        feed["n"][:] = 0
        until = time.monotonic() + 60
        while not session.stats.prepared and time.monotonic() < until:
            time.sleep(0.05)
        assert session.stats.prepared, session.notes
        assert session.run(OWN)["sum"] == 78.0
        assert session.verify().correct


def test_where_nothing_was_fed_nothing_is_planned(hasty: None, tmp_path: Path) -> None:
    """One note says so, and the whole network answers what it takes, and refuses what it does not."""
    with Agent(processors="ort@0", cache=tmp_path) as agent:
        session = agent.load(FITTING, background=False)
        assert [note for note in session.notes if "takes no inputs that are drawn" in note] == session.notes
        assert session.run(OWN)["sum"] == 78.0


def test_who_wants_a_plan_waits_for_no_run_of_his_own(hasty: None, tmp_path: Path) -> None:
    """Where the plan would be tried with what is fed first, whoever asks for it before hears that none can be tried."""
    with Agent(processors="ort@0", cache=tmp_path) as agent, ThreadPoolExecutor(1) as pool:
        session = agent.load(FITTING)
        asked = pool.submit(session.prepare)
        try:
            with pytest.raises(UnplannableError, match="takes no inputs that are drawn"):
                asked.result(60)
        finally:
            session.close()


def test_a_child_is_used_again_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers several requests; after its end another one does, and a crash is told apart from a refusal."""
    file = tmp_path / "net.onnx"
    file.write_bytes(BRANCHING)
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(BRANCHING[: len(BRANCHING) // 2])
    feed, _ = expected(BRANCHING, seed=1)
    with Children(setting(tmp_path)) as children, saved([feed]) as feeds:
        run = RunFile(file=str(file), runtime="onnxruntime", target="CPUExecutionProvider", feeds=feeds)
        assert asked(children, run).failure == ""
        (process,) = children._idle
        assert asked(children, run.model_copy(update={"file": str(damaged)})).failure
        assert children._idle == [process]
        os.kill(process.pid, signal.SIGSEGV)
        process.wait()
        assert asked(children, run).failure == ""
        assert children._idle != [process]
        (process,) = children._idle
        assert process.stdin is not None
        os.dup2(os.open(os.devnull, os.O_WRONLY), process.stdin.fileno())  # it ends as one that waited for too long
        process.wait()
        ended = process.poll
        monkeypatch.setattr(process, "poll", lambda: ended() if children._busy else None)  # and only just now
        assert asked(children, run).failure == ""
        assert process not in children._idle


def test_closing_kills_what_runs(tmp_path: Path, crashing: Crash) -> None:
    """A child that hangs is ended by closing, and the request says so instead of taking it for a crash."""
    crashing("onnxruntime", "InferenceSession.__init__", HANGING)
    children = Children(setting(tmp_path))
    run = RunFile(file=__file__, runtime="onnxruntime", target="CPUExecutionProvider")
    ended: list[BaseException] = []

    def ask() -> None:
        try:
            children.ask(run)
        except (DeviceClosedError, CrashedError) as error:
            ended.append(error)

    asking = Thread(target=ask)
    asking.start()
    while not children._busy:
        time.sleep(0.01)
    (process,) = children._busy
    children.close()
    asking.join(60)
    assert [type(error) for error in ended] == [DeviceClosedError]
    assert process.poll() is not None


def test_what_hangs_is_ended(tmp_path: Path, crashing: Crash) -> None:
    """A limit of time ends a child that does not come back."""
    crashing("onnxruntime", "InferenceSession.__init__", HANGING)
    run = RunFile(file=__file__, runtime="onnxruntime", target="CPUExecutionProvider")
    with Children(setting(tmp_path)) as children, pytest.raises(CrashedError, match=r"more than 0\.5 s"):
        children.ask(run, limit_s=0.5)


def test_what_children_use_is_known_while_they_live(tmp_path: Path) -> None:
    """The budget of what goes on behind the answers counts it; an ended child's counts as this process's own."""
    file = tmp_path / "net.onnx"
    file.write_bytes(BRANCHING)
    run = RunFile(file=str(file), runtime="onnxruntime", target="CPUExecutionProvider")
    with Children(setting(tmp_path)) as children:
        assert children.cpu_s() == 0.0
        children.ask(run)
        assert children.cpu_s() > 0.1
    assert children.cpu_s() == 0.0

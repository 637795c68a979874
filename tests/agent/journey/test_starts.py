"""How a session starts: cold, warm, and from a plan that travelled; what it does behind, and what it asks of whom."""

from __future__ import annotations

import hashlib
import os
import resource
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from agent_sdk import Agent
from agent_sdk.cli import main
from agent_sdk.errors import InputError, ModelError, PlanMismatchError
from agent_sdk.journey import plans
from agent_sdk.journey.planfile import MARK, TravellingPlan, write_plan
from agent_sdk.journey.preparing import Preparing
from agent_sdk.journey.services import Services
from agent_sdk.journey.trial import PLAN
from agent_sdk.journey.verify import relative_error
from agent_sdk.model.content import ENDS_BYTES
from agent_sdk.planner.client import PlannerClient
from agent_sdk.planner.embedded import stands
from hope_schema import Plan
from planner_api.planning.assemble import assemble
from planner_api.planning.problem.parts import RULE
from tests.agent.haste import hasten, measure_hastily
from tests.agent.models import BRANCHING, branching_model, expected, one_op_model
from tests.agent.test_session_shapes import image, open_model, right, until


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network and its plan file, from a device of this kind."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "net.onnx").write_bytes(BRANCHING)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
        patched.setenv("HOPE_CACHE_DIR", str(folder / "cache"))
        hasten(patched)
        arguments = ["plan", "export", str(folder / "net.onnx"), "-o", str(folder / "net.plan"), "--processors", "ort"]
        assert main([*arguments, "--quiet"]) == 0
    return folder


def nobody(*given: object, **named: object) -> Any:
    """Fail: nothing is to be asked or measured."""
    pytest.fail("somebody was asked, or something measured")


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that can only be read, with nobody to ask and nothing that may be measured or tried."""
    for name in ("agent_sdk.first.bench.profile", "agent_sdk.journey.opening.hold_trial"):
        monkeypatch.setattr(name, nobody)
    monkeypatch.setattr(PlannerClient, "_call", nobody)
    cache = tmp_path / "cache"
    cache.write_text("read-only: no directory can be made here")
    return cache


def test_a_plan_travels(exported: Path, alone: Path) -> None:
    """With a cache that cannot be written nobody is asked, nothing measured or solved, and the plan answers rightly."""
    inputs, wanted = expected(BRANCHING, seed=1)
    with (
        Agent(processors="ort", cache=alone) as agent,
        agent.load(exported / "net.onnx", plan=exported / "net.plan") as session,
    ):
        assert relative_error(session.run(inputs), wanted) < 1e-5
        until(lambda: session.stats.prepared == 1)
        assert session.latest.obtained.source == "file"
        assert PLAN in session.latest.contenders
        assert relative_error(session.run(inputs), wanted) < 1e-5
        assert sum(session.stats.answered.values()) == 2


def test_a_plan_answers_from_the_first_run_where_who_begins_goes_on(exported: Path, alone: Path) -> None:
    """Without ``background`` it is there when ``load`` returns."""
    inputs, wanted = expected(BRANCHING, seed=1)
    with Agent(processors="ort", cache=alone) as agent:
        session = agent.load(exported / "net.onnx", plan=exported / "net.plan", background=False, deterministic=True)
        first = session.run(inputs)
        assert relative_error(first, wanted) < 1e-5
        assert not [who for who in session.stats.answered if who.startswith("whole")]


def test_a_plan_file_is_whole_or_as_it_was(exported: Path, tmp_path: Path) -> None:
    """On a full disk the earlier one stays, with nothing beside it; a link leads to the newer one; a pipe gets it."""
    body = (exported / "net.plan").read_bytes()
    told = TravellingPlan.model_validate_json(body.partition(b"\n")[2])
    path, link = tmp_path / "net.plan", tmp_path / "link.plan"
    link.symlink_to(path)
    path.write_bytes(b"earlier")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
        with pytest.raises(InputError, match=r"net\.plan"):
            write_plan(path, told)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"earlier"
    assert {*tmp_path.iterdir()} == {path, link}
    write_plan(link, told)
    assert link.is_symlink()
    assert path.read_bytes() == body
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as reader:
        found = reader.submit((tmp_path / "pipe").read_bytes)
        write_plan(tmp_path / "pipe", told)
        assert found.result(10) == body


@pytest.mark.parametrize("mode", [0o600, 0o664, None])
def test_who_may_read_a_plan_file_may_read_the_next_one(exported: Path, tmp_path: Path, mode: int | None) -> None:
    """A file keeps its mode when it is exported again; a new one has what the umask leaves, like any that is saved."""
    told = TravellingPlan.model_validate_json((exported / "net.plan").read_bytes().partition(b"\n")[2])
    path = tmp_path / "net.plan"
    if mode is not None:
        path.touch()
        path.chmod(mode)
    umask = os.umask(0o027)
    try:
        write_plan(path, told)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == (0o640 if mode is None else mode)


def test_links_that_lead_nowhere_take_no_plan_astray(exported: Path, tmp_path: Path) -> None:
    """Where one leads into no folder that is said, and none is made; one that leads to itself gives way to the plan."""
    body = (exported / "net.plan").read_bytes()
    told = TravellingPlan.model_validate_json(body.partition(b"\n")[2])
    astray, circle = tmp_path / "astray.plan", tmp_path / "circle.plan"
    astray.symlink_to(tmp_path / "none" / "net.plan")
    circle.symlink_to(circle)
    with pytest.raises(InputError, match=r"astray\.plan': No such file"):
        write_plan(astray, told)
    write_plan(circle, told)
    assert circle.read_bytes() == body
    assert {*tmp_path.iterdir()} == {astray, circle}


def test_what_a_plan_file_leaves_to_a_trial_is_kept_under_no_name(exported: Path, tmp_path: Path) -> None:
    """Where the file says of nobody here how long it takes, that is tried; the cache keeps a planner's plans only."""
    body = (exported / "net.plan").read_bytes().partition(b"\n")[2]
    told = TravellingPlan.model_validate_json(body).model_copy(update={"trial_us": {}})
    write_plan(tmp_path / "net.plan", told)
    with (
        Agent(processors="ort", cache=tmp_path / "cache") as agent,
        agent.load(exported / "net.onnx", plan=tmp_path / "net.plan", background=False) as session,
    ):
        assert session.latest.quiet_us
        assert not [*(tmp_path / "cache").glob("plans/*")]


def test_a_plan_that_could_not_run_where_it_was_exported_is_tried(exported: Path, tmp_path: Path) -> None:
    """Its file says what others took there, and nothing of the plan itself: here it has its chance."""
    body = (exported / "net.plan").read_bytes().partition(b"\n")[2]
    there = TravellingPlan.model_validate_json(body)
    others = {name: us for name, us in there.trial_us.items() if name != PLAN}
    assert others
    write_plan(tmp_path / "net.plan", there.model_copy(update={"trial_us": others}))
    with (
        Agent(processors="ort", cache=tmp_path / "cache") as agent,
        agent.load(exported / "net.onnx", plan=tmp_path / "net.plan", background=False) as session,
    ):
        assert PLAN in session.latest.quiet_us


def test_weights_may_change_under_a_plan(exported: Path, alone: Path, tmp_path: Path) -> None:
    """A file of the same network with other weights takes the plan too: that belongs to topology, types and shapes."""
    proto = onnx.load_from_string(BRANCHING)
    weights = [tensor for tensor in proto.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT]
    assert weights
    for tensor in weights:
        tensor.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(tensor), tensor.name))
    other = proto.SerializeToString()
    (tmp_path / "other.onnx").write_bytes(other)
    inputs, right = expected(other, seed=1)
    with (
        Agent(processors="ort", cache=alone) as agent,
        agent.load(tmp_path / "other.onnx", plan=exported / "net.plan") as session,
    ):
        until(lambda: session.stats.prepared == 1)
        assert relative_error(session.run(inputs), right) < 1e-5


def test_a_plan_file_tells_nothing_of_who_made_it(exported: Path) -> None:
    """Neither the device's id, nor its host, user, files or tokens."""
    text = (exported / "net.plan").read_text()
    identity = (exported / "cache" / "device-id").read_text().strip()
    assert identity.startswith("device-")
    for secret in (identity, identity.removeprefix("device-"), socket.gethostname(), str(exported), "token"):
        assert secret not in text


def sealed(body: bytes) -> bytes:
    """A whole plan file that says this."""
    return MARK + hashlib.sha256(body).hexdigest().encode() + b"\n" + body


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: data[: len(data) // 2], "damaged or was cut off"),
        (lambda data: data[:-40] + bytes([data[-40] ^ 1]) + data[-39:], "damaged or was cut off"),
        (lambda data: b"", "no plan file"),
        (lambda data: b"\xff" * 1000, "no plan file"),
        (lambda data: sealed(data.partition(b"\n")[2].replace(b'"plan":', b'"planned":')), "by another release"),
    ],
    ids=["truncated", "changed", "empty", "garbage", "of another release"],
)
def test_a_spoilt_plan_file_is_refused_in_one_sentence(exported: Path, tmp_path: Path, spoil: Any, said: str) -> None:
    """It says what is wrong and how to make another one."""
    path = tmp_path / "spoilt.plan"
    path.write_bytes(spoil((exported / "net.plan").read_bytes()))
    with Agent(processors="ort@0", cache=tmp_path / "c") as agent, pytest.raises(InputError) as caught:
        agent.load(exported / "net.onnx", plan=path)
    text = str(caught.value)
    assert said in text
    assert f"hope-agent plan export MODEL -o {path}" in text
    assert "\n" not in text


def test_a_plan_of_something_else_is_refused(exported: Path, tmp_path: Path) -> None:
    """Another network, another SoC, processors that are not here, no file: each is one sentence."""
    other = tmp_path / "other.onnx"
    other.write_bytes(branching_model(channels=4).SerializeToString())
    plan = exported / "net.plan"
    with Agent(processors="ort", cache=tmp_path / "c") as agent:
        with pytest.raises(PlanMismatchError, match=r"another network, 'net'; export one of this: hope-agent plan"):
            agent.load(other, plan=plan)
        other.write_bytes(one_op_model().SerializeToString())
        with pytest.raises(PlanMismatchError, match=r"another network, 'net'; export one of this: hope-agent plan"):
            agent.load(other, plan=plan)
        with pytest.raises(InputError, match=r"there is no plan file .*; export one: hope-agent plan export"):
            agent.load(other, plan=tmp_path / "none.plan")
        with pytest.raises(InputError, match=r"cannot be read: .*; export it again: hope-agent plan export"):
            agent.load(other, plan=tmp_path)
        with pytest.raises(ModelError, match=r"no model file .*none\.onnx"):
            agent.load(tmp_path / "none.onnx", plan=plan)
        with pytest.raises(PlanMismatchError, match=r"for the shapes x=1,3,16,16; export one of those that are wanted"):
            agent.load(exported / "net.onnx", plan=plan, shapes={"x": (2, 3, 16, 16)})
    with (
        Agent(processors="ort", soc="toaster", cache=tmp_path / "c") as agent,
        pytest.raises(PlanMismatchError, match="this device is 'toaster'"),
    ):
        agent.load(exported / "net.onnx", plan=plan)


def test_a_soc_that_no_profile_could_be_of_is_refused_in_words(tmp_path: Path) -> None:
    """What its name may hold is said, with what it holds, and nothing of the library that looked."""
    with pytest.raises(InputError, match=r"^soc: a label has letters.*it holds ' '$"):
        Agent(processors="ort", soc="my toaster", cache=tmp_path)


def test_a_plan_of_a_network_that_differs_somewhere_inside_never_answers(tmp_path: Path, agent: Agent) -> None:
    """Files as large, with the same beginnings and ends: the whole network answers, right, and a note says why."""
    files = []
    for op in ("Sinh", "Cosh"):
        ends = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [8]) for name in ("x", "y"))
        graph = helper.make_graph([helper.make_node(op, ["x"], ["y"])], "net", *([end] for end in ends))
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        made.doc_string = " " * ENDS_BYTES
        helper.set_model_props(made, {"end": " " * ENDS_BYTES})
        files.append(tmp_path / f"{op}.onnx")
        onnx.save(made, files[-1])
    with agent.load(files[0], background=False) as session:
        agent.export_plan(session, tmp_path / "net.plan")
    x = np.linspace(-2, 2, 8, dtype=np.float32)
    with agent.load(files[1], plan=tmp_path / "net.plan") as session:
        for _ in range(2):
            assert relative_error(session.run({"x": x}), {"y": np.cosh(x)}) < 1e-5
            until(lambda: any("the plan file is for another network" in note for note in session.notes))
        assert session.plans.ready() == []


@pytest.mark.parametrize("travelled", [False, True], ids=["cold", "plan file"])
def test_a_start_loads_one_runtime_and_reads_nothing(
    travelled: bool, exported: Path, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``load`` returns although the reader never gets anywhere; the first run is answered."""
    inputs, wanted = expected(BRANCHING, seed=1)
    reading: list[object] = []
    monkeypatch.setattr(Preparing, "_begin_behind", lambda self, shapes, known: reading.append(known))
    with agent.load(exported / "net.onnx", plan=exported / "net.plan" if travelled else None) as session:
        assert session.plans.read is None
        assert relative_error(session.run(inputs), wanted) < 1e-5
        until(lambda: bool(reading))
    assert reading == [travelled]


def test_runs_are_answered_while_the_network_is_read_behind_them(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file takes seconds to read; whoever runs, or looks, meanwhile does not wait for it."""
    inputs, wanted = expected(BRANCHING, seed=1)
    reading, over = threading.Event(), threading.Event()
    read = plans.read_network

    def slowly(*given: Any, **named: Any) -> Any:
        reading.set()
        assert over.wait(60.0)
        return read(*given, **named)

    monkeypatch.setattr(plans, "read_network", slowly)
    with agent.load(BRANCHING) as session, ThreadPoolExecutor(1) as caller:
        try:
            session.run(inputs)
            assert reading.wait(60.0)
            assert relative_error(caller.submit(session.run, inputs).result(10.0), wanted) < 1e-5
            assert caller.submit(lambda: session.stats).result(10.0).answered == {"whole:onnxruntime": 2}
        finally:
            over.set()
        until(lambda: session.stats.prepared == 1)


def test_a_session_closed_at_once_leaves_nothing_to_do(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would have begun behind the first run is not begun: closing waits for nothing."""
    monkeypatch.setattr("agent_sdk.journey.preparing.FIRST_ANSWER_S", 60.0)
    session = agent.load(BRANCHING)
    session.close()
    assert session.plans.read is None


def plan_at_rest(model: Path | bytes, cache: Path) -> Plan:
    """The plan that a start leaves once nothing is left to do: measuring may make the planner plan once more, and a
    trial that others disturbed is held again.
    """
    found: list[Plan] = []

    def rests() -> bool:
        with agent.load(model, background=False) as session:
            served = session.latest.obtained.served
        assert served is not None
        found.append(served.reply.plan)
        return stands(cache / "planner.sqlite", served) and served.settled is not None and served.settled.calm

    with Agent(processors="ort", cache=cache) as agent:
        until(rests)
    return found[-1]


@pytest.mark.parametrize("ruled", [False, True], ids=["measured", "filled by a rule"])
def test_a_warm_start_solves_nothing_before_the_plan_answers(
    ruled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan on disk is taken up before anybody is asked, although figures were filled by a rule meanwhile."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)
    if ruled:

        def filled(*given: Any) -> Plan:
            return assemble(*given).model_copy(update={"filled": (RULE,)})

        monkeypatch.setattr("planner_api.planning.assemble", filled)
    path = tmp_path / "net.onnx"
    path.write_bytes(BRANCHING)
    cache = tmp_path / "cache"
    plan = plan_at_rest(path, cache)
    monkeypatch.setattr("agent_sdk.first.bench.profile", nobody)
    monkeypatch.setattr("agent_sdk.journey.opening.hold_trial", nobody)
    found: list[tuple[int, Plan | None]] = []
    loaded = threading.Event()
    obtain = Services.obtain

    def asked(*given: Any, **named: Any) -> Any:
        assert loaded.wait(60)  # what goes on behind may be here before there is a session to look at
        found.append((session.stats.prepared, session.latest.obtained.plan))
        return obtain(*given, **named)

    monkeypatch.setattr(Services, "obtain", asked)
    with Agent(processors="ort", cache=cache) as agent, agent.load(path) as session:
        loaded.set()
        until(lambda: bool(found))
    assert found == [(1, plan)]


def ended_program(program: str, cache: Path, *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """A program that has run in an interpreter of its own, with this cache."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={"HOPE_CACHE_DIR": str(cache), "PATH": "/usr/bin:/bin"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


RECALLING = """
import sys
from agent_sdk import Agent
from tests.agent.models import BRANCHING
with Agent(processors="ort") as agent, agent.load(BRANCHING, background=False) as session:
    obtained = session.latest.obtained
    loaded = {"sqlalchemy", "fastapi", "networkx", "highspy", "planner_api.embedded"} & sys.modules.keys()
    print(obtained.source, obtained.cached, sorted(loaded))
"""


def test_a_recalled_plan_needs_no_planner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planner's database confirms the plan of an earlier start: the planner itself is not even loaded."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)
    plan_at_rest(BRANCHING, tmp_path)
    again = ended_program(RECALLING, tmp_path, timeout_s=120)
    assert again.stdout.strip() == "planner True []", again.stderr


def test_the_next_start_of_a_pinned_network_begins_with_the_fastest(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever answers first goes on: so what was found out behind one start decides who answers the next."""
    source, feed = open_model(), image(1, 3, 8, 8)
    shapes = {"x": (1, 3, 8, 8)}
    with agent.load(source, shapes=shapes, deterministic=True) as cold:
        first = cold.run(feed)
        until(lambda: agent._services.starts.known(cold.content, shapes) is not None)
        assert cold.stats.switches == 0
        assert (cold.run(feed)["y"] == first["y"]).all()
    start = agent._services.starts.known(cold.content, shapes)
    assert start is not None
    agent._services.starts.keep(cold.content, shapes, start.model_copy(update={"planned": True}))
    with agent.load(source, shapes=shapes, deterministic=True) as warm:
        assert not warm.stats.answered
        assert relative_error(warm.run(feed), right(source, feed)) < 1e-5
        assert not [who for who in warm.stats.answered if who.startswith("whole")]


ENDING = """
from agent_sdk import Agent
from tests.agent.models import BRANCHING, expected
agent = Agent(processors="ort")
session = agent.load(BRANCHING)
print(sorted(session.run(expected(BRANCHING, seed=1)[0])))
"""


def test_a_program_that_is_done_before_its_plan_ends(tmp_path: Path) -> None:
    """What is being measured behind is given up when the program ends, closed or not; without a word."""
    ended = ended_program(ENDING, tmp_path, timeout_s=120)
    assert (ended.returncode, ended.stdout.strip()) == (0, "['y']"), ended.stderr
    assert "Traceback" not in ended.stderr

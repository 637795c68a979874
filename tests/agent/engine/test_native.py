"""The native library and the runtimes' C APIs where they fail, lie or are not there; many sessions; forks."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import platform
import random
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from onnx import TensorProto, helper

from agent_sdk import native
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.lanes import SequentialLoop
from agent_sdk.engine.single import whole_run
from agent_sdk.errors import ProcessorLost, SegmentFailedError
from agent_sdk.model import Model, read_model
from agent_sdk.native import building
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.ort import capi as ort_capi
from tests import CAMPAIGN
from tests.agent.engine.conftest import Reference
from tests.agent.engine.generate import dealt_plan, random_inputs, random_model
from tests.agent.engine.scene import NATIVE, flight_of
from tests.agent.runtimes.networks import RUNTIMES

SESSIONS, LOOK = (1000, 10) if CAMPAIGN else (5, 2)
LEAK_BYTES = 16 * 2**20
FORKS = 20 if CAMPAIGN else 3


def doubling(shape: tuple[int, ...]) -> bytes:
    """A network that adds its input to itself."""
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doubling", ends[:1], ends[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def runs_right(frozen: Path, reference: Reference) -> type:
    """A plan on two cores computes what it should; the loop that did it."""
    model = random_model(random.Random(3), 12)
    feeds = random_inputs(model, 0)
    with Device(discover("ort@0,ort@1", cache=frozen)) as device:
        plan = dealt_plan(model, ["ort@0", "ort@1"])
        with Executor(build_program(plan, model, device.processors), device) as executor:
            for _ in range(2):
                outputs, _ = executor.run(feeds)
                for name, expected in reference(model, feeds).items():
                    np.testing.assert_array_equal(outputs[name], expected)
            return type(flight_of(executor).loop)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (None, "no C compiler was found"),
        ("echo 'lanes.c: something is wrong' >&2; exit 1", "something is wrong"),
        ('while [ "$1" != -o ]; do shift; done; echo rubbish > "$2"', "file too short|invalid ELF header"),
        (
            'while [ "$1" != -o ]; do shift; done; echo | cc -shared -x c - -o "$2"',
            "undefined symbol: hope_make_arbiter",
        ),
    ],
)
def test_where_no_library_can_be_had_plans_run_in_sequence_and_the_log_says_so_once(
    body: str | None,
    reason: str,
    frozen: Path,
    tmp_path: Path,
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No compiler, one that fails, one that makes what does not load or lacks a function: the same answers."""
    monkeypatch.delenv(native.LANES_VARIABLE)
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\n{body}\n")
    compiler.chmod(0o755)
    library = tmp_path / "lanes.so"
    why = building.build(library, building.LANES, [] if body is None else [[str(compiler)]])
    monkeypatch.setattr(native, "LIBRARY", library)
    with caplog.at_level(logging.WARNING, native.__name__):
        assert [runs_right(frozen, reference) for _ in range(2)] == [SequentialLoop, SequentialLoop]
    (said,) = [record.getMessage() for record in caplog.records if record.name == native.__name__]
    assert re.search(reason, why or said)
    assert "in sequence" in said


def test_a_library_that_somebody_left_in_a_cache_is_not_loaded(tmp_path: Path) -> None:
    """What runs is the library beside the code: no folder that others may write to is asked for one."""
    for name in ("lanes.so", "native/lanes.so", "hope/native/lanes.so", "hope/lanes.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(native.LIBRARY.read_bytes())
    code = "from agent_sdk.native import library; assert library(); print(open('/proc/self/maps').read())"
    places = dict.fromkeys(
        ("HOPE_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "TMPDIR", "PWD", "LD_LIBRARY_PATH"), str(tmp_path)
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **places, native.LANES_VARIABLE: ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {line.split()[-1] for line in ran.stdout.splitlines() if "lanes" in line} == {str(native.LIBRARY)}


def test_a_build_replaces_no_library_that_somebody_has_loaded(tmp_path: Path) -> None:
    """The new file is another one: what stands in memory stays as it was."""
    path = tmp_path / "lanes.so"
    assert not building.build(path, building.LANES)
    loaded, before = native._loaded(path), path.stat().st_ino
    assert not building.build(path, building.LANES)
    assert path.stat().st_ino != before
    assert loaded.hope_make_rest()


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_runtime_whose_c_api_lacks_a_function_is_called_by_python(
    runtime: str, lanes: str, reference: Reference, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lanes are what they are; its segments are steps that call back, and the log says so once."""
    if runtime == "ort":
        monkeypatch.setattr(ort_capi, "VERSION", 10_000)
        forget, said = ort_capi._api.cache_clear, ort_capi.__name__
    else:
        from agent_sdk.runtimes.openvino import capi as ov_capi

        monkeypatch.setattr(ov_capi, "FUNCTIONS", (*ov_capi.FUNCTIONS, "ov_is_not_there"))
        forget, said = ov_capi.api.cache_clear, ov_capi.__name__
    forget()
    model = random_model(random.Random(3), 12)
    feeds = random_inputs(model, 0)
    try:
        with Device(discover(f"{runtime}@0,{runtime}@1")) as device:
            plan = dealt_plan(model, list(device.processors))
            with Executor(build_program(plan, model, device.processors), device) as executor:
                assert not any(call.native for call in flight_of(executor)._calls)
                outputs, _ = executor.run(feeds)
    finally:
        forget()
    for name, expected in reference(model, feeds).items():
        assert np.abs(outputs[name] - expected).max() <= 1e-4 * np.abs(expected).max()
    assert len([one for one in caplog.records if one.name == said]) == (lanes == "native")


def reshaping_model() -> Model:
    """The sum of nine numbers, through a shape that is told at run time: any but 3 by 3 makes a kernel fail."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["square"]),
        helper.make_node("ReduceSum", ["square"], ["y"], keepdims=0),
    ]
    ends = {"x": (TensorProto.FLOAT, (9,)), "shape": (TensorProto.INT64, (2,)), "square": (TensorProto.FLOAT, (3, 3))}
    infos = [helper.make_tensor_value_info(name, *kind) for name, kind in ends.items()]
    graph = helper.make_graph(
        nodes, "reshaping", infos[:2], [helper.make_tensor_value_info("y", TensorProto.FLOAT, ())], value_info=infos[2:]
    )
    return read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


@NATIVE
def test_what_comes_to_the_same_memory_is_made_a_tensor_once(frozen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs in two blocks in turn, as a server takes them in, and then each in one of its own: all are right."""
    made: list[int] = []

    class Counted(ort_capi._Value):
        def __init__(self, api: ort_capi.Api, array: np.ndarray) -> None:
            made.append(array.ctypes.data)
            super().__init__(api, array)

    monkeypatch.setattr(ort_capi, "_Value", Counted)
    shape = (1, 2, 256, 256)
    blocks = [np.empty(shape, np.float32) for _ in range(2 + ort_capi.MOST_VALUES)]
    with (
        Device(discover("ort@0", cache=frozen)) as device,
        whole_run(read_model(doubling(shape)), device.processors["ort@0"], device) as executor,
    ):
        before = len(made)
        for run, place in enumerate([0, 1] * 5 + [*range(2, len(blocks)), 0]):
            blocks[place][...] = run
            outputs, _ = executor.run({"x": blocks[place][:]})
            assert (outputs["y"] == 2 * run).all()
            assert run >= 10 or len(made) - before == min(run + 1, 2)


@pytest.mark.parametrize("where", ["ov@0", "ov@0-1"])
def test_a_runtime_that_reports_success_and_writes_nothing_is_caught(
    where: str, frozen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO on one thread does so when a kernel fails; on two it says what failed. The next run works."""
    model = reshaping_model()
    feeds = {"x": np.arange(9, dtype=np.float32), "shape": np.array([3, 3])}
    with Device(discover(where, cache=frozen)) as device:
        monkeypatch.setattr(device.processors[where], "refuse_untrusted", lambda ops, graph: None)
        plan = dealt_plan(model, [where])
        with Executor(build_program(plan, model, device.processors), device) as executor:
            for bad in ([4, 4], [5, 5]):
                assert executor.run(feeds)[0]["y"] == 36
                with pytest.raises(SegmentFailedError, match=f"failed on '{where}'") as caught:
                    executor.run(feeds | {"shape": np.array(bad)})
                assert isinstance(caught.value.__cause__, ProcessorLost)
            assert executor.run(feeds)[0]["y"] == 36


def test_sessions_opened_and_closed_leave_nothing(frozen: Path) -> None:
    """No thread, no file, no memory, no binding to a core, however many there were."""
    model = random_model(random.Random(5), 10)
    feeds = random_inputs(model, 0)
    process, cores = psutil.Process(), os.sched_getaffinity(0)
    counts: list[tuple[int, int]] = []
    resident: list[int] = []
    with Device(discover("ort", cache=frozen)) as device:
        for seed in range(SESSIONS):
            plan = dealt_plan(model, list(device.processors), seed=seed % 7)
            with Executor(build_program(plan, model, device.processors), device) as executor:
                executor.run(feeds, timeout_s=30 if seed % 2 else None)
            if seed % LOOK == LOOK - 1:
                gc.collect()
                counts.append((threading.active_count(), process.num_fds()))
                resident.append(process.memory_info().rss)
    assert counts[-1] == counts[0]
    assert resident[-1] < resident[len(resident) // 2] + LEAK_BYTES
    assert os.sched_getaffinity(0) == cores


def slice_ns(thread: int) -> int:
    """What the kernel gives a thread at a time: the fourth word of its ``struct sched_attr``."""
    answer = (ctypes.c_uint64 * 7)()
    number = {"x86_64": 315, "aarch64": 275}[platform.machine()]
    assert not ctypes.CDLL(None).syscall(number, thread, answer, ctypes.sizeof(answer), 0)
    return answer[3]


@NATIVE
@pytest.mark.skipif(tuple(map(int, platform.release().split(".")[:2])) < (6, 12), reason="kernels ignore it")
def test_lanes_and_workers_come_at_once_when_they_wake(frozen: Path) -> None:
    """They have short slices, and leave their caller its own: beside threads that spin they wait for no slice's end."""
    model = random_model(random.Random(5), 10)
    before = {thread.id for thread in psutil.Process().threads()}
    mine = slice_ns(0)
    with Device(discover("ort", cache=frozen)) as device:
        plan = dealt_plan(model, list(device.processors))
        with Executor(build_program(plan, model, device.processors), device) as executor:
            executor.run(random_inputs(model, 0))
            slices = [slice_ns(thread.id) for thread in psutil.Process().threads() if thread.id not in before]
            assert slices.count(100_000) >= len(executor.program.lanes) - 1
            assert slice_ns(0) == mine


FORKING = """
import gc, os, signal, threading
from agent_sdk.runtimes.offered import discover
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.errors import DeviceClosedError
from tests.agent.engine.generate import dealt_plan, random_inputs, random_model
import random

signal.alarm(150)
model = random_model(random.Random(5), 10)
feeds = random_inputs(model, 0)
device = Device(discover("ort"))
executor = Executor(build_program(dealt_plan(model, list(device.processors)), model, device.processors), device)
other = Executor(executor.program, device)
over = threading.Event()


def keep_running():
    while not over.is_set():
        other.run(feeds)


running = threading.Thread(target=keep_running)
executor.run(feeds)
running.start()
for _ in range(FORKS):
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    signal.alarm(60)
    again = lambda: Executor(executor.program, device)
    for call in (lambda: executor.run(feeds), again):
        try:
            call()
        except DeviceClosedError as error:
            print(error, flush=True)
    executor.close()
    other.close()
    device.close()
    del again, call, keep_running, running, executor, other, device
    gc.collect()
    os._exit(0)  # as multiprocessing's children do; the runtime itself cannot be left otherwise in a fork
over.set()
running.join()
executor.run(feeds)
device.close()
"""


WAITING = """
import os, random, signal, threading, time
from agent_sdk.runtimes.offered import discover
from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.errors import DeviceClosedError
from tests.agent.engine.generate import dealt_plan, random_inputs, random_model

signal.alarm(150)
model = random_model(random.Random(5), 10)
feeds = random_inputs(model, 0)
device = Device(discover("ort"))
program = build_program(dealt_plan(model, list(device.processors)), model, device.processors)
executors = [Executor(program, device) for _ in range(3)]
answers = []
waiting = [threading.Thread(target=lambda own=own: answers.append(own.run(feeds)[0])) for own in executors]
resources = [name for one in device.processors.values() for name in one.spec.resources]
with device.arbiter.held(tuple(dict.fromkeys(resources))):
    for own in waiting:
        own.start()
    while device.arbiter.waiting < len(waiting):
        time.sleep(0.001)
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            executors[0].run(feeds)
        except DeviceClosedError as error:
            print(error, flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), device.arbiter.waiting, flush=True)
for own in waiting:
    own.join()
first = executors[0].run(feeds)[0]
print(len(answers), all((one[name] == first[name]).all() for one in answers for name in first))
device.close()
"""


@NATIVE
def test_a_fork_while_runs_wait_at_the_arbiter() -> None:
    """The child is told that it is one; in the parent they wait on, and are right once they have their turn."""
    done = subprocess.run([sys.executable, "-c", WAITING], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    told, waited, right = done.stdout.splitlines()
    assert told.startswith("this process was forked")
    assert waited == "0 3"
    assert right == "3 True"


def test_a_forked_child_is_told_and_its_parent_goes_on() -> None:
    """Threads stay behind in a fork, in the middle of a run too: every use of the device there is one clear error."""
    program = FORKING.replace("FORKS", str(FORKS))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [one == "0" or one.startswith("this process was forked") for one in said] == [True] * 3 * FORKS, said
    assert said.count("0") == FORKS

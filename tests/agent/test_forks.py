"""What a forked child can do with what its parent opened: answer as a whole, or be told; end nothing of it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agent_sdk.forking import HERE, Forks, watch_forks
from agent_sdk.paths import CACHE_VARIABLE

FORKS = 3
SESSIONS = """
import os, signal, threading
import numpy as np
import pytest
from onnx import TensorProto, helper
from agent_sdk import Agent
from agent_sdk.first import children
from tests.agent.haste import measure_hastily
from tests.agent.models import BRANCHING, expected

signal.alarm(120)
measure_hastily(pytest.MonkeyPatch())
children.possible = lambda: False  # nothing runs in a child first
if PLANNED:
    source = BRANCHING
    feed, right = expected(source, seed=1)
else:  # how much it finds depends on the input
    ends = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]), helper.make_tensor_value_info(
        "y", TensorProto.INT64, [1, "found"])
    graph = helper.make_graph([helper.make_node("NonZero", ["x"], ["y"])], "finding", ends[:1], ends[1:])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    feed, right = {"x": np.float32([0, 2, 0, 3])}, {"y": np.int64([[1, 3]])}
agent = Agent(processors="ort@0,ort@1")
session = agent.load(source, background=False)
assert bool(session.plans.ready()) is PLANNED


def answers():
    for name, value in session.run(feed).items():
        np.testing.assert_allclose(value, right[name], rtol=1e-5)


def from_threads():
    wrong = []
    def work():
        try:
            answers()
        except Exception as error:
            wrong.append(error)
    threads = [threading.Thread(target=work) for _ in range(4)]
    for call in [each.start for each in threads] + [each.join for each in threads]:
        call()
    if wrong:
        raise wrong[0]


def asynchronously():
    done, said = threading.Event(), []
    def tell(outputs, data, error):
        said.append(error)
        done.set()
    session.run_async(None, feed, tell, None)
    done.wait()
    if said[0]:
        raise RuntimeError(said[0])


CALLS = (answers, from_threads, asynchronously, session.prepare, lambda: agent.load(source), session.close, agent.close)
asynchronously()
held, over = threading.Event(), threading.Event()


def hold():  # as whoever reads or plans behind holds them now and then
    plans, preparing = session.plans, session.preparing
    locks = [plans.lock, plans.whole._lock, plans._reading, preparing._lock, preparing._worker._lock]
    locks += [prepared._lock for prepared in session.plans.ready()]
    locks += [agent._lights._lock]
    for lock in locks:
        lock.acquire()
    held.set()
    over.wait()
    for lock in locks:
        lock.release()


for _ in range(FORKS):
    held.clear(), over.clear()
    holding = threading.Thread(target=hold)
    holding.start()
    held.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        for call in CALLS:
            try:
                call()
            except Exception as error:
                print(error, flush=True)
            else:
                print("done", flush=True)
        os._exit(0)  # as multiprocessing's children do
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    over.set()
    holding.join()
    answers()
agent.close()
"""
FOLDERS = """
import atexit, os, random, sys
from pathlib import Path
from agent_sdk.model.weights import LightModels
from tests.agent.engine.generate import random_model

model = random_model(random.Random(5), 10)
lights = LightModels(Path(sys.argv[1]))
folder = lights.get(model)[1]
child = os.fork()
if child == 0:
    atexit._run_exitfuncs()  # as a Python program's end does; a runtime's own end waits for its threads
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), folder.exists())
del model, lights
"""


def said(program: str, cache: Path, *arguments: str) -> list[str]:
    """What a program prints that ends well."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {CACHE_VARIABLE: str(cache), "HOPE_SOLVE_BUDGET_S": "0.3"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize("planned", [True, False], ids=["planned", "whole"])
def test_a_session_in_a_forked_child_answers_or_says_why_not(planned: bool, tmp_path: Path) -> None:
    """A whole network answers there, also from threads; a plan is one clear error; nothing hangs there."""
    told = [line[:23] for line in said(f"FORKS, PLANNED = {FORKS}, {planned}\n{SESSIONS}", tmp_path)]
    forked = "this process was forked"
    run = forked if planned else "done"
    assert told == [run, run, run, forked, forked, "done", "done", "0"] * FORKS


def test_a_forked_child_that_ends_leaves_the_parent_its_files(tmp_path: Path) -> None:
    """Cleaning up is the parent's: what the parent wrote for its sessions is still there."""
    assert said(FOLDERS, tmp_path / "cache", str(tmp_path / "weights")) == ["0 True"]
    assert not list((tmp_path / "weights").iterdir())


class Guarded(Forks):
    """What has locks that others may hold."""

    def __init__(self) -> None:
        self.lock, self.again, self.name = threading.Lock(), threading.RLock(), "kept"
        watch_forks(self)


def test_nobody_is_left_to_release_a_lock() -> None:
    """Locks that another thread of the parent held at the fork are free in the child; all else is as it was."""
    guarded, over, held = Guarded(), threading.Event(), threading.Event()

    def hold() -> None:
        with guarded.lock, guarded.again:
            held.set()
            over.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        free = [each.acquire(blocking=False) for each in (guarded.lock, guarded.again)]
        os._exit(0 if all(free) and guarded.name == "kept" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    over.set()
    holder.join()


def test_a_child_knows_itself_whichever_thread_made_it() -> None:
    """What is remembered of the process is the child's own in the child: its id, and who its main thread is."""
    codes: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child == 0:
            os._exit(0 if (HERE.process, HERE.main) == (os.getpid(), threading.get_ident()) else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    fork()
    forking = threading.Thread(target=fork)
    forking.start()
    forking.join()
    assert codes == [0, 0]

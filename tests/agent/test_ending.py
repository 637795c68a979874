"""How it ends: a program that closes nothing still exits, and what is closed stays closed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from agent_sdk import Agent
from agent_sdk.errors import DeviceClosedError
from agent_sdk.planner.client import PlannerClient
from agent_sdk.planner.supplier import PlanSupplier
from hope_schema import MissingRequest
from tests.agent.models import BRANCHING
from tests.agent.planner.planner_double import REQUEST, ScriptedTransport, plan_answer, small_graph, small_plan
from tests.agent.planner.supplying import CPU, FIGURES, NOTHING, supplier
from tests.agent.planner.test_client_blocking import loops

MEASURABLE = MissingRequest(
    model_hash=REQUEST.model_hash, soc="soc", frequency="any", device_id="device", processors=(CPU,)
)
CARELESS = """
import atexit
import gc
import sys
atexit.register(lambda: print(gc.get_freeze_count() > 10_000))
import pytest
from agent_sdk import Agent
from tests.agent.haste import measure_hastily
from tests.agent.models import BRANCHING
measure_hastily(pytest.MonkeyPatch())
agent = Agent({planner}, processors="ort@0")
session = agent.load(BRANCHING, background=False)
print(session.latest.obtained.source)
{end}
"""


@pytest.mark.parametrize(
    ("planner", "source", "end", "code"),
    [
        (None, "planner", "sys.exit(3)", 3),
        ("http://127.0.0.1:9", "single", "", 0),
    ],
)
def test_a_program_that_never_closes_its_agent_ends(
    planner: str | None, source: str, end: str, code: int, tmp_path: Path
) -> None:
    """The interpreter exits quietly although an agent is open, with a planner inside, with one far away, in failure.

    It does not look for cycles among all that was loaded, which takes longer than to end what is under way.
    """
    ended = subprocess.run(
        [sys.executable, "-c", CARELESS.format(planner=repr(planner), end=end)],
        env={**os.environ, "HOPE_CACHE_DIR": str(tmp_path), "HOPE_SOLVE_BUDGET_S": "0.3"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert (ended.returncode, ended.stdout.split()) == (code, [source, "True"])
    assert "Traceback" not in ended.stderr


def test_two_first_calls_open_one_planner(tmp_path: Path) -> None:
    """Threads that need the planner at the same time share the one that the first of them opens."""
    answers = {"/profiles/missing": NOTHING, "/plans": plan_answer(small_plan())}
    transport = ScriptedTransport(*[lambda request: answers[request.url.path]] * 4)
    opened = []

    def connect() -> PlannerClient:
        time.sleep(0.2)
        opened.append(PlannerClient("http://planner", transport=transport))
        return opened[-1]

    source = PlanSupplier(connect, "http://planner", tmp_path)
    question = source.question(small_graph(), REQUEST, MEASURABLE)
    threads = [threading.Thread(target=source.plan, args=(question, None)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    source.close()
    assert len(opened) == 1
    assert loops() == []


def test_who_asks_while_the_agent_is_closed_is_told_so(tmp_path: Path) -> None:
    """A client that goes away under a call means a closed agent, and nobody waits on for an answer."""
    found: list[DeviceClosedError] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        source = PlanSupplier(lambda: PlannerClient(url), url, tmp_path)

        def ask() -> None:
            try:
                source.plan(source.question(small_graph(), REQUEST, MEASURABLE), None)
            except DeviceClosedError as error:
                found.append(error)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        server.accept()[0].settimeout(1)
        source.close()
        thread.join(60)
    assert len(found) == 1


def test_a_closed_agent_obtains_nothing(agent: Agent) -> None:
    """A session of a closed agent refuses to ask for a newer plan, instead of quietly opening another planner."""
    session = agent.load(BRANCHING, background=False)
    agent.close()
    with pytest.raises(DeviceClosedError, match="agent is closed"):
        agent.refresh(session)
    with pytest.raises(DeviceClosedError, match="agent is closed"):
        agent.load(BRANCHING, background=False)
    assert loops() == []


def test_a_closed_supplier_sends_nothing(tmp_path: Path) -> None:
    """Figures offered after closing are declined in a sentence, as they are when the planner is away."""
    source = supplier(tmp_path, ScriptedTransport())
    source.close()
    message = source.upload(FIGURES)
    assert "agent is closed" in message

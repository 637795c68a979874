"""The planner as an agent embeds it: plans are solved in the call, on SQLite."""

from __future__ import annotations

import errno
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from hope_schema import (
    PlanReply,
    merge,
)
from planner_api.jobs import worker
from planner_api.jobs.process import JobProcess
from planner_api.plans import service
from planner_api.plans.standing import standing_tag
from tests.planner.samples import (
    PROCESSORS,
    Api,
    chain,
    eventually,
    measure,
    plan_request,
    serving,
)

GRAPH = chain()


@pytest.fixture
def embedded(sqlite_url: str) -> Iterator[Api]:
    """The application as an agent embeds it: plans are solved in the call."""
    with serving(sqlite_url, embedded=True, solve_budget_s=0.2) as running:
        yield running


def test_embedded_solves_in_the_call(embedded: Api) -> None:
    """An embedded planner answers with the final plan, and from what it stored the next time."""
    embedded.learn(GRAPH)
    first = embedded.post("/plans", plan_request(GRAPH))
    reply = PlanReply.model_validate_json(first.content)
    assert not reply.provisional
    assert first.headers["hope-plan-cache"] == "miss"
    second = embedded.post("/plans", plan_request(GRAPH))
    assert second.headers["hope-plan-cache"] == "hit"
    assert second.content == first.content


def test_a_planner_without_a_child_says_so_at_once(embedded: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its child does not start, who asks for a plan hears the cause, and gets the plan once it does."""
    monkeypatch.setattr(service, "EMBEDDED_WAIT_S", 20.0)  # who waits all that long hears of no cause
    monkeypatch.setattr(worker, "NO_CHILD_S", 0.1)
    embedded.learn(GRAPH)
    with monkeypatch.context() as short:
        short.setattr(JobProcess, "start", AsyncMock(side_effect=OSError(errno.ENOMEM, "Cannot allocate memory")))
        for _ in range(2):
            answer = embedded.post("/plans", plan_request(GRAPH))
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:hope:unavailable")
            assert "Cannot allocate memory" in answer.json()["detail"]
    assert eventually(lambda: embedded.post("/plans", plan_request(GRAPH)).status_code == 200)


def test_embedded_plans_again_when_figures_moved(embedded: Api) -> None:
    """A plan holds while figures move a little, and is made anew, under the same id, when they move much."""
    embedded.learn(GRAPH)
    first = embedded.plan(GRAPH)
    everything = embedded.learn(chain(4, "other"))  # nothing is missing: an upload without rows
    assert everything.latencies.us == ()
    embedded.post("/models", chain(6))
    missing = embedded.missing(chain(6))
    assert len(missing.latencies) == 4
    embedded.post("/profiles", measure(missing))
    assert embedded.plan(GRAPH).version == first.version, "figures of other ops change nothing"
    upload = json.loads(measure(missing).model_dump_json())
    upload["latencies"] = {
        "signature": [op.signature for op in merge(GRAPH)],
        "kind": [PROCESSORS[0].kind] * 4,
        "us": [100.0] * 4,
        "spread_us": [0.0] * 4,
        "count": [5] * 4,
    }
    embedded.post("/profiles", json.dumps(upload).encode())
    second = embedded.plan(GRAPH)
    assert second.plan_id == first.plan_id
    assert second.version == first.version + 1
    assert second.plan.makespan_us > first.plan.makespan_us
    assert embedded.client.get(f"/plans/{first.plan_id}").json()["version"] == second.version


def test_the_file_alone_says_what_a_planner_would_confirm(sqlite_url: str) -> None:
    """While nothing waits the file names the version that is served; while work waits, or there is no file, nobody."""
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    assert standing_tag(file, "p") is None
    with serving(sqlite_url, embedded=True, solve_budget_s=0.1) as api:
        api.learn(GRAPH)
        plan_id = api.plan(GRAPH).plan_id
        served = api.client.get(f"/plans/{plan_id}").headers["etag"]
        assert eventually(lambda: standing_tag(file, plan_id) is not None)
    assert standing_tag(file, plan_id) == served
    assert standing_tag(file, "another") is None
    with closing(sqlite3.connect(file)) as opened, opened:
        opened.execute(
            "INSERT INTO jobs (kind, key, priority, rank, queued_at, not_before, again, attempt, failures) "
            "VALUES ('better', 'p', 0, 0, 0, 0, 0, 0, 0)"
        )
    assert standing_tag(file, plan_id) is None
    file.write_bytes(b"no database" * 1000)
    assert standing_tag(file, plan_id) is None


def test_a_known_model_loads_no_solver(sqlite_url: str) -> None:
    """Answering for a known model in a new process imports no HiGHS."""
    with serving(sqlite_url, embedded=True, solve_budget_s=0.1) as api:
        api.learn(GRAPH)
        api.plan(GRAPH)
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.planner.samples import chain, serving
with serving({sqlite_url!r}, embedded=True) as api:
    graph = chain()
    assert api.missing(graph).latencies == ()
    api.plan(graph)
print(sorted(set(sys.modules) & {{"highspy", "psycopg", "alembic"}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

"""What strangers send is not kept, and what requests need is loaded before the first of them."""

from __future__ import annotations

import gc
import json
import platform
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import structlog

from planner_api.console.session import COOKIE
from planner_api.devices import guard
from planner_api.web import logs
from tests.planner.samples import Api, bearer, chain, enrol, missing_request, serving

GUESSES = 40


def holding(root: Any, text: str) -> list[str]:
    """Every string and every bytes that can be reached from an object and in which a text stands."""
    found, seen, queue = [], set(), [root]
    while queue:
        for one in gc.get_referents(queue.pop()):
            if isinstance(one, str | bytes):
                if text in (one if isinstance(one, str) else one.decode("latin-1")):
                    found.append(repr(one)[:200])
            elif id(one) not in seen and not isinstance(one, type(sys)):
                seen.add(id(one))
                queue.append(one)
    return found


def guess(api: Api, kind: str, drawn: str) -> int:
    """Send something that looks like a secret; return the status of the answer."""
    match kind:
        case "token":
            return api.client.get("/fleet", headers=bearer(drawn + "x" * 200)).status_code
        case "claim":
            return int(enrol(api, drawn + "x" * 200, "device-1").status_code)
    cookie = {"cookie": f"{COOKIE}={drawn}{'x' * (43 - len(drawn))}"}
    return api.client.get("/console", headers=cookie, follow_redirects=False).status_code


def test_what_strangers_send_is_kept_nowhere(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tokens, claims and cookies that nobody gave out the planner holds no byte afterwards, and of few a digest."""
    monkeypatch.setattr(guard, "UNKNOWN_S", 600.0)
    with serving(sqlite_url, works=(), tokens_required=True) as api:
        drawn = secrets.token_hex(8)
        statuses = {
            guess(api, kind, f"{drawn}-{number}-") for kind in ("token", "claim", "cookie") for number in range(GUESSES)
        }
        assert statuses <= {303, 401, 429}
        api.client.get("/healthz")
        gc.collect()
        assert holding(api.app, f"{drawn}-") == []
        tokens = api.app.planner.tokens
        assert not tokens._known._kept
        assert {len(each) for each in tokens._unknown} == {64}


def test_a_flood_of_refusals_is_one_line(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks too often writes no log full: one line says how often, from where, and others' errors keep theirs."""
    with serving(sqlite_url, works=(), tokens_required=True, rate_per_address=0.001, burst_per_address=1) as api:
        with structlog.testing.capture_logs() as said:
            assert [api.client.get("/fleet").status_code for _ in range(20)] == [401] + [429] * 19
            monkeypatch.setattr(logs, "SAY_AGAIN_S", 0.0)
            assert api.client.get("/fleet").status_code == 429
        lines = [(line["status"], line.get("times")) for line in said if line["event"] == "request"]
        assert lines == [(401, None), (429, 1), (429, 19)]
        assert {line["client"] for line in said if line["event"] == "request"} == {"testclient"}


FREED = """
import asyncio, re
from pathlib import Path
from planner_api.service import give_back
def held():
    return 1024 * int(re.search(r"VmRSS:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
pieces = [bytes(4096) for _ in range(16_384)]
last = bytes(4096)
del pieces
before = held()
asyncio.run(give_back())
print(before - held())
"""
"""Free 64 MiB below something that stays, and print how much less is held after it was given back."""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries give back by themselves")
def test_free_memory_is_given_back() -> None:
    """What many small pieces were freed of goes back to the system, although something behind them stays."""
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 48 * 2**20


PROGRAM = """
import json, sys
from fastapi.testclient import TestClient
from planner_api.app import create_app
from planner_api.cli import serve
from planner_api.settings import Settings
found = set()
with TestClient(create_app(Settings(database_url=sys.argv[1], worker_in_process=False))) as client:
    client.get("/healthz")
    sys.addaudithook(lambda event, given: found.add(given[0]) if event == "import" else None)
    for method, path, body in json.loads(sys.argv[2]):
        answer = client.request(method, path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code < 300, answer.text
print(json.dumps(sorted(found)))
"""
"""Serve these requests, and print what was imported meanwhile."""


def test_requests_import_nothing(sqlite_url: str) -> None:
    """Whatever requests need was imported before the first: threads that import at once wait for each other."""
    known, other = chain(30), chain(40)
    with serving(sqlite_url) as api:
        api.learn(known)
        api.profile()
    question = missing_request(other, max_items=10).model_dump_json(exclude_none=True)
    requests = [
        ("POST", "/models", other.model_dump_json()), ("POST", "/profiles/missing", question), ("GET", "/fleet", ""),
        ("GET", "/fleet/plans", ""), ("GET", "/console", ""), ("GET", "/console/plans", ""), ("GET", "/metrics", ""),
        ("GET", "/audit/proof", ""), ("GET", "/readyz", ""),
    ]  # fmt: skip
    program = [sys.executable, "-c", PROGRAM, sqlite_url, json.dumps(requests)]
    done = subprocess.run(program, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    ours = {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])} - sys.stdlib_module_names
    assert ours == set()

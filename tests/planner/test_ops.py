"""Metrics, traces and logs say what happened, and no secrets."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from sqlalchemy import text

from planner_api.app import openapi_document
from planner_api.db.migrate import HEAD, upgrade
from planner_api.settings import Settings
from planner_api.web.logs import configure, redact
from planner_api.web.metrics import Metrics
from planner_api.web.observe import Observe
from planner_api.web.probes import FRESH_S
from planner_api.web.tokens import new_token
from tests.planner.samples import chain, eventually, plan_request, serving

GRAPH = chain()
OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_the_table_of_settings_is_true() -> None:
    """Every setting of a planner that serves stands in ``docs/operations.md`` once, with its default."""
    rows = re.findall(r"^\| ((?:`[A-Z_]+`(?:, )?)+) \| (.*?) \|", OPERATIONS.read_text(), re.MULTILINE)
    said = [pair for names, values in rows for pair in zip(names.split(", "), values.split(", "), strict=True)]
    settings = {name: field.default for name, field in Settings.model_fields.items() if name != "embedded"}
    assert sorted(name for name, _ in said) == sorted(f"`{name.upper()}`" for name in settings)
    for name, value in said:
        default, plain = settings[name.strip("`").lower()], value.strip("`")
        if isinstance(default, int | float) and not isinstance(default, bool):
            number, unit = re.fullmatch(r"([\d .]+?)(?: (MiB|GiB))?", plain).groups()
            assert float(number.replace(" ", "")) * {None: 1, "MiB": 2**20, "GiB": 2**30}[unit] == default, name
        elif default is None or default == frozenset():
            assert plain in ("none", "SQLite only"), name
        else:
            assert plain == (str(default).lower() if isinstance(default, bool) else default), name


def test_the_metrics_page_reads_as_prometheus_wants_it() -> None:
    """Counters, histograms and gauges appear with their labels, and the text parses."""
    from prometheus_client.parser import text_string_to_metric_families

    metrics = Metrics()
    metrics.request("GET", "/plans/{plan_id}", 200, 0.004)
    metrics.job("better", "done", 1.5)
    metrics.gauges["plans"] = ("status", {"queued": 3.0})
    families = {family.name: family for family in text_string_to_metric_families(metrics.render().decode())}
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families.values()
        for sample in family.samples
    }
    route = (("method", "GET"), ("route", "/plans/{plan_id}"), ("status", "200"))
    assert samples["hope_http_request_seconds_count", route] == 1
    assert samples["hope_job_seconds_count", (("kind", "better"), ("outcome", "done"))] == 1
    assert samples["hope_plans", (("status", "queued"),)] == 3
    assert any(name.startswith("process_") for name in families)


def test_requests_are_counted_by_route_and_status(sqlite_url: str) -> None:
    """Every answer counts once, cached plans in front of the application too, and no id becomes a label."""
    with serving(sqlite_url) as api:
        api.learn(GRAPH)
        plan_id = api.post("/plans", plan_request(GRAPH)).json()["plan_id"]
        for _ in range(3):
            assert api.client.get(f"/plans/{plan_id}").status_code == 200
        for path in ("/plans/p-nobody", "/plans/p-nobody/else/p-else", "/invented", "/console/invented"):
            api.client.get(path)
        page = api.client.get("/metrics").text
    counts = {
        (route, status): float(value)
        for route, status, value in re.findall(
            r'hope_http_request_seconds_count\{method="GET",route="([^"]*)",status="(\d+)"\} (\S+)', page
        )
    }
    assert counts["/plans/{plan_id}", "200"] == 3
    assert counts["/plans/{plan_id}", "404"] == 1
    labels = set(re.findall(r'route="([^"]*)"', page))
    assert labels <= {*openapi_document()["paths"], "/console/{path}", "other"}, "whatever paths clients invent"
    assert {"/console/{path}", "other"} <= labels


def test_a_request_that_is_cancelled_is_no_failure() -> None:
    """An embedded planner closed in the middle of a call counts no error, and logs none."""
    counted: list[int] = []

    async def asked() -> None:
        async def never(*_: Any) -> None:
            await asyncio.Event().wait()

        scope = {"type": "http", "method": "GET", "path": "/plans/p", "raw_path": b"/plans/p", "headers": []}
        observed = Observe(never, lambda *told: counted.append(told[2]))
        call = asyncio.ensure_future(observed(scope, never, never))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    with structlog.testing.capture_logs() as logs:
        asyncio.run(asked())
    assert counted == [499]
    assert [line["log_level"] for line in logs] == ["info"]


def test_requests_are_traced_where_it_is_asked_for(sqlite_url: str) -> None:
    """With OpenTelemetry installed and HOPE_TELEMETRY on, a request is a span with route, status and request id."""
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    with serving(sqlite_url, telemetry=True) as api:
        answer = api.client.get("/plans/p-nobody", headers={"x-request-id": "mine"})
        api.client.head("/plans/p-nobody")
    # FastAPI may add spans of its own below ours.
    span, head = [each for each in exporter.get_finished_spans() if "hope.request_id" in (each.attributes or {})]
    assert answer.headers["x-request-id"] == "mine"
    assert (span.name, head.name) == ("GET /plans/{plan_id}", "HEAD /plans/{plan_id}")
    assert span.attributes is not None
    assert span.attributes["http.response.status_code"] == 404
    assert span.attributes["hope.request_id"] == "mine"


def test_probes_reach_the_database_once_a_second_at_most(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often somebody without a token asks, one look serves them all, failures too; then it is looked again."""
    with serving(sqlite_url) as api:
        database, reads, now = api.app.planner.database, [], [0.0]

        def counted() -> Any:
            reads.append(1)
            return database.read()

        monkeypatch.setattr(api.app.planner.probes, "_database", SimpleNamespace(read=counted, write=database.write))
        monkeypatch.setattr("planner_api.concurrency.time", SimpleNamespace(monotonic=lambda: now[0]))
        assert {api.client.get("/readyz").status_code for _ in range(20)} == {200}
        assert {api.client.get("/metrics").status_code for _ in range(20)} == {200}
        assert len(reads) == 2
        monkeypatch.setattr("planner_api.db.migrate.HEAD", "4.0001")
        assert api.client.get("/readyz").status_code == 200
        now[0] = FRESH_S
        assert {api.client.get("/readyz").status_code for _ in range(20)} == {503}
        assert len(reads) == 3


def test_secrets_never_reach_the_log(sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Tokens and database passwords are blotted out of every log line, however they got there."""
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    token = new_token("device")
    try:
        configure(Settings(log_format="json"))
        structlog.get_logger("test").warning(
            "event", header=f"Bearer {token}", nested={"urls": [f"postgresql://hope:swordfish@db/hope?x={token}"]}
        )
        logging.getLogger("sqlalchemy").error("cannot connect to postgresql://hope:swordfish@db/hope")
    finally:
        structlog.reset_defaults()
        logging.getLogger().handlers.clear()
    said = stream.getvalue()
    lines = [json.loads(line) for line in said.splitlines()]
    assert len(lines) == 2
    assert token not in said
    assert "swordfish" not in said
    assert redact(["plain", 1, None]) == ["plain", 1, None]


def test_readiness_says_when_nothing_can_be_written(postgres_url: str) -> None:
    """A database that only reads, such as a standby, is not ready, and what must be written there answers 503."""
    with serving(postgres_url) as api:
        assert api.client.get("/readyz").status_code == 200

        async def read_only(setting: str) -> None:
            name = api.app.planner.database.url.database
            async with api.app.planner.database.write() as session:
                await session.execute(text("SET TRANSACTION READ WRITE"))
                await session.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = {setting}'))
            await api.app.planner.database.writer.dispose()

        api.await_(read_only, "on")
        assert eventually(lambda: api.client.get("/readyz").status_code == 503)
        assert "nothing can be written" in api.client.get("/readyz").json()["detail"]
        refused = api.post("/models", GRAPH)
        assert (refused.status_code, refused.json()["type"]) == (503, "urn:hope:unavailable")
        assert int(refused.headers["retry-after"]) > 0
        api.await_(read_only, "off")
        assert eventually(lambda: api.client.get("/readyz").status_code == 200)


def test_older_replicas_serve_on_while_a_database_only_grows(database_url: str) -> None:
    """A later revision of the same epoch is ready, one of the next epoch and an earlier one are not."""
    with serving(database_url) as api:

        async def stamp(revision: str) -> None:
            async with api.app.planner.database.write() as session:
                await session.execute(text("UPDATE alembic_version SET version_num = :found"), {"found": revision})

        def ready() -> int:
            api.app.planner.probes._looks._calls.clear()
            return int(api.client.get("/readyz").status_code)

        for revision, status in (("3.9999", 200), ("4.0001", 503), ("2.0003", 503), ("0011", 503), (HEAD, 200)):
            api.await_(stamp, revision)
            assert ready() == status, revision
        api.await_(stamp, "3.9999")
        assert upgrade(database_url) is False
        api.await_(stamp, HEAD)


FULL = """
import resource, sys
from pathlib import Path
from tests.planner.samples import chain, serving
url, path = sys.argv[1], Path(sys.argv[1].removeprefix("sqlite:///"))
with serving(url) as api:
    assert api.client.get("/readyz").status_code == 200
    full = max(each.stat().st_size for each in path.parent.iterdir()) // 4096 * 4096
    resource.setrlimit(resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
    api.app.planner.probes._looks._calls.clear()
    for _ in range(200):
        answer = api.client.get("/readyz")
        api.app.planner.probes._looks._calls.clear()
        if answer.status_code != 200:
            break
    print(answer.status_code, answer.json()["detail"])
    print(api.post("/models", chain()).status_code)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    api.app.planner.probes._looks._calls.clear()
    print(api.client.get("/readyz").status_code)
"""


def test_readiness_says_when_the_disk_is_full(sqlite_url: str) -> None:
    """A file that may not grow is not ready and answers 503 to what must be written; with room again it is ready."""
    done = subprocess.run([sys.executable, "-c", FULL, sqlite_url], capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("503", "200"))]
    assert len(lines) == 3, done.stderr[-2000:]
    assert lines[0].startswith("503 nothing can be written to the database"), lines
    assert lines[1:] == ["503", "200"]


def test_every_line_of_the_log_is_json() -> None:
    """Tracebacks of threads, of tasks and of the process itself, warnings and breaks in texts are one line each."""
    program = """
import asyncio, logging, threading, warnings
from planner_api.settings import Settings
from planner_api.web.logs import configure
configure(Settings(log_format="json"))
warnings.warn("a\\nb")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
async def main():
    task = asyncio.create_task(asyncio.sleep(0, result=None))
    await task
    asyncio.get_running_loop().call_exception_handler({"message": "lost", "exception": ValueError("x")})
asyncio.run(main())
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("uvicorn.error").exception("theirs")
raise RuntimeError("c\\nd")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert len(lines) == 5
    assert [line["event"] for line in lines if "Traceback" in line.get("exception", "")].count("uncaught") == 2

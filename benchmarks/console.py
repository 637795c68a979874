"""The console: what the server takes for the first view of a large fleet, what travels to a browser, what axe finds.

python -m benchmarks.console [--devices 100000] [--json FILE]
"""

from __future__ import annotations

import asyncio
import re
import statistics
import tempfile
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import httpx
from sqlalchemy import Connection, insert, text

from benchmarks import cli
from benchmarks.results import Found, Measure, Table, TableRow, report, verdict
from benchmarks.service.stage import databases
from hope_schema.proof import hash_token
from planner_api.app import create_app
from planner_api.db.engine import sync_engine
from planner_api.db.tables import Base, DeviceRow, DriftRow, ModelRow, PlanRow, ProfileRow, SocRow, TokenRow
from planner_api.settings import Settings
from planner_api.web.tokens import new_token
from tests.browser import chromium, installed
from tests.planner.console.pictures import fleet
from tests.planner.console.violations import violations

MODELS, SOCS = 50, 500
VIEWS, PAUSE_S = 300, 0.1
"""Views of the page, and how long after one the next is asked for: the numbers are counted anew six times meanwhile."""
LARGEST_MS, LARGEST_BYTES = 150.0, 200_000
HERE = "http://planner"

Row = dict[str, Any]


def measure(url: str, devices: int = 100_000) -> Found:
    """Fill an empty, migrated PostgreSQL database with a fleet and look at it."""
    return asyncio.run(_look(url, fill(url, devices), devices))


def fill(url: str, devices: int) -> str:
    """Write a fleet into a database: devices, their SoCs and profiles, plans, reports; return an admin's token."""
    random, now, token = Random(7), datetime.now(UTC), new_token("admin")
    socs = [f"soc-{number:03}" for number in range(SOCS)]
    hashes = [f"{number:064x}" for number in range(MODELS)]
    engine = sync_engine(url)
    with engine.begin() as connection:
        values = {"ops": 120, "super_ops": 80, "graph_zstd": b"", "graph_digest": "", "figures_zstd": b""}
        values |= {"created_at": now}
        _write(connection, ModelRow, ({"hash": one, "name": f"model {one[-2:]}", **values} for one in hashes))
        known = {"created_at": now, "established_at": now}
        _write(connection, SocRow, ({"id": number, "name": soc, **known} for number, soc in enumerate(socs, 1)))
        profile = {"frequency": "max", "version": 3, "created_at": now, "updated_at": now}
        _write(connection, ProfileRow, ({"soc_id": n, **profile} for n in range(1, SOCS + 1)))
        plans = [(f"p-{model[-2:]}-{soc}", model, soc) for model in hashes for soc in socs]
        _write(connection, PlanRow, (_plan(random, now, *plan) for plan in plans))
        _write(connection, DeviceRow, (_device(random, now, number, socs) for number in range(devices)))
        _write(connection, DriftRow, (_report(random, now, number, hashes, socs) for number in range(devices)))
        hashed = {"token_hash": hash_token(token), "scope": "admin", "label": "", "created_at": now}
        _write(connection, TokenRow, [hashed])
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE"))
    engine.dispose()
    return token


def _write(connection: Connection, table: type[Base], rows: Iterable[Mapping[str, Any]]) -> None:
    waiting = iter(rows)
    while batch := list(islice(waiting, 5000)):
        connection.execute(insert(table), batch)


def _plan(random: Random, now: datetime, plan_id: str, model: str, soc: str) -> Row:
    failed = random.random() < 0.002
    makespan_us = random.uniform(2e3, 6e4)
    return {
        "id": plan_id, "model_hash": model, "jobs": [{"model_hash": model}], "soc": soc, "frequency": "max",
        "method": "auto", "objective": "makespan", "version": 0 if failed else 2, "provisional": False,
        "makespan_us": makespan_us, "gap": random.uniform(0, 0.3), "hits": random.randrange(10_000), "misses": 1,
        "created_at": now,
        "error": "no plan exists" if failed else None,
    }  # fmt: skip


def _device(random: Random, now: datetime, number: int, socs: list[str]) -> Row:
    seen = now - timedelta(minutes=random.expovariate(1 / 2000))
    return {
        "id": f"phone-{number:08}", "soc": socs[min(int(random.expovariate(1 / 60)), SOCS - 1)], "frequency": "max",
        "versions": {"hope-inference": "0.1.0"}, "enrolled_at": now - timedelta(days=30), "last_seen_at": seen,
    }  # fmt: skip


def _report(random: Random, now: datetime, number: int, hashes: list[str], socs: list[str]) -> Row:
    return {
        "device_id": f"phone-{number:08}", "plan_id": f"p-{random.choice(hashes)[-2:]}-{random.choice(socs)}",
        "plan_version": 2, "predicted_us": 1e4, "measured_us": 1e4 * random.lognormvariate(0.02, 0.1), "runs": 64,
        "reported_at": now - timedelta(minutes=random.randrange(10_000)),
    }  # fmt: skip


async def _look(url: str, token: str, devices: int) -> Found:
    app = create_app(Settings(database_url=url, tokens_required=True, worker_in_process=False, rate_per_token=0))
    await app.planner.start()
    try:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=HERE, headers={"accept-encoding": "gzip"}) as client:
            signed = await client.post("/console/login", data={"token": token}, headers={"origin": HERE})
            assert signed.status_code == 303, signed.text
            first_ms = await _view(client, "/console")
            times = []
            for _ in range(VIEWS):
                times.append(await _view(client, "/console"))
                await asyncio.sleep(PAUSE_S)
            search_ms = [await _view(client, f"/console/devices?search={number:04}") for number in range(20)]
            sent = await _bytes(client)
    finally:
        await app.planner.stop()
    p95 = statistics.quantiles(times, n=20)[-1]
    fleet = f"console's first view, {devices} devices"
    rows: list[TableRow] = [
        ["first view, warm, median", statistics.median(times)],
        ["first view, warm, p95", p95],
        ["first view, nothing counted yet", first_ms],
        ["a device found by a part of its id, median", statistics.median(search_ms)],
    ]
    measures = [
        verdict(f"{fleet}, warm: server time p95 (ms)", p95, LARGEST_MS),
        verdict("console's first load, compressed (bytes)", sent, LARGEST_BYTES),
    ]
    return measures, [Table(f"Console on {devices} devices", ("view", "server time (ms)"), rows)]


async def _view(client: httpx.AsyncClient, path: str) -> float:
    started = time.perf_counter()
    answer = await client.get(path)
    assert answer.status_code == 200, answer.text
    return (time.perf_counter() - started) * 1e3


async def _bytes(client: httpx.AsyncClient) -> int:
    """Bytes of the first view with everything it names, as they travel."""
    page = await client.get("/console")
    total = int(page.headers["content-length"])
    for path in sorted(set(re.findall(r'"(/console/static/[^"]+)"', page.text))):
        total += int((await client.get(path)).headers["content-length"])
    return total


def accessibility() -> Measure | None:
    """Count what axe finds on every page of a small fleet in both themes; None where there is no Chromium."""
    if installed() is None:
        return None
    with tempfile.TemporaryDirectory() as directory, chromium() as browser, fleet(Path(directory), str) as console:
        page, found = console.sign_in(browser), 0
        for name, path in console.pages().items():
            page.goto(path)
            found += len(violations(page, name))
    return verdict("console: violations found by axe in Chromium, every page, both themes", found, 0.0)


def look(devices: int) -> Found:
    """Measure on a PostgreSQL server of its own, and in a browser where there is one."""
    with databases(None) as urls:
        measures, tables = measure(urls[-1], devices)
    return [*measures, *filter(None, [accessibility()])], tables


def main() -> int:
    """Measure and print; return the exit status."""
    parser = cli.measuring("console", __doc__)
    parser.add_argument("--devices", type=int, default=100_000)
    options = parser.parse_args()
    measures, tables = look(options.devices)
    report(options.json, measures, tables)
    return 0 if all(each.ok for each in measures) else 1


if __name__ == "__main__":
    raise SystemExit(main())

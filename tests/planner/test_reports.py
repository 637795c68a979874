"""Reports: kept in groups, answered when they are stored whatever dies then, and read the same by either way."""

from __future__ import annotations

import asyncio
import gzip
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, select

from benchmarks.service.pump import Answer, Pump
from benchmarks.service.stage import Stage
from hope_schema import DeviceReport, MeasuredRun
from planner_api.concurrency import Gathering
from planner_api.db.engine import sync_engine
from planner_api.db.migrate import upgrade
from planner_api.db.tables import DeviceRow, DriftRow, PlanVersionRow
from planner_api.db.upsert import add_all, put_all
from planner_api.devices.reports import SentReport, store
from planner_api.rollout.counting import listen
from planner_api.web.body import SMALL_BYTES
from tests import CAMPAIGN
from tests.planner.samples import FREQUENCY, JSON, SOC, chain, serving

GRAPH = chain()
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
VALID = DeviceReport(soc=SOC, frequency=FREQUENCY).model_dump_json().encode()
BODIES = {
    "valid": VALID,
    "spaced": VALID + b" \n",
    "empty": b"",
    "cut off": VALID[:-3],
    "an unknown field": b'{"soc": "s", "frequency": "f", "more": 1}',
    "a bad label": b'{"soc": "<b>", "frequency": "f"}',
    "a time without runs": b'{"soc": "s", "frequency": "f", "measured": [{"plan_id": "p", "plan_version": 1, '
    b'"measured_us": 5.0, "runs": 0}]}',
    "not a number": b'{"soc": "s", "frequency": "f", "measured": [{"plan_id": "p", "plan_version": 1, '
    b'"measured_us": NaN, "runs": 1}]}',
    "deep": b"[" * 5000,
    "large": VALID[:-1] + b" " * SMALL_BYTES + b"}",
}


def test_a_report_reads_the_same_in_any_coding(sqlite_url: str) -> None:
    """A report is kept, or refused with the same words, whether it comes as JSON or in gzip."""
    with serving(sqlite_url) as api:

        def put(device: str, body: bytes, **headers: str) -> tuple[int, Any]:
            answer = api.client.put(f"/devices/{device}/report", content=body, headers={**JSON, **headers})
            assert answer.headers["x-request-id"]
            said = answer.json() if answer.content else {}
            return answer.status_code, {name: said[name] for name in said.keys() - {"request_id", "instance"}}

        for name, body in BODIES.items():
            plain = put("plain", body)
            packed = put("packed", gzip.compress(body), **{"content-encoding": "gzip"})
            if name == "large":
                assert (plain[0], packed[0]) == (413, 413)
            else:
                assert plain == packed, name
            assert (plain[0] == 204) == (name in ("valid", "spaced")), name
        counted = [
            line for line in api.client.get("/metrics").text.splitlines() if '"/devices/{device_id}/report"' in line
        ]
        assert any(line.endswith(" 4.0") and "_count" in line and '"204"' in line for line in counted), counted
        ids = [device["device_id"] for device in api.client.get("/devices").json()["devices"]]
        assert sorted(ids) == ["packed", "plain"]
        for path in ("/devices/%3Cb%3E/report", f"/devices/{'d' * 129}/report", "/devices/plain/report?x=1"):
            assert api.client.put(path, content=VALID, headers=JSON).status_code == 422, path


def test_many_rows_are_written_as_one_by_one(database_url: str) -> None:
    """Rows put and added in random groups leave what a dictionary holds; columns to keep are kept."""
    with serving(database_url) as api:
        api.learn(GRAPH)
        plan_id = api.plan(GRAPH).plan_id
    drawn = random.Random(5)
    devices: dict[str, tuple[str, Any, dict[str, str]]] = {}
    total = 0
    engine = sync_engine(database_url)
    for _ in range(20):
        names = drawn.sample([f"it's-{n}" for n in range(12)], drawn.randrange(1, 6))
        at = MOMENT.replace(microsecond=drawn.randrange(10**6))
        versions = {"a\\b": drawn.choice(['"', "{}", "é", "\\N", ","])}
        rows = [{"id": n, "soc": n[::-1], "versions": versions, "enrolled_at": at} for n in names]
        more = [
            {"plan_id": p, "version": 1, "reports": drawn.randrange(5), "log_sum": drawn.random()}
            for p in drawn.sample([plan_id, "unknown"], drawn.randrange(3))
        ]
        with engine.begin() as connection:
            put_all(connection, DeviceRow, rows, key=("id",), keep=("enrolled_at",))
            add_all(connection, PlanVersionRow, more, key=("plan_id", "version"))
        for name in names:
            devices[name] = (name[::-1], devices[name][1] if name in devices else at, versions)
        total += sum(int(str(row["reports"])) for row in more if row["plan_id"] == plan_id)
    with engine.connect() as connection:
        assert _devices(connection) == devices
        assert connection.scalar(select(PlanVersionRow.reports).where(PlanVersionRow.version == 1)) == total
    engine.dispose()


def test_a_device_that_reports_twice_at_once_costs_the_others_nothing(database_url: str) -> None:
    """Two reports of one device in a group: its later one stands, and the other devices' are stored."""
    upgrade(database_url)
    older, newer = (DeviceReport(soc=SOC, frequency=frequency) for frequency in ("slow", FREQUENCY))
    group = [SentReport("twice", older, MOMENT), SentReport("other", newer, MOMENT), SentReport("twice", newer, MOMENT)]
    engine = sync_engine(database_url)
    with engine.begin() as connection:
        store(connection, group, listen)
    with engine.connect() as connection:
        found = connection.execute(select(DeviceRow.id, DeviceRow.frequency))
        assert {row.id: row.frequency for row in found} == {"twice": FREQUENCY, "other": FREQUENCY}
    engine.dispose()


def test_two_reports_of_one_device_in_a_group_both_count(sqlite_url: str) -> None:
    """The later one stands beside the device's name, and the sums of the plan's version are of both."""
    with serving(sqlite_url) as api:
        api.learn(GRAPH)
        plan = api.plan(GRAPH)
        runs = [
            MeasuredRun(
                plan_id=plan.plan_id, plan_version=1, measured_us=us, p99_us=p99_us, runs=runs, deadlines=4, missed=1
            )
            for us, p99_us, runs in ((5.0, 8.0, 3), (7.0, 32.0, 4))
        ]
        group = [
            SentReport("twice", DeviceReport(soc=SOC, frequency=FREQUENCY, measured=(run,)), MOMENT) for run in runs
        ]
        engine = sync_engine(sqlite_url)
        with engine.begin() as connection:
            store(connection, group, listen)
        with engine.connect() as connection:
            sums = connection.execute(select(PlanVersionRow.reports, PlanVersionRow.timed, PlanVersionRow.runs)).one()
            stands = connection.execute(select(DriftRow.measured_us)).scalars().all()
        engine.dispose()
        (version,) = api.client.get(f"/plans/{plan.plan_id}/versions").json()["versions"]
        (summed,) = api.client.get("/fleet/plans").json()["plans"]
        (model,) = api.client.get("/fleet/models").json()["models"]
        (device,) = api.client.get("/devices").json()["devices"]
        paths = ("models", f"models/{GRAPH.model_hash}", f"plans/{plan.plan_id}", "devices/twice")
        pages = [api.client.get(f"/console/{path}").text for path in paths]
        failed = MeasuredRun(plan_id=plan.plan_id, plan_version=1, measured_us=None, runs=0, failures=1)
        sent = DeviceReport(soc=SOC, frequency=FREQUENCY, measured=(failed,))
        assert api.put("/devices/broken/report", sent).status_code == 204
        assert api.client.get("/console/devices/broken").status_code == 200, "a device no run of which was timed"
    assert all('<span class="bad">25 %</span>' in page for page in pages), "misses are seen per model, plan and device"
    assert (tuple(sums), stands) == ((2, 2, 7), [7.0])
    results = version["results"]
    assert (results["p99_us"], results["deadlines"], results["missed"]) == (pytest.approx(16.0), 8, 2)
    assert (summed["p99_us"], summed["missed"], model["missed"], device["missed"]) == (pytest.approx(16.0), *[0.25] * 3)


def _devices(connection: Connection) -> dict[str, Any]:
    columns = DeviceRow.id, DeviceRow.soc, DeviceRow.enrolled_at, DeviceRow.versions
    return {row.id: (row.soc, row.enrolled_at, row.versions) for row in connection.execute(select(*columns))}


def test_items_that_come_together_are_done_together() -> None:
    """Whoever comes during a group is in the next; a group that fails is told to its own items alone."""
    groups: list[list[int]] = []

    async def work(items: Sequence[int]) -> list[int]:
        groups.append(list(items))
        await asyncio.sleep(0)
        if 13 in items:
            raise ValueError("13")
        return [item * 2 for item in items]

    async def scene() -> list[Any]:
        gathering = Gathering(work, most=8, apart_s=0.001)
        first = [gathering.add(n) for n in range(12, 32)]
        found = await asyncio.gather(*first, return_exceptions=True)
        return [*found, await gathering.add(50)]

    found = asyncio.run(scene())
    failed = next(group for group in groups if 13 in group)
    assert [isinstance(each, ValueError) for each in found] == [n in failed for n in [*range(12, 32), 50]]
    assert [each for each in found if not isinstance(each, ValueError)] == [
        n * 2 for n in [*range(12, 32), 50] if n not in failed
    ]
    assert [n for group in groups for n in group] == [*range(12, 32), 50]
    assert all(len(group) <= 8 for group in groups)
    assert len(groups) <= 4


def test_what_was_answered_outlives_kill_9(database_url: str, tmp_path: Path) -> None:
    """A server dies at random moments under reports: each that was answered is there, whole, and counted once."""
    with serving(database_url) as api:
        api.learn(GRAPH)
        plan = api.plan(GRAPH)
    answered = asyncio.run(
        _killed_under_reports(Stage(database_url, tmp_path), plan.plan_id, kills=10 if CAMPAIGN else 1)
    )
    engine = sync_engine(database_url)
    with engine.connect() as connection:
        stored = {row.device_id: row.runs for row in connection.execute(select(DriftRow.device_id, DriftRow.runs))}
        counted = connection.execute(select(PlanVersionRow.reports, PlanVersionRow.runs)).one()
    engine.dispose()
    assert len(answered) > 100
    assert {device: stored.get(device) for device in answered} == answered
    assert (counted.reports, counted.runs) == (len(stored), sum(stored.values())), "a report and its sums are one"


async def _killed_under_reports(stage: Stage, plan_id: str, *, kills: int) -> dict[str, int]:
    """Return the runs that each device told of, of those that were answered."""
    answered: dict[str, int] = {}
    drawn = random.Random(3)
    await stage.open()
    try:
        for life in range(kills):
            server = await stage.server(f"life{life}")
            told = {f"d-{life}-{n}": 1 + n % 60 for n in range(3000)}
            sends = [_report(stage, device, plan_id, runs) for device, runs in told.items()]
            last = drawn.randrange(100, 800)
            note = partial(_note, answered, list(told.items()))
            pump = Pump([server.address], iter(sends), connections=64, on_answer=note)
            pumping = asyncio.create_task(pump.run())
            while sum(pump.tally.statuses.values()) < last:
                await asyncio.sleep(0.001)
            server.kill()
            pumping.cancel()
            await asyncio.gather(pumping, return_exceptions=True)
    finally:
        await stage.close()
    return answered


def _note(answered: dict[str, int], told: list[tuple[str, int]], answer: Answer) -> None:
    if answer.status == 204:
        device, runs = told[answer.number]
        answered[device] = runs


def _report(stage: Stage, device: str, plan_id: str, runs: int) -> bytes:
    run = MeasuredRun(plan_id=plan_id, plan_version=1, measured_us=10.0, runs=runs)
    message = DeviceReport(soc=SOC, frequency=FREQUENCY, measured=(run,))
    return stage.request("PUT", f"/devices/{device}/report", message.model_dump_json().encode())

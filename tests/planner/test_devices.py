"""What is kept of a device: when it was seen, and what it reported."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import insert, select

from hope_schema import DeviceReport, MeasuredRun
from planner_api.db.engine import Database, WriteSession
from planner_api.db.tables import DeviceRow
from planner_api.devices import audit, service
from planner_api.devices import repository as devices
from planner_api.devices.guard import Tokens
from planner_api.jobs.chores import end
from planner_api.jobs.news import build_news
from planner_api.profiles import oversight
from tests.planner.samples import FREQUENCY, SOC, Api, chain, enrolled, measure, plan_request, serving

GRAPH = chain()

pytestmark = pytest.mark.planner(tokens_required=True)


def test_who_was_seen_is_noted_of_devices_that_are_there(database_url: str) -> None:
    """Of devices that call, when they did is kept; one that is gone by then does not come back, the others stay."""
    then = datetime(2020, 1, 1, tzinfo=UTC)

    async def scenario() -> Any:
        database = Database(database_url)
        try:
            async with database.write() as session:
                rows = [{"id": name, "enrolled_at": then, "last_seen_at": then} for name in ("a", "b", "c")]
                await session.execute(insert(DeviceRow), rows)
                await devices.saw(session, {"c", "gone", "a"})
                columns = DeviceRow.id, DeviceRow.enrolled_at, DeviceRow.last_seen_at
                return (await session.execute(select(*columns))).all()
        finally:
            await database.close()

    found = asyncio.run(scenario())
    assert {row.id: row.last_seen_at > then for row in found} == {"a": True, "b": False, "c": True}
    assert {row.enrolled_at for row in found} == {then}


def test_who_was_seen_is_noted_though_a_stop_interrupts_the_writing(database_url: str) -> None:
    """Devices whose writing is cancelled are written down by the next call."""
    then = datetime(2020, 1, 1, tzinfo=UTC)

    async def scenario() -> Any:
        database = Database(database_url)
        try:
            async with database.write() as session:
                await session.execute(insert(DeviceRow), [{"id": "a", "enrolled_at": then, "last_seen_at": then}])
            tokens = Tokens(database, build_news(database))
            tokens.saw("a")
            writing = asyncio.create_task(tokens.flush())
            await asyncio.sleep(0)  # it waits for the database now
            await end(writing)
            assert writing.cancelled()
            await tokens.flush()
            async with database.read() as session:
                return await session.scalar(select(DeviceRow.last_seen_at))
        finally:
            await database.close()

    assert asyncio.run(scenario()) > then


def test_a_report_shows_versions_skew_and_drift(api: Api, admin: dict[str, str]) -> None:
    """What a device reports comes back in the fleet view; its clock is shown and trusted for nothing."""
    device = enrolled(api, "device-1")
    api.post("/models", GRAPH, **device)
    api.post("/profiles", measure(api.missing(GRAPH, header=device)), **device)
    plan = api.post("/plans", plan_request(GRAPH), **device).json()
    report = DeviceReport(
        soc=SOC,
        frequency=FREQUENCY,
        versions={"hope-inference": "0.1.0"},
        sent_at=datetime.now(UTC) + timedelta(hours=5),
        measured=(
            MeasuredRun(
                plan_id=plan["plan_id"],
                plan_version=plan["version"],
                measured_us=plan["plan"]["makespan_us"] * 1.25,
                runs=20,
            ),
            MeasuredRun(plan_id=plan["plan_id"], plan_version=plan["version"] + 1, measured_us=1.0, runs=1),
            MeasuredRun(plan_id="p-nobody-knows", plan_version=1, measured_us=5.0, runs=1),
        ),
    )
    for _ in range(2):
        assert api.put("/devices/device-1/report", report, **device).status_code == 204
    found = api.client.get("/devices/device-1", headers=admin).json()
    assert found["versions"] == {"hope-inference": "0.1.0"}
    assert found["drift"] == pytest.approx(0.25)
    assert found["clock_skew_s"] == pytest.approx(5 * 3600, abs=60)
    assert datetime.fromisoformat(found["last_seen_at"]) < datetime.now(UTC) + timedelta(minutes=1)
    plans = api.client.get("/fleet/plans", headers=admin).json()["plans"]
    assert [(item["plan_id"], item["drift"]) for item in plans] == [(plan["plan_id"], pytest.approx(0.25))]
    assert api.client.get("/fleet", headers=admin).json()["median_drift"] == pytest.approx(0.25)


def test_devices_are_listed_by_pages(api: Api, admin: dict[str, str]) -> None:
    """Pages follow each other without gaps or repeats."""

    async def add() -> None:
        async with api.app.planner.database.write() as session:
            session.add_all(DeviceRow(id=f"d{i:02}", enrolled_at=datetime.now(UTC)) for i in range(7))

    api.await_(add)
    seen: list[str] = []
    after = None
    while True:
        params = {"limit": 3, **({"after": after} if after else {})}
        page = api.client.get("/devices", params=params, headers=admin).json()
        seen += [item["device_id"] for item in page["devices"]]
        after = page["next"]
        if after is None:
            break
    assert seen == [f"d{i:02}" for i in range(7)]


def test_who_revokes_a_device_keeps_nobody_from_forgetting_it(postgres_url: str) -> None:
    """One admin revokes a device, another takes back what it said: neither waits for the other for ever."""
    with serving(postgres_url) as api:
        api.learn(chain())
        planner = api.app.planner
        api.await_(planner.profiles.folded, SOC, FREQUENCY)

        async def both() -> None:
            async def forget_slowly(session: WriteSession, device_id: str) -> int:
                nonlocal other
                other = asyncio.create_task(
                    oversight.forget(planner.database, SOC, FREQUENCY, device_id, audit.PLANNER)
                )
                await asyncio.wait({other}, timeout=1.0)
                return await oversight.forget_device(session, device_id)

            other: asyncio.Task[None] | None = None
            async with planner.database.write() as session:
                session.add(DeviceRow(id="device-1", enrolled_at=datetime.now(UTC)))
            await service.revoke_device(planner.database, "device-1", audit.PLANNER, forget_slowly)
            assert other is not None
            await other

        api.await_(both)

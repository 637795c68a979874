"""Reports of 100 000 devices a minute over HTTP, beside devices that revalidate their plans, on two API processes."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import insert

from benchmarks.service.fixtures import FREQUENCY, key
from benchmarks.service.measures import fresh, prepare
from benchmarks.service.pump import Pump, Tally, request
from benchmarks.service.stage import Stage, call
from hope_schema import DeviceReport, MeasuredRun
from planner_api.db.tables import DeviceRow

CONNECTIONS = 16
"""Sockets per process and kind of request."""
CHUNK = 5000


async def pace(addresses: list[tuple[str, int]], requests: list[bytes], per_second: float) -> Tally:
    """Send each request at its moment."""
    connections = CONNECTIONS * len(addresses)
    return await Pump(addresses, iter(requests), connections=connections, per_second=per_second).run()


@dataclass(frozen=True)
class Reported:
    """What reports cost.

    Attributes:
        accepted: reports that were answered with 204.
        stored: of these, how many are found in the database.
        counted: and in the sums of the plan's version.
        per_minute: reports a minute.
        get_ratio: GETs answered per second beside reports / without.
        get_cpu_s: seconds of processor time of the API processes per GET, without reports.
        report_cpu_s: and per report, beside GETs.
    """

    accepted: int
    stored: int
    counted: int
    per_minute: float
    get_ratio: float
    get_cpu_s: float
    report_cpu_s: float


async def measure(stage: Stage, devices: int, per_minute: float, gets_per_s: float) -> Reported:
    """Every device reports once; half as long, before and beside it, plans are revalidated at a steady rate."""
    servers = [await stage.server(f"reports{i}") for i in range(2)]
    addresses = [server.address for server in servers]
    prefix, soc = fresh("dev"), fresh("soc")
    graph = await prepare(stage, servers[0], 60, "reports", soc)
    first = await call(addresses[0], stage.request("POST", "/plans", key(graph, soc)))
    plan_id = str(json.loads(first.body)["plan_id"])
    tag = next(line[6:].decode() for line in first.head.split(b"\r\n") if line.lower().startswith(b"etag: "))
    now = datetime.now(UTC)
    for start in range(0, devices, CHUNK):
        part = range(start, min(devices, start + CHUNK))
        async with stage.database.write() as session:
            people = [{"id": f"{prefix}-{i}", "soc": soc, "enrolled_at": now} for i in part]
            await (await session.connection()).execute(insert(DeviceRow), people)
    seconds = devices / per_minute * 60.0
    get = stage.request("GET", f"/plans/{plan_id}", if_none_match=tag)
    gets = [get] * round(gets_per_s * seconds / 2)
    sends = []
    for i in range(devices):
        run = MeasuredRun(plan_id=plan_id, plan_version=1, measured_us=100.0 + i % 7, runs=64)
        body = DeviceReport(soc=soc, frequency=FREQUENCY, measured=(run,)).model_dump_json().encode()
        sends.append(request("PUT", f"/devices/{prefix}-{i}/report", body, token=stage.token))
    for _ in range(2):  # the first round warms up
        before = sum(server.cpu_s() for server in servers)
        alone = await pace(addresses, gets, gets_per_s)
        get_cpu_s = (sum(server.cpu_s() for server in servers) - before) / len(gets)
    before = sum(server.cpu_s() for server in servers)
    beside, told = await asyncio.gather(
        pace(addresses, gets + gets, gets_per_s), pace(addresses, sends, per_minute / 60.0)
    )
    used = sum(server.cpu_s() for server in servers) - before - get_cpu_s * 2 * len(gets)
    stored = await stage.rows(f"SELECT COUNT(*) FROM drift_reports WHERE plan_id = '{plan_id}'")
    counted = await stage.rows(f"SELECT reports FROM plan_versions WHERE plan_id = '{plan_id}' AND version = 1")
    for server in servers:
        await asyncio.to_thread(server.stop)
    return Reported(
        accepted=told.statuses[204],
        stored=int(str(stored[0][0])),
        counted=int(str(counted[0][0])),
        per_minute=told.rate * 60.0,
        get_ratio=beside.rate / alone.rate,
        get_cpu_s=get_cpu_s,
        report_cpu_s=used / len(sends),
    )

"""Reports of 100 000 devices a minute over HTTP, beside devices that revalidate their plans, on two API processes.

Every device sends its own token, once: none is remembered from a call before.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from benchmarks.fleet import people
from benchmarks.fleet.cost import Cost, Meter
from benchmarks.service.fixtures import FREQUENCY, key
from benchmarks.service.measures import fresh, prepare
from benchmarks.service.pump import Pump, Tally, request
from benchmarks.service.stage import Server, Stage, call
from hope_schema import DeviceReport, MeasuredRun

SOCKETS = 128
"""Per process and kind of request; a real device has one of its own."""
SOCS = 500


@dataclass(frozen=True)
class Reported:
    """What reports cost.

    Attributes:
        accepted: reports that were answered with 204.
        stored: of these, how many are found in the database.
        counted: and in the sums of the plans' versions.
        per_minute: reports a minute.
        slowest_s: within which 99 of 100 were answered.
        get_ratio: GETs answered per second beside reports / without.
        get: cost of a GET, without reports.
        report: and of a report, beside GETs.
    """

    accepted: int
    stored: int
    counted: int
    per_minute: float
    slowest_s: float
    get_ratio: float
    get: Cost
    report: Cost


async def measure(stage: Stage, devices: int, per_minute: float, gets_per_s: float) -> Reported:
    """Every device reports once; half as long, before and beside it, other devices revalidate plans at a steady rate.

    Each plan of ``SOCS`` is one of as many SoCs.
    """
    servers = [await stage.server(f"reports{i}") for i in range(2)]
    addresses = [server.address for server in servers]
    plans, tag = await _plans(stage, servers[0])
    seconds = devices / per_minute * 60.0
    gets = round(gets_per_s * seconds / 2)
    reporters, readers = fresh("reporter") + "-", fresh("reader") + "-"
    await people.enrol(stage, reporters, devices, SOCS)
    await people.enrol(stage, readers, 4 * gets, SOCS)
    await people.run(stage, "ANALYZE")
    sends = [report(reporters, plans, number) for number in range(1, devices + 1)]
    asks = [get(readers, plans, number, tag) for number in range(1, 4 * gets + 1)]
    meter = await Meter.on(stage, servers)
    await pace(addresses, asks[:gets], gets_per_s)  # warms up
    before = meter.read()
    alone = await pace(addresses, asks[gets : 2 * gets], gets_per_s)
    between = meter.read()
    beside, told = await asyncio.gather(
        pace(addresses, asks[2 * gets :], gets_per_s), pace(addresses, sends, per_minute / 60.0)
    )
    of_get = (between - before) / gets
    used = meter.read() - between - of_get * (2 * gets)
    stored = await stage.number("SELECT COUNT(*) FROM drift_reports WHERE plan_id LIKE :plans", plans=f"{plans}%")
    counted = await stage.number("SELECT SUM(reports) FROM plan_versions WHERE plan_id LIKE :plans", plans=f"{plans}%")
    await stage.stop(*servers)
    return Reported(
        accepted=told.statuses[204],
        stored=stored,
        counted=counted,
        per_minute=told.statuses[204] / told.elapsed * 60.0,
        slowest_s=told.percentile(0.99),
        get_ratio=beside.statuses[304] / beside.elapsed / (alone.statuses[304] / alone.elapsed),
        get=of_get,
        report=used / len(sends),
    )


async def _plans(stage: Stage, server: Server) -> tuple[str, str]:
    """A plan for each SoC; returns what their ids begin with, and their tag."""
    soc = fresh("soc")
    worker = stage.worker("reports-worker")
    graph = await prepare(stage, server, 60, "reports", soc)
    first = await call(server.address, stage.request("POST", "/plans", key(graph, soc), prefer="wait=60"))
    await stage.stop(worker)
    plans = fresh("p") + "-"
    await people.copy_plan(stage, str(json.loads(first.body)["plan_id"]), plans, SOCS)
    return plans, first.tag


def report(prefix: str, plans: str, number: int) -> bytes:
    """The report of a device on the plan of its SoC."""
    soc = number % SOCS
    run = MeasuredRun(plan_id=f"{plans}{soc}", plan_version=1, measured_us=100.0 + number % 7, runs=64)
    body = DeviceReport(soc=f"soc-{soc}", frequency=FREQUENCY, measured=(run,)).model_dump_json().encode()
    device_id = f"{prefix}{number}"
    return request("PUT", f"/devices/{device_id}/report", body, token=people.SECRET.format(device_id=device_id))


def get(prefix: str, plans: str, number: int, tag: str) -> bytes:
    """A device asks whether the plan of its SoC is still the newest."""
    token = people.SECRET.format(device_id=f"{prefix}{number}")
    return request("GET", f"/plans/{plans}{number % SOCS}", token=token, headers={"if-none-match": tag})


async def pace(addresses: list[tuple[str, int]], requests: list[bytes], per_second: float) -> Tally:
    """Send each request at its moment."""
    connections = SOCKETS * len(addresses)
    return await Pump(addresses, iter(requests), connections=connections, per_second=per_second).run()

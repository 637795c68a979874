"""What devices report of themselves and of the plans they run: stored in groups, acknowledged when it is stored."""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection, select

from hope_schema import DeviceReport, MeasuredRun
from planner_api.concurrency import Gathering
from planner_api.db.engine import Database
from planner_api.db.paging import rows_among
from planner_api.db.tables import DeviceRow, DriftRow, PlanVersionRow
from planner_api.db.upsert import add_all, put_all
from planner_api.devices.repository import DESCRIBED
from planner_api.jobs.news import publish

BATCH_REPORTS = 256
BATCH_RUNS = 1024
"""One transaction holds at most this much, so that nobody waits long for it."""
APART_S = 0.1
"""Reports of this long come into one transaction: whoever sends one has time, and most of its cost is shared."""


@dataclass(frozen=True)
class SentReport:
    """A report, from whom, and when it came."""

    device_id: str
    report: DeviceReport
    at: datetime


class Said(NamedTuple):
    """What a device said of one plan version."""

    device_id: str
    run: MeasuredRun


Listener = Callable[[Connection, Sequence[Said], Mapping[str, str | None]], None]
"""Hears of reports in the transaction that stores them, before they replace the ones before, and of devices that were
another SoC before (which one)."""


def gathering(database: Database, listener: Listener) -> Gathering[SentReport, None]:
    """What takes reports in: the newest of a device and plan stands, and their sums stay with the plan's version."""
    return Gathering(
        partial(_write, database, listener),
        most=BATCH_REPORTS,
        weight=lambda sent: len(sent.report.measured),
        heaviest=BATCH_RUNS,
        apart_s=APART_S,
    )


async def _write(database: Database, listener: Listener, group: Sequence[SentReport]) -> Sequence[None]:
    async with database.write() as session:
        moved = await (await session.connection()).run_sync(store, group, listener)
        for device_id in moved:
            await publish(session, DESCRIBED, device_id)
    return [None] * len(group)


def store(connection: Connection, group: Sequence[SentReport], listener: Listener) -> dict[str, str | None]:
    """Store reports in one transaction; rows in the order of their keys, so that two replicas cannot deadlock.

    Returns:
        Devices that were another SoC before, and which.
    """
    latest = {sent.device_id: sent for sent in group}  # PostgreSQL puts no row twice in one statement
    moved = _store_devices(connection, [latest[name] for name in sorted(latest)])
    predicted = _predictions(connection, {run.plan_id for sent in group for run in sent.report.measured})
    every = [
        (sent, run)
        for sent in group
        for run in sorted(sent.report.measured, key=lambda run: run.plan_version)
        if (run.plan_id, run.plan_version) in predicted
    ]
    newest = {(sent.device_id, run.plan_id): (sent, run) for sent, run in every}
    known = [newest[key] for key in sorted(newest)]
    listener(connection, [Said(sent.device_id, run) for sent, run in known], moved)
    put_all(
        connection,
        DriftRow,
        [
            {
                "device_id": sent.device_id,
                **dict(run),
                "predicted_us": predicted[run.plan_id, run.plan_version],
                "reported_at": sent.at,
            }
            for sent, run in known
        ],
        key=("device_id", "plan_id"),
    )
    # What stands is the newest report; the sums are of all of them.
    _add_results(connection, [run for _, run in every])
    return moved


def _store_devices(connection: Connection, group: Sequence[SentReport]) -> dict[str, str | None]:
    """Keep what devices say about themselves; one that never enrolled (no tokens required) is added.

    Returns:
        Devices that were another SoC before, and which.
    """
    columns = select(DeviceRow.id, DeviceRow.soc, DeviceRow.soc_since)
    ids = [sent.device_id for sent in group]
    before = {row.id: row for row in rows_among(connection, columns, DeviceRow.id, ids)}
    moved = {
        sent.device_id: before[sent.device_id].soc
        for sent in group
        if sent.device_id in before and before[sent.device_id].soc != sent.report.soc
    }
    rows = [
        {
            "id": sent.device_id,
            "soc": sent.report.soc,
            "soc_since": sent.at if sent.device_id in moved else getattr(before.get(sent.device_id), "soc_since", None),
            "frequency": sent.report.frequency,
            "versions": dict(sent.report.versions),
            "clock_skew_s": None if sent.report.sent_at is None else (sent.report.sent_at - sent.at).total_seconds(),
            "enrolled_at": sent.at,
            "last_seen_at": sent.at,
        }
        for sent in group
    ]
    put_all(connection, DeviceRow, rows, key=("id",), keep=("enrolled_at",))
    return moved


def _predictions(connection: Connection, plan_ids: Collection[str]) -> dict[tuple[str, int], float]:
    query = select(PlanVersionRow.plan_id, PlanVersionRow.version, PlanVersionRow.makespan_us)
    rows = rows_among(connection, query, PlanVersionRow.plan_id, sorted(plan_ids))
    return {(plan_id, version): makespan_us for plan_id, version, makespan_us in rows}


def _add_results(connection: Connection, runs: Sequence[MeasuredRun]) -> None:
    sums: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: dict.fromkeys((*_SUMS, *_COUNTS), 0))
    for each in runs:
        found = sums[each.plan_id, each.plan_version]
        found["reports"] += 1
        for name in _COUNTS:
            found[name] += getattr(each, name)
        if each.measured_us is not None:
            logarithm = math.log(each.measured_us)
            found["timed"] += 1
            found["log_sum"] += logarithm
            found["log_squares"] += logarithm * logarithm
        if each.p99_us is not None:
            found["tails"] += 1
            found["tail_log_sum"] += math.log(each.p99_us)
    rows = [{"plan_id": plan_id, "version": version, **found} for (plan_id, version), found in sums.items()]
    add_all(connection, PlanVersionRow, rows, key=("plan_id", "version"))


_SUMS = ("reports", "timed", "log_sum", "log_squares", "tails", "tail_log_sum")
_COUNTS = ("runs", "failures", "wrong", "deadlines", "missed")

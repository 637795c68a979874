"""What a batch of reports adds to the releases under way: each device is compared with itself, once per release.

Only devices count that the release gave the new version to: those that were there when it began, by the SoC that they
were then, within its group and stage. One that has become another SoC since has left the release.

Runs on a plain connection inside the transaction that stores the reports. Without a release under way it costs one
query per batch.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, select, update

from hope_schema import MeasuredRun
from planner_api.db.paging import chunks, rows_among
from planner_api.db.tables import (
    DeviceRow,
    DriftRow,
    PlanJobRow,
    PlanRow,
    ReleaseClaimRow,
    ReleaseDeviceRow,
    ReleasePartRow,
    ReleaseRow,
)
from planner_api.db.upsert import add_all, ignoring
from planner_api.devices.groups import selector_of, takes, within
from planner_api.devices.reports import Said
from planner_api.plans.repository import REQUEST, serves
from planner_api.rollout.judging import KINDS
from planner_api.rollout.repository import ACTIVE

COUNTS = ("reported", *(column for _, *columns in KINDS.values() for column in columns))


def listen(connection: Connection, said: Sequence[Said], moved: Mapping[str, str | None]) -> None:
    """Count what reports say of the releases under way (a ``devices.reports.Listener``)."""
    Counting(connection, said, moved).add()


class Counting:
    """The releases under way, as one batch of reports meets them."""

    def __init__(self, connection: Connection, said: Sequence[Said], moved: Mapping[str, str | None]) -> None:
        self._connection = connection
        self._among = partial(rows_among, connection)
        self._said = said
        self._moved = moved
        self._releases = {
            row.id: row for row in connection.execute(select(ReleaseRow).where(ReleaseRow.state.in_(ACTIVE)))
        }
        self._parts: dict[tuple[str, str], Any] = {}
        self._before: dict[tuple[str, str, str], Any] = {}
        """By release, device and the plan that it is compared for: what it said of the version before, as a row."""
        self._plans: dict[str, Any] = {}
        self._served: set[tuple[str, str]] = set()
        """Plans, each with a model that it serves."""
        self._news: dict[str, dict[str, list[tuple[Any, MeasuredRun]]]] = {}
        self._devices: dict[str, Any] = {}
        if self._releases and (said or moved):
            self._look_up()

    def _look_up(self) -> None:
        """Find what is compared with what."""
        devices = sorted({each.device_id for each in self._said} | set(self._moved))
        one = DeviceRow  # not all of it: of hundreds of devices a batch
        described = select(one.id, one.soc, one.soc_since, one.enrolled_at, one.claim_id, one.labels)
        self._devices = {row.id: row for row in self._among(described, DeviceRow.id, devices)}
        plan_ids = sorted({each.run.plan_id for each in self._said})
        which = select(PlanRow.id, *REQUEST)
        plans = {row.id: row for row in self._among(which, PlanRow.id, plan_ids)}
        served = select(PlanJobRow.plan_id, PlanJobRow.model_hash)
        self._plans, self._served = plans, set(map(tuple, self._among(served, PlanJobRow.plan_id, plan_ids)))
        for release in self._releases.values():
            keys = plan_ids if release.alias is None else sorted({row.soc for row in plans.values()})
            of_it = select(ReleasePartRow).where(ReleasePartRow.release_id == release.id)
            self._parts |= {(release.id, row.part): row for row in self._among(of_it, ReleasePartRow.part, keys)}
        for release in self._releases.values():
            news = self._news[release.id] = self._of_new_versions(release)
            self._find_baselines(release, plan_ids, news)

    def _of_new_versions(self, release: Any) -> dict[str, list[tuple[Any, MeasuredRun]]]:
        """By device: the reports on versions that the release gives out, each with the part it belongs to."""
        found: dict[str, list[tuple[Any, MeasuredRun]]] = defaultdict(list)
        for device_id, run in self._said:
            plan = self._plans.get(run.plan_id)
            part = None if plan is None else self._part(release, run, plan)
            if part is not None and _gave(release, part, self._devices[device_id]):
                found[device_id].append((part, run))
        return found

    def _part(self, release: Any, run: MeasuredRun, plan: Any) -> Any | None:
        """The part of a release that a report on its new version belongs to."""
        if release.alias is None:
            part = self._parts.get((release.id, run.plan_id))
            return part if part is not None and part.after == run.plan_version else None
        served = (run.plan_id, release.model_hash) in self._served
        return self._parts.get((release.id, plan.soc)) if served else None

    def _find_baselines(
        self, release: Any, plan_ids: Sequence[str], news: Mapping[str, Sequence[tuple[Any, MeasuredRun]]]
    ) -> None:
        """Find what these devices said of the version before: of an alias, where they asked alike for both."""
        query = select(DriftRow).order_by(DriftRow.reported_at)
        if release.alias is None:
            query = query.where(DriftRow.plan_id.in_(plan_ids))
        else:
            query = query.join(PlanRow, PlanRow.id == DriftRow.plan_id).where(serves(release.before_hash))
            query = query.add_columns(*REQUEST)
        for old in self._among(query, DriftRow.device_id, sorted(news)):
            for part, run in news[old.device_id]:
                if release.alias is None:
                    alike = part.part == old.plan_id and part.before == old.plan_version
                else:
                    alike = _asked(release, old) == _asked(release, self._plans[run.plan_id])
                if alike:
                    self._before[release.id, old.device_id, run.plan_id] = old

    def add(self) -> None:
        """Count who reported on new versions, once each, and who left.

        Of what a device says first that counts which it can be compared by.
        """
        found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        of_claims: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
        for release_id, news in self._news.items():
            release = self._releases[release_id]
            for device_id in self._first_time(release_id, sorted(news)):
                before = {
                    run.plan_id: self._before.get((release_id, device_id, run.plan_id)) for _, run in news[device_id]
                }
                part, run = next((one for one in news[device_id] if before[one[1].plan_id]), news[device_id][0])
                counted = compare(before[run.plan_id], run, release.tolerance)
                counted["reported"] = 1
                found[release_id, part.part].update(counted)
                claim_id = self._devices[device_id].claim_id
                if str(claim_id) in release.claims:
                    of_claims[release_id, part.part, claim_id].update(counted)
        rows = [{"release_id": key[0], "part": key[1], **_all(count)} for key, count in found.items()]
        add_all(self._connection, ReleasePartRow, rows, key=("release_id", "part"))
        self._add_claims(of_claims)
        for release in self._releases.values():
            self._count_left(release)

    def _add_claims(self, found: Mapping[tuple[str, str, int], Counter[str]]) -> None:
        names = ("release_id", "part", "claim_id")
        rows = [{**dict(zip(names, key, strict=True)), **_all(count)} for key, count in sorted(found.items())]
        empty = [{**row, **dict.fromkeys(COUNTS, 0)} for row in rows]
        if empty:
            self._connection.execute(ignoring(self._connection.dialect.name, ReleaseClaimRow, names), empty)
        add_all(self._connection, ReleaseClaimRow, rows, key=names)

    def _count_left(self, release: Any) -> None:
        """Count devices that were part of a release when it began, and have become another SoC.

        Those of a claim that has few of them are not waited for in any case.
        """
        there = [
            name
            for name in sorted(self._moved)
            if self._devices[name].enrolled_at <= release.created_at
            and str(self._devices[name].claim_id) not in release.claims
        ]
        if not there:
            return
        known = select(ReleasePartRow.soc).where(ReleasePartRow.release_id == release.id)
        socs = set(self._connection.execute(known.distinct()).scalars())
        was = [(name, self._moved[name]) for name in there]
        members = [name for name, soc in was if soc in socs and _chosen(release, self._devices[name], soc)]
        left = self._first_time(release.id, members)
        if left:
            counted = update(ReleaseRow).where(ReleaseRow.id == release.id)
            self._connection.execute(counted.values(left=ReleaseRow.left + len(left)))

    def _first_time(self, release_id: str, devices: Sequence[str]) -> list[str]:
        insert_into = ignoring(self._connection.dialect.name, ReleaseDeviceRow, ["release_id", "device_id"])
        fresh: list[str] = []
        for part in chunks(devices):
            rows = [{"release_id": release_id, "device_id": device_id} for device_id in part]
            fresh += self._connection.execute(insert_into.returning(ReleaseDeviceRow.device_id), rows).scalars()
        return fresh


def _asked(release: Any, plan: Any) -> list[Any]:
    """What a plan was asked for with, as if the networks that a release exchanges were one.

    All of it says how long a run takes: the networks beside this one, deadlines, processors, hosts and their links.
    """
    exchanged = {release.before_hash: release.model_hash}
    jobs = [{**job, "model_hash": exchanged.get(job["model_hash"], job["model_hash"])} for job in plan.jobs]
    return [sorted(jobs, key=str), *(getattr(plan, column.key) for column in REQUEST if column.key != "jobs")]


def _gave(release: Any, part: Any, device: Any) -> bool:
    """Whether a release gave its new version to a device."""
    began = release.created_at
    if device.enrolled_at > began or (device.soc_since is not None and device.soc_since > began):
        return False
    if device.soc != part.soc or not within(release.stages[release.stage], device.id, release.id):
        return False
    return _chosen(release, device, device.soc)


def _chosen(release: Any, device: Any, soc: str) -> bool:
    """Whether a release's group takes a device of a SoC."""
    return takes(selector_of(release.selector), release.group or "", device.id, soc, device.labels or {})


def _all(count: Counter[str]) -> dict[str, int]:
    return {name: count[name] for name in COUNTS}


def compare(before: Any | None, after: MeasuredRun, tolerance: float) -> Counter[str]:
    """Say in what a device is worse now than before, and in what better; nothing where it cannot be compared.

    ``before`` is another report, or a row of one.

    NOTE: failures are compared only where the later report has no more runs than the earlier one: with more of them a
    rare failure is likelier to be among them, and the device would seem worse although nothing is. So are missed
    deadlines, by their share.
    """
    found: Counter[str] = Counter()
    if before is None:
        return found
    if before.measured_us is not None and after.measured_us is not None:
        found["slower"] += after.measured_us > before.measured_us * (1.0 + tolerance)
        found["faster"] += before.measured_us > after.measured_us * (1.0 + tolerance)
    if after.runs + after.failures + after.wrong <= before.runs + before.failures + before.wrong:
        found["failing"] += after.failures > 0 and not before.failures
        found["mended"] += before.failures > 0 and not after.failures
        found["wrong"] += after.wrong > 0 and not before.wrong
        found["righted"] += before.wrong > 0 and not after.wrong
    if 0 < after.deadlines <= before.deadlines:
        now, then = after.missed / after.deadlines, before.missed / before.deadlines
        found["missing"] += now > then
        found["keeping"] += then > now
    return found

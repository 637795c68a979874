"""What a batch of reports adds to the releases under way: each device is compared with itself, once per release.

Runs on a plain connection inside the transaction that stores the reports. Without a release under way it costs one
query per batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from planner_api.db.tables import DriftRow, PlanRow, ReleaseDeviceRow, ReleasePartRow, ReleaseRow
from planner_api.db.upsert import upserting
from planner_api.releases.repository import ACTIVE, CHUNK

COUNTS = ("reported", "slower", "faster", "failing", "mended", "wrong", "righted")


@dataclass(frozen=True)
class Said:
    """What a device said of one plan version: the median time of ``runs`` runs, how many more failed or were wrong."""

    device_id: str
    plan_id: str
    version: int
    measured_us: float | None
    runs: int
    failures: int
    wrong: int


class Counting:
    """The releases under way, as one batch of reports meets them."""

    def __init__(self, connection: Connection, said: Sequence[Said]) -> None:
        self._connection = connection
        self._said = said
        self._releases = {
            row.id: row for row in connection.execute(select(*_RELEASE).where(ReleaseRow.state.in_(ACTIVE)))
        }
        self._parts: dict[tuple[str, str], Any] = {}
        self._before: dict[tuple[str, str], Said] = {}
        """By release and device: what it said of the version before."""
        self._plans: dict[str, Any] = {}
        if self._releases and said:
            self._look_up()

    def _look_up(self) -> None:
        """Find what is compared with what; called before the new reports replace the old ones."""
        plan_ids = sorted({each.plan_id for each in self._said})
        plans = self._plans = {
            row.id: row
            for some in _chunks(plan_ids)
            for row in self._connection.execute(
                select(PlanRow.id, PlanRow.model_hash, PlanRow.soc).where(PlanRow.id.in_(some))
            )
        }
        for release in self._releases.values():
            keys = plan_ids if release.alias is None else sorted({row.soc for row in plans.values()})
            for some in _chunks(keys):
                wanted = ReleasePartRow.release_id == release.id, ReleasePartRow.part.in_(some)
                for row in self._connection.execute(select(*_PART).where(*wanted)):
                    self._parts[release.id, row.part] = row
        for each in self._said:
            plan = plans.get(each.plan_id)
            if plan is None:
                continue
            for release in self._releases.values():
                part = self._part(release, each, plan)
                if part is not None and (old := self._baseline(release, part, each)) is not None:
                    self._before[release.id, each.device_id] = old

    def _part(self, release: Any, said: Said, plan: Any) -> Any | None:
        """The part of a release that a report on its new version belongs to."""
        if release.alias is None:
            part = self._parts.get((release.id, said.plan_id))
            return part if part is not None and part.after == said.version else None
        return self._parts.get((release.id, plan.soc)) if plan.model_hash == release.model_hash else None

    def _baseline(self, release: Any, part: Any, said: Said) -> Said | None:
        query = select(*_DRIFT).where(DriftRow.device_id == said.device_id)
        if release.alias is None:
            query = query.where(DriftRow.plan_id == said.plan_id, DriftRow.plan_version == part.before)
        else:
            query = query.join(PlanRow, PlanRow.id == DriftRow.plan_id).where(
                PlanRow.model_hash == release.before_hash, PlanRow.soc == part.soc
            )
        row = self._connection.execute(query.order_by(DriftRow.reported_at.desc()).limit(1)).first()
        return None if row is None else Said(*row)

    def add(self) -> None:
        """Count the reports on new versions, each device's first one alone."""
        if not self._releases or not self._said:
            return
        found: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for release in self._releases.values():
            news: dict[str, tuple[Any, Said]] = {}
            for each in self._said:
                plan = self._plans.get(each.plan_id)
                if plan is not None and (part := self._part(release, each, plan)) is not None:
                    news.setdefault(each.device_id, (part, each))
            for device_id in self._first_time(release.id, sorted(news)):
                part, each = news[device_id]
                count = found[release.id, part.part]
                count["reported"] += 1
                count.update(compare(self._before.get((release.id, device_id)), each, release.tolerance))
        rows = [
            {"of": release_id, "at": part, **{f"more_{name}": count[name] for name in COUNTS}}
            for (release_id, part), count in sorted(found.items())
        ]
        if rows:
            self._connection.execute(_ADD, rows)

    def _first_time(self, release_id: str, devices: Sequence[str]) -> list[str]:
        insert_into = upserting(self._connection.dialect, ReleaseDeviceRow).on_conflict_do_nothing(
            index_elements=["release_id", "device_id"]
        )
        fresh: list[str] = []
        for part in _chunks(devices):
            rows = [{"release_id": release_id, "device_id": device_id} for device_id in part]
            fresh += self._connection.execute(insert_into.returning(ReleaseDeviceRow.device_id), rows).scalars()
        return fresh


def compare(before: Said | None, after: Said, tolerance: float) -> Counter[str]:
    """Say in what a device is worse now than before, and in what better; nothing where it cannot be compared.

    NOTE: failures are compared only where the later report has no more runs than the earlier one: with more of them a
    rare failure is likelier to be among them, and the device would seem worse although nothing is.
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
    return found


def _chunks(items: Sequence[str]) -> list[Sequence[str]]:
    return [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]


_RELEASE = (
    ReleaseRow.id, ReleaseRow.alias, ReleaseRow.model_hash, ReleaseRow.before_hash, ReleaseRow.tolerance,
)  # fmt: skip
_PART = ReleasePartRow.part, ReleasePartRow.soc, ReleasePartRow.before, ReleasePartRow.after
_DRIFT = (
    DriftRow.device_id, DriftRow.plan_id, DriftRow.plan_version, DriftRow.measured_us, DriftRow.runs,
    DriftRow.failures, DriftRow.wrong,
)  # fmt: skip
_TABLE = ReleasePartRow.__table__
_ADD = (
    update(_TABLE)  # type: ignore[arg-type]
    .where(_TABLE.c.release_id == bindparam("of"), _TABLE.c.part == bindparam("at"))
    .values({name: _TABLE.c[name] + bindparam(f"more_{name}") for name in COUNTS})
)

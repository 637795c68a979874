"""How many devices each stage of a release takes, and how many of them enrolled with which claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from hope_schema import GroupSelector
from planner_api.db.tables import DeviceRow
from planner_api.devices.groups.choice import position, within
from planner_api.devices.groups.service import chosen

COUNTED = 20_000
"""Of more devices a stage takes its share, as exactly as matters; of fewer each one is looked at."""


@dataclass(frozen=True)
class Takers:
    """Devices of a release: all of them, per stage, and per stage of each claim that has fewer than half of them."""

    devices: int
    staged: list[int]
    claims: dict[str, list[int]]


async def count_takers(
    session: AsyncSession,
    release_id: str,
    group: str | None,
    selector: GroupSelector,
    socs: set[str],
    stages: Sequence[float],
    since: datetime,
) -> Takers:
    """Count the devices of some SoCs, seen since then, that a group and each stage take."""
    wanted = *chosen(selector), DeviceRow.last_seen_at >= since, DeviceRow.soc.in_(socs)
    counts = select(DeviceRow.claim_id, func.count()).where(*wanted).group_by(DeviceRow.claim_id)
    by_claim: dict[int | None, int] = {row[0]: row[1] for row in await session.execute(counts)}
    total = sum(by_claim.values())
    if total > COUNTED:
        staged = {
            claim: [round(share * selector.share * count) for share in stages] for claim, count in by_claim.items()
        }
        total = round(total * selector.share)
    else:
        taken = [
            (position(device_id, release_id), claim)
            for device_id, claim in await session.execute(select(DeviceRow.id, DeviceRow.claim_id).where(*wanted))
            if within(selector.share, device_id, group or "")
        ]
        total = len(taken)
        staged = {
            claim: [sum(of == claim and at < share for at, of in taken) for share in stages] for claim in by_claim
        }
    every = [sum(counts[stage] for counts in staged.values()) for stage in range(len(stages))]
    few = [claim for claim, count in by_claim.items() if claim is not None and 2 * count < sum(by_claim.values())]
    return Takers(total, every, {str(claim): staged[claim] for claim in few})

"""What a release takes when it begins: held plans of a model, or an alias; and how many devices each stage takes."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, select, update

from hope_schema import GroupSelector, ModelVersion
from planner_api.db.engine import WriteSession
from planner_api.db.tables import DeviceRow, ModelRow, PlanRow, ReleaseRow
from planner_api.devices.groups import chosen, position, within
from planner_api.errors import ConflictError, unknown
from planner_api.models import names
from planner_api.plans.repository import serves
from planner_api.rollout.aliases import lock_alias
from planner_api.rollout.repository import by_itself, held

Part = dict[str, Any]
"""Columns of a ``ReleasePartRow``, but the release's id."""
COUNTED = 20_000
"""Of more devices a stage takes its share, as exactly as matters; of fewer each one is looked at."""


async def take_plans(
    session: WriteSession, release_id: str, model_hash: str, socs: Sequence[str], *, again: bool, alone: bool
) -> list[Part]:
    """Take a model's held plans, of these SoCs where any are named; with ``alone`` those that need no admin.

    Raises ConflictError where there is none.
    """
    wanted = [serves(model_hash), PlanRow.release_id.is_(None), held(again=again)]
    if alone:
        wanted.append(by_itself())
    if socs:
        wanted.append(PlanRow.soc.in_(socs))
    columns = PlanRow.id, PlanRow.soc, PlanRow.served_version.label("before"), PlanRow.version.label("after")
    taken = update(PlanRow).where(*wanted).values(release_id=release_id).returning(*columns)
    rows = (await session.execute(taken)).all()
    if not rows:
        raise await _nothing(session, model_hash)
    return [
        {"part": row.id, "soc": row.soc, "plan_id": row.id, "before": row.before, "after": row.after} for row in rows
    ]


async def take_alias(
    session: WriteSession, release_id: str, version: ModelVersion, alias: str, *, again: bool
) -> dict[str, Any]:
    """Take an alias that is to stand for a version; return the release's columns that say so.

    Raises:
        NotFoundError: there is no such alias.
        ConflictError: it stands for the version already, was taken back from it, or another release moves it.
    """
    name, after = version.name, version.version
    row = await lock_alias(session, name, alias)
    if row is None:
        raise unknown("alias to release", name, alias)
    before = row.version
    if before == after:
        raise ConflictError("nothing-to-release", f"{name}@{alias} stands for version {after} already")
    of_it = ReleaseRow.name == name, ReleaseRow.alias == alias, ReleaseRow.after == after
    newest = select(ReleaseRow.state).where(*of_it).order_by(ReleaseRow.created_at.desc(), ReleaseRow.id.desc())
    if not again and await session.scalar(newest.limit(1)) == "rolled_back":
        cure = f"`hope-planner releases begin {name}:{after} --alias {alias} --again` releases it all the same"
        raise ConflictError("nothing-to-release", f"version {after} was taken back from {name}@{alias}; {cure}")
    row.release_id = release_id
    before_hash = (await names.find_version(session, name, before)).model_hash
    return {"name": name, "alias": alias, "before": before, "after": after, "before_hash": before_hash}


async def parts_of_alias(
    session: WriteSession, model_hash: str, socs: Sequence[str], before: int, after: int
) -> list[Part]:
    """A part per SoC that the model has plans for, of those named where any are. Raises ConflictError without any."""
    query = select(PlanRow.soc).where(serves(model_hash), PlanRow.version > 0).distinct()
    if socs:
        query = query.where(PlanRow.soc.in_(socs))
    found = (await session.scalars(query.order_by(PlanRow.soc))).all()
    if not found:
        raise _without_plans(model_hash)
    return [{"part": soc, "soc": soc, "before": before, "after": after} for soc in found]


async def _nothing(session: WriteSession, model_hash: str) -> ConflictError:
    """Say why there is nothing of a model to release."""
    count = func.count()
    query = select(
        count.filter(PlanRow.version > 0).label("plans"),
        count.filter(PlanRow.release_id.is_not(None)).label("released"),
        count.filter(held(again=False)).label("held"),
        count.filter(held(again=True)).label("refused"),
    ).where(serves(model_hash))
    counts = (await session.execute(query)).one()
    if not counts.plans:
        return _without_plans(model_hash)
    if counts.released:
        return ConflictError("release-under-way", f"another release of model {model_hash} is under way")
    if counts.refused > counts.held:
        cure = f"`hope-planner releases begin {model_hash} --again` releases them all the same"
        return ConflictError("nothing-to-release", f"its newest versions were taken back; {cure}")
    cure = f"`hope-planner models rollout {model_hash} held` holds back the next ones"
    if await session.scalar(select(ModelRow.rollout).where(ModelRow.hash == model_hash)) != "at_once":
        cure = "those that come next are held back, as when devices measured anew"
    return ConflictError("nothing-to-release", f"devices get its newest versions already; {cure}")


def _without_plans(model_hash: str) -> ConflictError:
    cure = f"make some first with `hope-planner models plan {model_hash}`"
    return ConflictError("release-without-plans", f"model {model_hash} has no plan: {cure}")


async def count_takers(
    session: WriteSession,
    release_id: str,
    group: str | None,
    selector: GroupSelector,
    socs: set[str],
    stages: Sequence[float],
    since: datetime,
) -> dict[str, Any]:
    """Count the devices of some SoCs, seen since then, that a group and each stage take.

    Returns the release's columns: ``devices``, how many each stage takes (``staged``), and the same of each claim that
    has fewer than half of them (``claims``).
    """
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
    return {"devices": total, "staged": every, "claims": {str(claim): staged[claim] for claim in few}}

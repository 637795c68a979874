"""Plans: a list, one plan as lanes with the cause of every placement, and two of them compared."""

import asyncio
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Response

from hope_schema import HOST, Plan, PlanReply, PlanVersion, Step
from hope_schema.axis import place
from hope_schema.base import LABEL
from planner_api.compression import loaded
from planner_api.console.address import HOME
from planner_api.console.charts import bars, gantt
from planner_api.console.forms import Words
from planner_api.console.rendering import render
from planner_api.db.engine import Database
from planner_api.errors import InvalidError, unknown
from planner_api.plans import history
from planner_api.plans.routes import MAX_VERSION
from planner_api.profiles import repository as profile_rows
from planner_api.views import drift, pages
from planner_api.views import service as fleet
from planner_api.web.parameters import After
from planner_api.web.route import Request, StrictRoute

router = APIRouter(prefix=HOME, route_class=StrictRoute)

ROWS = 50
STEPS = 200
"""Steps per page of a plan's table."""
REPORTS = 2000
"""Newest measured times that are shown beside what was predicted."""
OTHERS = 200
"""Plans of the same model that one is offered to be compared with."""
COMPARED = 300
"""Rows of a comparison."""

PlanId = Annotated[str, Path(max_length=64, pattern=LABEL)]
Version = Annotated[int | None, Query(ge=1, le=MAX_VERSION)]
Chosen = Annotated[str, Query(max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9.\-]*@[1-9][0-9]{0,8}$")]
"""A version of a plan: ``p-0f3a@2``."""


@router.get("/plans")
async def listing(
    request: Request,
    model: Annotated[str | None, Query(pattern=r"^([0-9a-f]{64})?$")] = None,
    soc: Words = "",
    status: Annotated[Literal["", "queued", "solving", "done", "failed"], Query()] = "",
    after: After = None,
) -> Response:
    where = {"model_hash": model, "soc": soc, "status": status}
    page = await fleet.plans(request.database, after=after, limit=ROWS, **where)
    return render(request, "plans.html", page=page, model=model, soc=soc, wanted=status, after=after)


@router.get("/plans/{plan_id}")
async def show(
    request: Request, plan_id: PlanId, version: Version = None, first: Annotated[int, Query(ge=0, le=1_000_000)] = 0
) -> Response:
    """Show one plan: the version that devices get, or another."""
    database = request.database
    async with database.read() as session:
        row = await pages.plan(session, plan_id)
        if row is None:
            raise unknown("plan", plan_id)
        networks = await pages.networks(session, plan_id)
        others = await pages.siblings(session, [network.hash for network in networks], OTHERS)
    if not row.version:
        async with database.read() as session:
            figures = await profile_rows.current(session, row.soc, row.frequency)
        return render(request, "plan.html", row=row, networks=networks, reply=None, figures=figures is not None)
    versions = (await history.history(database, plan_id)).versions
    wanted = next((one for one in versions if (one.served if version is None else one.version == version)), None)
    if wanted is None:
        raise unknown("version of plan", plan_id, version or row.version)
    reply = await _read(database, plan_id, wanted.version)
    async with database.read() as session:
        times = await pages.measured(session, plan_id, wanted.version, REPORTS)
    plan, names = reply.plan, _names(reply.plan, networks)
    first = min(first, len(plan.steps) - 1) // STEPS * STEPS
    chosen = [plan.step[step] for step in plan.order[first : first + STEPS]]
    alone = [(name, us, "") for name, us in sorted(plan.single_processor_us.items(), key=lambda item: item[1])]
    return render(
        request,
        "plan.html",
        row=row,
        networks=networks,
        reply=reply,
        plan=plan,
        names=names,
        gantt=await asyncio.to_thread(gantt.draw, plan, names=names),
        steps=chosen,
        **(_over_hosts(plan) if plan.hosts else {}),
        version=wanted,
        versions=versions,
        first=first,
        per_page=STEPS,
        beside=bars.draw(
            [("this plan", plan.makespan_us, "good"), ("lower bound", plan.lower_bound_us, "bound"), *alone[:LISTED]]
        ),
        more_alone=max(0, len(alone) - LISTED),
        measured=_measured(times, wanted, plan.makespan_us),
        others=[other for other in others if other.id != plan_id],
    )


def _over_hosts(plan: Plan) -> dict[str, Any]:
    """How many steps each host has, and of each link how many tensors cross it, in all and as float16."""
    names = {host.name for host in plan.hosts}

    def host_of(label: str) -> str:
        return name if (name := label.partition(":")[0]) in names else HOST

    moves = Counter((host_of(one.source), host_of(one.target), one.dtype is not None) for one in plan.transfers)
    crossing = []
    for link in plan.links:
        whole, halved = (moves[link.source, link.target, as_float16] for as_float16 in (False, True))
        crossing.append((link, whole + halved, halved))
    return {"on_hosts": Counter(host_of(step.processor) for step in plan.steps), "crossing": crossing}


LISTED = 6
"""Single processors beside a plan, the fastest first."""


def _measured(times: Sequence[float], version: PlanVersion, predicted_us: float) -> dict[str, Any] | None:
    """Measured times of a plan beside the predicted one; dots and prediction in per cent of their axis."""
    off = drift.of_version(version.results.measured_us, predicted_us)
    if not times or off is None:
        return None
    ordered = sorted(times)
    low, high = min(ordered[0], predicted_us) * 0.95, max(ordered[-1], predicted_us) * 1.05
    return {
        "devices": len(ordered),
        "median_us": statistics.median(ordered),
        "low_us": ordered[len(ordered) // 10],
        "high_us": ordered[-1 - len(ordered) // 10],
        "drift": off,
        "dots": [place(us - low, high - low) for us in ordered[:: max(1, len(ordered) // 200)]],
        "predicted": place(predicted_us - low, high - low),
    }


@dataclass(frozen=True)
class Difference:
    """One op in two plans; None: the other plan does not have it as a step of its own."""

    op: str
    network: str
    """Empty where the plans have one alone."""
    left: Step | None
    right: Step | None

    @property
    def moved(self) -> bool:
        """Whether it runs elsewhere."""
        return self.left is None or self.right is None or self.left.processor != self.right.processor

    @property
    def change_us(self) -> float:
        """How much longer it takes in the second plan."""
        return _length(self.right) - _length(self.left)


@router.get("/compare")
async def compare(request: Request, left: Chosen, right: Chosen) -> Response:
    """Show two plans of one model on one axis, and which ops moved."""
    database = request.database
    (plan_id, _, before), (other, _, after) = left.partition("@"), right.partition("@")
    diff = await history.diff(database, plan_id, other, int(before), int(after))
    plans = [(await _read(database, one.plan_id, one.version)).plan for one in (diff.before, diff.after)]
    if [job.model_hash for job in plans[0].jobs] != [job.model_hash for job in plans[1].jobs]:
        raise InvalidError("other-model", "These are plans of different models; choose two of one.")
    async with database.read() as session:
        networks = await pages.networks(session, diff.before.plan_id)
    span_us = max(plan.makespan_us for plan in plans)
    names = _names(plans[0], networks)
    found = differences(plans[0], plans[1], names)
    return render(
        request,
        "compare.html",
        networks=networks,
        diff=diff,
        versions=(diff.before, diff.after),
        plans=plans,
        charts=[gantt.draw(plan, span_us, names) for plan in plans],
        differences=found[:COMPARED],
        total=len(found),
    )


def differences(left: Plan, right: Plan, names: Sequence[str] = ()) -> list[Difference]:
    """Return every step of either plan beside its like in the other: moved ones first, then those that changed most."""
    steps: list[dict[tuple[int, str], Any]] = [
        {(step.job, step.ops[-1]): step for step in plan.steps} for plan in (left, right)
    ]
    keys = dict.fromkeys([*steps[0], *steps[1]])
    found = [Difference(op, names[job] if names else "", *(one.get((job, op)) for one in steps)) for job, op in keys]
    return sorted(found, key=lambda one: (not one.moved, -abs(one.change_us)))


def _names(plan: Plan, networks: Sequence[Any]) -> Sequence[str]:
    """Of each run of a joint plan the name of its network; none where there is one alone."""
    called = {network.hash: network.name for network in networks}
    return [called[job.model_hash] for job in plan.jobs] if len(networks) > 1 else ()


async def _read(database: Database, plan_id: str, version: int) -> PlanReply:
    stored = await history.stored(database, plan_id, version)
    return await asyncio.to_thread(loaded, PlanReply, stored.body_zstd)


def _length(step: Step | None) -> float:
    return 0.0 if step is None else step.finish_us - step.start_us

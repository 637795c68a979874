"""Models, one with its plans on every SoC, and the releases in which new versions reach devices."""

import math
from typing import Annotated

from fastapi import APIRouter, Path, Response

from hope_schema import FanoutRequest, Release, ReleaseRequest, RolloutPolicy
from hope_schema.wording import plural
from planner_api.console.address import HOME, lead
from planner_api.console.charts import bars
from planner_api.console.forms import read_form, scaled, valid
from planner_api.console.rendering import percent, render
from planner_api.db.engine import found
from planner_api.db.tables import ModelRow
from planner_api.devices.groups import names as names_of_groups
from planner_api.models import names
from planner_api.models.routes import Before as BeforeVersion
from planner_api.plans.ahead import plan_ahead
from planner_api.profiles.repository import count_pairs
from planner_api.rollout.routes import Before, ReleaseId
from planner_api.rollout.service import Action
from planner_api.views import pages
from planner_api.views import service as fleet
from planner_api.web.parameters import After, ModelHash, Offset, PlainName
from planner_api.web.route import Request, StrictRoute

router = APIRouter(prefix=HOME, route_class=StrictRoute)
ROWS = 50
PLANS = 500
"""Plans of a model that its page shows, the fastest first."""
DRAWN = 40
"""SoCs that are drawn beside each other."""
NAMED = 100
"""Names shown."""
ROLLOUTS = {
    "at_once": "as soon as they are there",
    "held": "when an admin releases them",
    "staged": "in a release that the planner begins by itself",
}
"""How new versions of plans reach devices, and how that is called."""
RELEASES = 20
PARTS = 100
OFFERED = 200
"""Names and groups that are offered to choose from."""
ACTIONS: dict[str, tuple[Action, ...]] = {
    "running": ("pause", "approve", "rollback"),
    "waiting": ("approve", "pause", "rollback"),
    "paused": ("resume", "rollback"),
    "done": ("rollback",),
    "rolled_back": (),
}
"""What may be done with a release in each state."""


@router.get("/models")
async def list_models(request: Request, offset: Offset = 0) -> Response:
    page = await fleet.models(request.database, offset=offset, limit=ROWS)
    named = await names.list_names(request.database, after=None, limit=NAMED)
    return render(request, "models.html", page=page, offset=offset, rows=ROWS, named=named)


@router.get("/names/{name}")
async def list_versions(request: Request, name: PlainName, before: BeforeVersion = None) -> Response:
    page = await names.list_versions(request.database, name, before=before, limit=ROWS)
    return render(request, "name.html", name=name, page=page, before=before)


@router.get("/models/{model_hash}")
async def show_model(request: Request, model_hash: ModelHash) -> Response:
    async with request.database.read() as session:
        model = await found(session, ModelRow, model_hash, "model")
        pairs = await count_pairs(session)
        covered = await pages.covered_of(session, model_hash)
        called = await pages.names_of(session, model_hash, NAMED)
    page = await fleet.plans(request.database, after=None, limit=PLANS, model_hash=model_hash)
    plans = sorted(page.plans, key=lambda plan: (plan.makespan_us is None, plan.makespan_us or 0.0))
    drawn = [(f"{plan.soc} {plan.frequency}", plan.makespan_us, "") for plan in plans if plan.makespan_us is not None]
    return render(
        request,
        "model.html",
        model=model,
        plans=plans,
        more=page.next is not None,
        pairs=pairs,
        called=called,
        rollout=model.rollout,
        rollouts=ROLLOUTS,
        covered=covered,
        chart=bars.draw(drawn[:DRAWN]),
    )


@router.post("/models/{model_hash}/plans")
async def plan_everywhere(request: Request, model_hash: ModelHash) -> Response:
    await plan_ahead(request.database, model_hash, FanoutRequest(), request.actor)
    return lead(f"{HOME}/queue")


@router.post("/models/{model_hash}/rollout")
async def set_rollout(request: Request, model_hash: ModelHash) -> Response:
    fields = await read_form(request)
    policy = valid(RolloutPolicy, rollout=fields.get("rollout"))
    await request.planner.releases.set_rollout(model_hash, policy.rollout, request.actor)
    return lead(f"{HOME}/models/{model_hash}")


@router.get("/releases")
async def list_releases(request: Request, before: Before = None) -> Response:
    planner = request.planner
    page = await planner.releases.page(before=before, limit=RELEASES)
    named = await names.list_names(planner.database, after=None, limit=OFFERED)
    async with planner.database.read() as session:
        known = await names_of_groups(session, OFFERED)
        titles = await pages.titles(session, (release.model_hash for release in page.releases))
    return render(
        request,
        "releases.html",
        page=page,
        before=before,
        names=named.names,
        groups=known,
        titles=titles,
        sentence=sentence,
    )


@router.post("/releases")
async def begin(request: Request) -> Response:
    fields = await read_form(request)
    message = valid(
        ReleaseRequest,
        model=fields.get("model", "").strip(),
        alias=fields.get("alias", "").strip() or None,
        group=fields.get("group") or None,
        approval="approval" in fields,
        again="again" in fields,
        hold_s=scaled(fields.get("hold_h", "1"), 3600.0),
    )
    made: Release = await request.planner.releases.begin(message, request.actor)
    return lead(f"{HOME}/releases/{made.release_id}")


@router.get("/releases/{release_id}")
async def show_release(request: Request, release_id: ReleaseId, after: After = None) -> Response:
    releases = request.planner.releases
    release: Release = await releases.get(release_id)
    async with request.database.read() as session:
        model = await found(session, ModelRow, release.model_hash, "model")
    return render(
        request,
        "release.html",
        release=release,
        name=model.name if release.model == release.model_hash else release.model,
        parts=await releases.parts(release_id, after=after, limit=PARTS),
        after=after,
        actions=ACTIONS[release.state],
        sentence=sentence,
        limit=-math.log10(release.error_rate),
    )


@router.post("/releases/{release_id}/{action}")
async def act(request: Request, release_id: ReleaseId, action: Annotated[Action, Path()]) -> Response:
    await request.planner.releases.act(release_id, action, request.actor)
    return lead(f"{HOME}/releases/{release_id}")


def sentence(release: Release) -> str:
    whose = "the devices" if release.group is None else f"the devices of group {release.group}"
    reached = f"stage {release.stage + 1} of {len(release.stages)}: {percent(release.share)} of {whose} have it"
    match release.state:
        case "running":
            return f"At {reached}; {release.reported} of {plural(release.wanted, 'device')} wanted reported."
        case "waiting":
            return f"At {reached}; {release.reason}."
        case "paused":
            return f"Paused at {reached}."
        case "done":
            everybody = "Everybody has it" + (f", not group {release.group} alone" if release.group else "")
            return f"{everybody}: {release.reason}." if release.reason else f"{everybody}."
        case _:
            return f"Taken back: {release.reason}." if release.reason else "Taken back."

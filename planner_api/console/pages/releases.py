"""Releases: begun, watched while they go from stage to stage, held, approved and taken back."""

import math
from typing import Annotated

from fastapi import APIRouter, Path, Response

from hope_schema import Release, ReleaseRequest
from hope_schema.wording import plural
from planner_api.console.address import HOME, lead
from planner_api.console.forms import read_form, scaled, valid
from planner_api.console.rendering import percent, render
from planner_api.db.engine import found
from planner_api.db.tables import ModelRow
from planner_api.devices.groups.service import names as names_of_groups
from planner_api.models.names import service as names
from planner_api.rollout.routes import Before, ReleaseId
from planner_api.rollout.service import Action
from planner_api.views import pages
from planner_api.web.parameters import After
from planner_api.web.route import Request, StrictRoute

router = APIRouter(prefix=HOME, route_class=StrictRoute)

ROWS = 20
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


@router.get("/releases")
async def listing(request: Request, before: Before = None) -> Response:
    planner = request.planner
    page = await planner.releases.page(before=before, limit=ROWS)
    named = await names.list_names(planner.database, after="", limit=OFFERED)
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
async def show(request: Request, release_id: ReleaseId, after: After = None) -> Response:
    releases = request.planner.releases
    release: Release = await releases.get(release_id)
    async with request.database.read() as session:
        model = await found(session, ModelRow, release.model_hash, "model")
    return render(
        request,
        "release.html",
        release=release,
        name=model.name if release.model == release.model_hash else release.model,
        parts=await releases.parts(release_id, after=after or "", limit=PARTS),
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

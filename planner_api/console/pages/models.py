"""Models: a list, and one with its plans on every SoC."""

from fastapi import APIRouter, Response

from hope_schema import FanoutRequest, RolloutPolicy
from planner_api.console.address import HOME, lead
from planner_api.console.charts import bars
from planner_api.console.forms import read_form, valid
from planner_api.console.rendering import render
from planner_api.db.engine import found
from planner_api.db.tables import ModelRow
from planner_api.models.names import service as names
from planner_api.models.routes import Before
from planner_api.plans.ahead import plan_ahead
from planner_api.profiles.repository import count_pairs
from planner_api.rollout import repository as releases
from planner_api.views import pages
from planner_api.views import service as fleet
from planner_api.web.parameters import ModelHash, Offset, PlainName
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


@router.get("/models")
async def listing(request: Request, offset: Offset = 0) -> Response:
    page = await fleet.models(request.database, offset=offset, limit=ROWS)
    named = await names.list_names(request.database, after="", limit=NAMED)
    return render(request, "models.html", page=page, offset=offset, rows=ROWS, named=named)


@router.get("/names/{name}")
async def versions(request: Request, name: PlainName, before: Before = None) -> Response:
    page = await names.list_versions(request.database, name, before=before, limit=ROWS)
    return render(request, "name.html", name=name, page=page, before=before)


@router.get("/models/{model_hash}")
async def show(request: Request, model_hash: ModelHash) -> Response:
    async with request.database.read() as session:
        model = await found(session, ModelRow, model_hash, "model")
        pairs = await count_pairs(session)
        covered = await pages.covered_of(session, model_hash)
        called = await pages.names_of(session, model_hash, NAMED)
        rollout = await releases.rollout(session, model_hash)
    page = await fleet.plans(request.database, after="", limit=PLANS, model_hash=model_hash)
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
        rollout=rollout,
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

"""The fleet view over HTTP."""

from typing import Annotated

from fastapi import APIRouter, Query

from hope_schema import ContributionPage, FleetModelPage, FleetPlanPage, FleetProfilePage, FleetSummary, VotePage
from hope_schema.base import FREQUENCY, LABEL, Digest
from hope_schema.fleet import PlanStatus
from planner_api.profiles import oversight
from planner_api.views import service
from planner_api.web.contract import problems
from planner_api.web.parameters import After, Limit, Offset, SocName
from planner_api.web.route import Request, StrictRoute

router = APIRouter(tags=["fleet"], route_class=StrictRoute)


@router.get("/fleet", response_description="The fleet in numbers.")
async def read_fleet(request: Request) -> FleetSummary:
    """Return the fleet in numbers."""
    return await service.summary(request.database)


@router.get("/fleet/profiles", response_description="One page.")
async def list_fleet_profiles(request: Request, offset: Offset = 0, limit: Limit = 100) -> FleetProfilePage:
    """List what is known of each SoC at each frequency."""
    return await service.profiles(request.database, offset=offset, limit=limit)


@router.get("/fleet/models", response_description="One page.")
async def list_fleet_models(request: Request, offset: Offset = 0, limit: Limit = 100) -> FleetModelPage:
    """List the models with the coverage, gaps and hit rate of their plans."""
    return await service.models(request.database, offset=offset, limit=limit)


@router.get("/fleet/plans", response_description="One page.")
async def list_fleet_plans(
    request: Request,
    model_hash: Annotated[Digest | None, Query()] = None,
    soc: Annotated[str | None, Query(max_length=128, pattern=LABEL)] = None,
    status: Annotated[PlanStatus | None, Query()] = None,
    after: After = None,
    limit: Limit = 100,
) -> FleetPlanPage:
    """List plans with status, gap, age, hit rate and drift."""
    where = {"model_hash": model_hash, "soc": soc, "status": status}
    return await service.plans(request.database, after=after, limit=limit, **where)


Soc = Annotated[str, Query(max_length=128, pattern=LABEL, description="The SoC")]
Frequency = Annotated[str, Query(max_length=128, pattern=FREQUENCY, description="The operating point")]
DeviceName = Annotated[str | None, Query(max_length=128, pattern=LABEL, description="Of this device alone")]


@router.get("/fleet/profiles/contributions", response_description="One page.", responses=problems(404))
async def list_contributions(
    request: Request, soc: Soc, frequency: Frequency, after: After = None, limit: Limit = 100
) -> ContributionPage:
    """List who had a part in a profile, and how much of it nobody else says."""
    return await oversight.contributions(request.database, soc, frequency, after=after, limit=limit)


@router.get("/fleet/profiles/votes", response_description="One page.", responses=problems(404))
async def list_votes(
    request: Request,
    soc: Soc,
    frequency: Frequency,
    device_id: DeviceName = None,
    offset: Offset = 0,
    limit: Limit = 100,
) -> VotePage:
    """List who said what of which figure."""
    return await oversight.votes(request.database, soc, frequency, device_id=device_id, offset=offset, limit=limit)


@router.delete(
    "/fleet/profiles/contributions",
    status_code=204,
    response_description="It is being forgotten.",
    responses=problems(404),
)
async def forget_contributions(request: Request, soc: Soc, frequency: Frequency, device_id: DeviceName = None) -> None:
    """Take back what a device, or everybody, said in a profile; plans that rest on it are solved again."""
    await oversight.forget(request.database, soc, frequency, device_id, request.actor)


@router.put("/fleet/socs/{soc}", status_code=204, response_description="It counts from now on.")
async def establish_soc(request: Request, soc: SocName) -> None:
    """Vouch for a SoC, so that planning ahead counts it however few devices uploaded."""
    await oversight.establish(request.database, soc, request.actor)

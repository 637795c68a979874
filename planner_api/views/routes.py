"""The fleet view over HTTP."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from hope_schema import (
    ContributionPage,
    FleetModelPage,
    FleetPlanPage,
    FleetProfilePage,
    FleetSummary,
    VotePage,
)
from hope_schema.base import FREQUENCY, LABEL, Digest
from hope_schema.fleet import PlanStatus
from planner_api.devices.audit.service import actor_of
from planner_api.profiles import oversight
from planner_api.views import service
from planner_api.web.contract import describe
from planner_api.web.parameters import After, Limit, Offset
from planner_api.web.route import StrictRoute, reply

router = APIRouter(tags=["fleet"], route_class=StrictRoute)


@router.get("/fleet", openapi_extra=describe(replies={200: ("The fleet in numbers.", FleetSummary)}))
async def read_fleet(request: Request) -> Response:
    """Return the fleet in numbers."""
    return reply(await service.summary(request.app.state.planner.database))


@router.get("/fleet/profiles", openapi_extra=describe(replies={200: ("One page.", FleetProfilePage)}))
async def list_fleet_profiles(request: Request, offset: Offset = 0, limit: Limit = 100) -> Response:
    """List what is known of each SoC at each frequency."""
    return reply(await service.profiles(request.app.state.planner.database, offset=offset, limit=limit))


@router.get("/fleet/models", openapi_extra=describe(replies={200: ("One page.", FleetModelPage)}))
async def list_fleet_models(request: Request, offset: Offset = 0, limit: Limit = 100) -> Response:
    """List the models with the coverage, gaps and hit rate of their plans."""
    return reply(await service.models(request.app.state.planner.database, offset=offset, limit=limit))


@router.get("/fleet/plans", openapi_extra=describe(replies={200: ("One page.", FleetPlanPage)}))
async def list_fleet_plans(
    request: Request,
    model_hash: Annotated[Digest | None, Query()] = None,
    soc: Annotated[str | None, Query(max_length=128, pattern=LABEL)] = None,
    status: Annotated[PlanStatus | None, Query()] = None,
    after: After = None,
    limit: Limit = 100,
) -> Response:
    """List plans with status, gap, age, hit rate and drift."""
    wanted = {"model_hash": model_hash, "soc": soc, "status": status}
    where = {name: value for name, value in wanted.items() if value is not None}
    found = await service.plans(request.app.state.planner.database, where=where, after=after or "", limit=limit)
    return reply(found)


Soc = Annotated[str, Query(max_length=128, pattern=LABEL, description="The SoC")]
Frequency = Annotated[str, Query(max_length=128, pattern=FREQUENCY, description="The operating point")]
DeviceName = Annotated[str | None, Query(max_length=128, pattern=LABEL, description="Of this device alone")]


@router.get(
    "/fleet/profiles/contributions",
    openapi_extra=describe(replies={200: ("One page.", ContributionPage)}, errors=[404]),
)
async def list_contributions(
    request: Request, soc: Soc, frequency: Frequency, after: After = None, limit: Limit = 100
) -> Response:
    """List who had a part in a profile, and how much of it nobody else says."""
    database = request.app.state.planner.database
    return reply(await oversight.contributions(database, soc, frequency, after=after or "", limit=limit))


@router.get("/fleet/profiles/votes", openapi_extra=describe(replies={200: ("One page.", VotePage)}, errors=[404]))
async def list_votes(
    request: Request,
    soc: Soc,
    frequency: Frequency,
    device_id: DeviceName = None,
    offset: Offset = 0,
    limit: Limit = 100,
) -> Response:
    """List who said what of which figure."""
    database = request.app.state.planner.database
    return reply(await oversight.votes(database, soc, frequency, device_id=device_id, offset=offset, limit=limit))


@router.delete(
    "/fleet/profiles/contributions",
    openapi_extra=describe(replies={204: ("It is being forgotten.", None)}, errors=[404]),
)
async def forget_contributions(
    request: Request, soc: Soc, frequency: Frequency, device_id: DeviceName = None
) -> Response:
    """Take back what a device, or everybody, said in a profile; plans that rest on it are solved again."""
    devices = None if device_id is None else [device_id]
    database, actor = request.app.state.planner.database, actor_of(request.scope)
    await oversight.forget(database, soc, frequency, devices, actor, "profile.forget")
    return Response(status_code=204)


@router.post(
    "/fleet/profiles/rebuild", openapi_extra=describe(replies={204: ("It is being made anew.", None)}, errors=[404])
)
async def rebuild_profile(request: Request, soc: Soc, frequency: Frequency) -> Response:
    """Make a profile anew of what devices said that are not revoked."""
    await oversight.rebuild(request.app.state.planner.database, soc, frequency, actor_of(request.scope))
    return Response(status_code=204)


@router.put(
    "/fleet/socs/{soc:path}", openapi_extra=describe(replies={204: ("It counts from now on.", None)}, errors=[404])
)
async def establish_soc(
    request: Request, soc: Annotated[str, Path(max_length=128, pattern=LABEL, description="The SoC")]
) -> Response:
    """Vouch for a SoC, so that planning ahead counts it however few devices uploaded."""
    await oversight.establish(request.app.state.planner.database, soc, actor_of(request.scope))
    return Response(status_code=204)

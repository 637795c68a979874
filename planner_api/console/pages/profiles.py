"""Profiles: a list, and one as a heat map of ops and processors."""

import asyncio
import math
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Response

from hope_schema import Processor, Profile
from planner_api.compression import loaded
from planner_api.console.address import HOME
from planner_api.console.charts import heat
from planner_api.console.forms import Words
from planner_api.console.rendering import render
from planner_api.db.tables import ModelRow
from planner_api.models import service as models
from planner_api.models.figures import Figures
from planner_api.profiles import oversight
from planner_api.profiles.fold import ESTABLISHED_BY
from planner_api.views import service as fleet
from planner_api.web.parameters import FrequencyName, Offset, SocName
from planner_api.web.route import Request, StrictRoute

router = APIRouter(prefix=HOME, route_class=StrictRoute)

ROWS = 50
OPS = 60
"""Rows per page of a heat map."""


@router.get("/profiles")
async def listing(request: Request, offset: Offset = 0) -> Response:
    page = await fleet.profiles(request.database, offset=offset, limit=ROWS)
    return render(request, "profiles.html", page=page, offset=offset, rows=ROWS, enough=ESTABLISHED_BY)


@router.get("/profiles/{soc}/{frequency}")
async def show(
    request: Request,
    soc: SocName,
    frequency: FrequencyName,
    op: Words = "",
    model: Annotated[str | None, Query(pattern=r"^([0-9a-f]{64})?$")] = None,
    first: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
) -> Response:
    """Show one profile: the ops that take longest first, or those of a model in its order."""
    planner = request.planner
    profile = await asyncio.to_thread(loaded, Profile, await planner.profiles.read(soc, frequency))
    rows = list(zip(profile.latencies.signature, profile.latencies.kind, strict=True))
    figures = {
        key: heat.Figure(us, spread)
        for key, us, spread in zip(rows, profile.latencies.us, profile.latencies.spread_us, strict=True)
    }
    if model:
        body = await models.read(planner.database, model, ModelRow.figures_zstd)
        signatures = list(loaded(Figures, body).signatures)
    else:
        fastest: dict[str, float] = {}
        for (signature, _), figure in figures.items():
            us = math.inf if figure.us is None else figure.us
            fastest[signature] = min(us, fastest.get(signature, math.inf))
        signatures = sorted(fastest, key=lambda signature: (-fastest[signature], signature))
    signatures = [signature for signature in signatures if op.lower() in signature.lower()]
    first = min(first, max(0, len(signatures) - 1)) // OPS * OPS
    shown = signatures[first : first + OPS]
    columns: dict[str, list[Processor]] = {}  # a kind of processor each
    for processor in profile.processors:
        columns.setdefault(processor.kind, []).append(processor)
    keys = [(signature, kind) for signature in shown for kind in columns]
    agreed = await oversight.agreement(planner.database, profile.soc, profile.frequency, keys)
    for key, (voters, agreeing) in agreed.items():
        if key in figures:
            figures[key] = replace(figures[key], voters=voters, agreeing=agreeing)
    return render(
        request,
        "profile.html",
        profile=profile,
        columns=columns,
        rows=heat.draw(shown, list(columns), figures),
        levels=heat.LEVELS,
        total=len(signatures),
        first=first,
        per_page=OPS,
        op=op,
        model=model,
        measured=sum(figure.us is not None for figure in figures.values()),
        unsupported=sum(figure.us is None for figure in figures.values()),
    )

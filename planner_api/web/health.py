"""Probes and metrics over HTTP."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from planner_api.errors import NotFoundError
from planner_api.web.contract import describe
from planner_api.web.route import StrictRoute

router = APIRouter(tags=["operations"], route_class=StrictRoute)


@router.get("/healthz", openapi_extra=describe(replies={200: ("This process lives.", None)}))
async def check_health() -> Response:
    """Liveness: this process answers. Says nothing of the database: restarting us would not bring that back."""
    return Response(status_code=200)


@router.get("/readyz", openapi_extra=describe(replies={200: ("Requests can be served.", None)}))
async def check_readiness(request: Request) -> Response:
    """Readiness: the database answers and its schema is the newest."""
    await request.app.state.planner.probes.check_ready()
    return Response(status_code=200)


@router.get(
    "/metrics",
    openapi_extra=describe(replies={200: ("Prometheus text format.", None)}, errors=[404], media={200: "text/plain"}),
)
async def read_metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    planner = request.app.state.planner
    if not planner.settings.metrics:
        raise NotFoundError("metrics-off", "metrics are switched off (HOPE_METRICS=false)")
    text = await planner.probes.scrape()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

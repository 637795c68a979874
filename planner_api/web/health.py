"""Probes and metrics over HTTP."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from starlette.responses import PlainTextResponse

from planner_api.errors import NotFoundError
from planner_api.web.contract import problems
from planner_api.web.route import StrictRoute

router = APIRouter(tags=["operations"], route_class=StrictRoute)


@router.get("/healthz", response_description="This process lives.")
async def check_health() -> Response:
    """Liveness: this process answers. Says nothing of the database: restarting us would not bring that back."""
    return Response(status_code=200)


@router.get("/readyz", response_description="Requests can be served.")
async def check_readiness(request: Request) -> Response:
    """Readiness: the database answers and its schema is the newest."""
    await request.app.state.planner.probes.check_ready()
    return Response(status_code=200)


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    response_description="Prometheus text format.",
    responses=problems(404),
)
async def read_metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    planner = request.app.state.planner
    if not planner.settings.metrics:
        raise NotFoundError("metrics-off", "metrics are switched off (HOPE_METRICS=false)")
    text = await planner.probes.scrape()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

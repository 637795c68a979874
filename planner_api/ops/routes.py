"""Probes and metrics over HTTP."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request, Response
from sqlalchemy import func, select, text
from sqlalchemy.exc import DBAPIError

from planner_api.db.engine import Database
from planner_api.db.migrate import HEAD
from planner_api.db.outage import AWAY
from planner_api.db.tables import InboxRow
from planner_api.errors import ApiError, unavailable
from planner_api.http.contract import describe
from planner_api.ops.metrics import Metrics
from planner_api.solving.repository import count_by_status

router = APIRouter(tags=["operations"])

BROKEN: tuple[type[Exception], ...] = (DBAPIError, *AWAY)
PROBE_S = 2.0
"""A database that does not answer within this is away."""


async def check_ready(database: Database) -> None:
    """Whether requests can be served: the database answers and stands at the newest migration.

    Raises:
        ApiError: 503, saying what is missing.
    """
    try:
        async with asyncio.timeout(PROBE_S), database.read() as session:
            revision = await session.scalar(text("SELECT version_num FROM alembic_version"))
    except BROKEN:
        raise unavailable("the database does not answer, or was never migrated") from None
    if revision != HEAD:
        raise unavailable(f"the database stands at migration {revision}, not {HEAD}: run hope-planner migrate")


async def scrape(database: Database, metrics: Metrics) -> bytes:
    """The metrics page; without the gauges that the database tells while that is away."""
    try:
        async with asyncio.timeout(PROBE_S), database.read() as session:
            by_status = await count_by_status(session)
            inbox = await session.scalar(select(func.count()).where(InboxRow.folded_at.is_(None)))
        metrics.gauges["plans"] = ("status", {status: float(count) for status, count in by_status.items()})
        metrics.gauges["inbox"] = ("state", {"waiting": float(inbox or 0)})
        metrics.gauges["database"] = ("state", {"up": 1.0})
    except BROKEN:
        metrics.gauges = {"database": ("state", {"up": 0.0})}
    return metrics.render()


@router.get("/healthz", openapi_extra=describe(replies={200: ("This process lives.", None)}))
async def healthz() -> Response:
    """Liveness: this process answers. Says nothing of the database: restarting us would not bring that back."""
    return Response(status_code=200)


@router.get("/readyz", openapi_extra=describe(replies={200: ("Requests can be served.", None)}))
async def readyz(request: Request) -> Response:
    """Readiness: the database answers and its schema is the newest."""
    await check_ready(request.app.state.planner.database)
    return Response(status_code=200)


@router.get(
    "/metrics",
    openapi_extra=describe(replies={200: ("Prometheus text format.", None)}, errors=[404], media={200: "text/plain"}),
)
async def read_metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    planner = request.app.state.planner
    if not planner.settings.metrics:
        raise ApiError(404, "metrics-off", "metrics are switched off (HOPE_METRICS=false)")
    text = await scrape(planner.database, planner.metrics)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

"""Probes and metrics, which anybody may ask for as often as they like: they need no token, so they must cost little."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Response
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from starlette.responses import PlainTextResponse

from planner_api.concurrency import SharedCalls
from planner_api.db.engine import Database
from planner_api.db.migrate import HEAD, serves
from planner_api.errors import DatabaseAwayError, NotFoundError, UnavailableError
from planner_api.web.contract import problems
from planner_api.web.metrics import Gauge, Metrics
from planner_api.web.route import Request, StrictRoute

router = APIRouter(tags=["operations"], route_class=StrictRoute)

BROKEN: tuple[type[Exception], ...] = (DatabaseAwayError, DBAPIError, TimeoutError)
PROBE_S = 2.0
"""A database that does not answer within this is away."""
FRESH_S = 1.0
"""How long an outcome is told to everybody who asks."""


class Probes:
    """What a process tells about itself and its database; the rooms of the planner say which ``gauges`` it reads."""

    def __init__(self, database: Database, metrics: Metrics, gauges: Sequence[Gauge]) -> None:
        self._database = database
        self._metrics = metrics
        self._gauges = gauges
        self._looks: SharedCalls[Any] = SharedCalls(keep_s=FRESH_S)

    async def check_ready(self) -> None:
        """Whether requests can be served: the database answers, stands at the newest migration and takes things in.

        Raises:
            UnavailableError: saying what is missing.
        """
        await self._looks.get("ready", self._check_ready)

    async def scrape(self) -> bytes:
        """The metrics page; without the gauges that the database tells while that is away."""
        page: bytes = await self._looks.get("page", self._scrape)
        return page

    async def _check_ready(self) -> None:
        try:
            async with asyncio.timeout(PROBE_S), self._database.read() as session:
                revision = await session.scalar(text("SELECT version_num FROM alembic_version"))
        except BROKEN:
            raise UnavailableError("the database does not answer, or was never migrated") from None
        if not serves(revision):
            raise UnavailableError(f"the database stands at migration {revision}, not {HEAD}: run hope-planner migrate")
        try:
            # NOTE: committed, because a full disk refuses only what is written down.
            async with asyncio.timeout(PROBE_S), self._database.write() as session:
                await session.execute(text("UPDATE alembic_version SET version_num = version_num"))
        except TimeoutError:
            pass  # it is busy writing
        except (DatabaseAwayError, DBAPIError) as error:
            reason = getattr(error, "reason", None) or str(getattr(error, "orig", None) or error)
            raise UnavailableError(f"nothing can be written to the database: {reason}"[:300]) from None

    async def _scrape(self) -> bytes:
        metrics = self._metrics
        try:
            async with asyncio.timeout(PROBE_S), self._database.read() as session:
                found = {gauge.name: (gauge.label, await gauge.read(session)) for gauge in self._gauges}
            metrics.gauges = {**found, "database": ("state", {"up": 1.0})}
        except BROKEN:
            metrics.gauges = {"database": ("state", {"up": 0.0})}
        return metrics.render()


@router.get("/healthz", response_description="This process lives.")
async def check_health() -> Response:
    """Liveness: this process answers. Says nothing of the database: restarting us would not bring that back."""
    return Response(status_code=200)


@router.get("/readyz", response_description="Requests can be served.")
async def check_readiness(request: Request) -> Response:
    """Readiness: the database answers and its schema is the newest."""
    await request.planner.probes.check_ready()
    return Response(status_code=200)


@router.get(
    "/metrics",
    response_class=PlainTextResponse,
    response_description="Prometheus text format.",
    responses=problems(404),
)
async def read_metrics(request: Request) -> Response:
    """Figures for Prometheus."""
    if not request.planner.settings.metrics:
        raise NotFoundError("metrics-off", "metrics are switched off (HOPE_METRICS=false)")
    text = await request.planner.probes.scrape()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

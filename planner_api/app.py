"""The application factory: routes, layers and the planner's parts behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware

from hope_schema.version import VERSION
from planner_api.models.routes import router as models
from planner_api.plans.routes import router as plans
from planner_api.profiles.routes import router as profiles
from planner_api.runtime import Planner
from planner_api.settings import Settings
from planner_api.web.asgi import Asgi, Scope
from planner_api.web.document import build as build_document
from planner_api.web.logs import stay_quiet
from planner_api.web.observe import Observe
from planner_api.web.traces import traced


class App:
    """The ASGI application: the layers around the routes. ``planner`` and ``api`` are what they guard."""

    def __init__(self, planner: Planner, api: FastAPI, layers: Asgi) -> None:
        self.planner = planner
        self.api = api
        self._layers = layers

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve one request, or the life of the application."""
        await (self.api if scope["type"] == "lifespan" else self._layers)(scope, receive, send)


def create_app(settings: Settings) -> App:
    """Return the application; its lifespan opens and closes the database.

    A request passes through: observation (id, metrics, log, errors), the console, which answers what is its own, the
    guard (token, role, rate), the routes. An embedded planner has the first and the
    last of them alone: nobody needs a token there, and it looks at what was uploaded before it answers with a plan.

    Raises:
        DatabaseUrlError: a database this planner cannot use.
    """
    if settings.embedded:
        stay_quiet()
        planner, count = Planner(settings), None
        api = _api(planner, _agent_routers())
        inner: Asgi = api
    else:
        # NOTE: imported here, because an agent with the planner inside needs none of it.
        from planner_api.devices.guard import Guard
        from planner_api.service import Service
        from planner_api.web.rate import RateLimit

        planner = service = Service(settings)
        count = service.metrics.request
        api = _api(planner, _agent_routers() + _fleet_routers())
        per_token = RateLimit(settings.rate_per_token, settings.burst_per_token)
        per_address = RateLimit(settings.rate_per_address, settings.burst_per_address)
        required = settings.tokens_required
        inner = Guard(api, service.tokens, required=required, per_token=per_token, per_address=per_address)
        if settings.console:
            from planner_api.console.app import Console

            inner = Console(inner, service, required=required, per_bearer=per_token, per_address=per_address)
    observed = Observe(inner, count, log_routine=settings.log_level == "debug")
    return App(planner, api, traced(observed) if settings.telemetry else observed)


def openapi_document() -> dict[str, Any]:
    """Return the contract of the whole service."""
    return build_document(_api(None, _agent_routers() + _fleet_routers()))


def _agent_routers() -> list[APIRouter]:
    return [models, profiles, plans]


def _fleet_routers() -> list[APIRouter]:
    from planner_api.devices.audit.routes import router as audit
    from planner_api.devices.groups.routes import router as groups
    from planner_api.devices.routes import router as devices
    from planner_api.rollout.aliases.routes import router as names
    from planner_api.rollout.routes import router as releases
    from planner_api.views.routes import router as fleet
    from planner_api.web.health import router as operations

    return [devices, fleet, names, groups, releases, audit, operations]


def _api(planner: Planner | None, routers: list[APIRouter]) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_api: FastAPI) -> AsyncIterator[None]:
        assert planner is not None
        await planner.start()
        try:
            yield
        finally:
            await planner.stop()

    api = FastAPI(
        title="HOPE planner",
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    api.state.planner = planner
    # As they are: including a router makes each of its routes anew, at the first request of every application.
    api.router.routes.extend(route for router in routers for route in router.routes)
    # Errors leave the routes as they were raised: the layers see them, and the outermost answers them, like its own.
    api.middleware_stack = AsyncExitStackMiddleware(api.router)

    @api.get("/openapi.json", include_in_schema=False)
    async def contract() -> dict[str, Any]:
        return build_document(api)

    return api

"""The application factory: routes, layers and the planner's parts behind them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException

from planner_api.errors import ApiError, headers_of, unavailable
from planner_api.http.asgi import Asgi, Scope
from planner_api.http.document import build as build_document
from planner_api.models.routes import router as models
from planner_api.ops.logs import stay_quiet
from planner_api.ops.observe import Observe
from planner_api.ops.traces import build_tracer
from planner_api.plans.front import PlanFront
from planner_api.plans.routes import router as plans
from planner_api.profiles.routes import router as profiles
from planner_api.runtime import Planner
from planner_api.settings import Settings

log = structlog.get_logger(__name__)


class App:
    """The ASGI application: the layers around the routes. ``planner`` and ``api`` are what they guard."""

    def __init__(self, planner: Planner, api: FastAPI, outermost: Asgi) -> None:
        self.planner = planner
        self.api = api
        self._outermost = outermost

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve one request, or the life of the application."""
        target = self.api if scope["type"] == "lifespan" else self._outermost
        await target(scope, receive, send)


def create_app(settings: Settings | None = None) -> App:
    """Return the application; its lifespan opens and closes the database.

    Raises:
        DatabaseUrlError: a database this planner cannot use.
    """
    planner = Planner(settings or Settings())
    if planner.settings.embedded:
        stay_quiet()

    @asynccontextmanager
    async def lifespan(_api: FastAPI) -> AsyncIterator[None]:
        await planner.start()
        try:
            yield
        finally:
            await planner.stop()

    api = _api(lifespan, embedded=planner.settings.embedded)
    api.state.planner = planner
    return App(planner, api, _layers(planner, api))


def openapi_document() -> dict[str, Any]:
    """Return the contract of the whole service."""
    return build_document(_api(None))


def _layers(planner: Planner, api: Asgi) -> Asgi:
    """Put the layers around the routes: the plan cache, then observation, then the guard."""
    settings = planner.settings
    tracer = build_tracer(settings.telemetry)
    routine = settings.log_level == "debug"
    if planner.tokens is None:
        # NOTE: an embedded planner looks at what was uploaded before it answers, so nothing may stand in front of it.
        return Observe(api, planner.metrics, tracer, log_routine=routine)
    from planner_api.devices.gate import Gate
    from planner_api.devices.guard import Guard
    from planner_api.devices.rate import RateLimit

    required = settings.tokens_required
    per_token = RateLimit(settings.rate_per_token, settings.burst_per_token)
    per_address = RateLimit(settings.rate_per_address, settings.burst_per_address)
    guard = Guard(api, planner.tokens, required=required, per_token=per_token, per_address=per_address)
    observed = Observe(guard, planner.metrics, tracer, log_routine=routine)
    gate = Gate(planner.tokens, required=required, per_token=per_token)
    waits = planner.plans.waits
    assert waits is not None
    planner.front = PlanFront(
        observed, planner.plan_cache, waits, gate, planner.metrics, body_timeout_s=settings.body_timeout_s
    )
    return planner.front


def _api(lifespan: Any, *, embedded: bool = False) -> FastAPI:
    api = FastAPI(
        title="HOPE planner",
        version=_version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    for router in (models, profiles, plans):
        api.include_router(router)
    if not embedded:
        # NOTE: imported here, because an agent with the planner inside has no fleet to watch over.
        from planner_api.devices.routes import router as devices
        from planner_api.fleet.routes import router as fleet
        from planner_api.ops.routes import router as operations

        for router in (devices, fleet, operations):
            api.include_router(router)
    api.openapi = lambda: build_document(api)  # type: ignore[method-assign]
    api.add_exception_handler(ApiError, _refused)
    api.add_exception_handler(RequestValidationError, _invalid_parameter)
    api.add_exception_handler(HTTPException, _http_error)
    away: list[type[Exception]] = [OperationalError, InterfaceError, PoolTimeout]
    if not embedded:
        from procrastinate.exceptions import ConnectorException

        away.append(ConnectorException)
    for kind in away:
        api.add_exception_handler(kind, _database_away)
    api.add_exception_handler(Exception, _fault)

    @api.get("/openapi.json", include_in_schema=False)
    async def contract() -> dict[str, Any]:
        return build_document(api)

    return api


def _version() -> str:
    try:
        return version("hope")
    except PackageNotFoundError:
        return "0"


def _problem(request: Request, error: ApiError) -> Response:
    request_id = request.scope.get("state", {}).get("request_id")
    body = error.body(instance=request.url.path, request_id=request_id)
    response = Response(body, status_code=error.status)
    response.raw_headers = headers_of(error, body, request_id)
    return response


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _problem(request, error)


async def _invalid_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    causes = [f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()]
    return _problem(request, ApiError(422, "invalid", f"a parameter is not valid: {causes[0]}", causes=causes))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind, detail = {
        404: ("not-found", f"there is nothing at {request.url.path}"),
        405: ("method-not-allowed", f"{request.url.path} does not know the method {request.method}"),
    }.get(error.status_code, ("http-error", str(error.detail)))
    return _problem(request, ApiError(error.status_code, kind, detail, headers=error.headers))


async def _database_away(request: Request, error: Exception) -> Response:
    log.warning("database_unavailable", path=request.url.path, error=str(error)[:300])
    return _problem(request, unavailable("the database is away for the moment; try again"))


async def _fault(request: Request, error: Exception) -> Response:
    log.error("request_failed", path=request.url.path, error=f"{type(error).__name__}: {error}"[:300])
    return _problem(request, ApiError(500, "fault", "the planner failed on this request; its log knows the request id"))

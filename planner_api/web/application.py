"""The ASGI application around a planner: its routes, and the layers in front of them."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

from fastapi import APIRouter, FastAPI
from starlette.responses import JSONResponse, Response
from starlette.routing import Router

from hope_schema.version import VERSION
from planner_api.web.asgi import Asgi, Scope
from planner_api.web.document import build
from planner_api.web.route import StrictRoute


class Runs(Protocol):
    """What is started before the first request and stopped after the last."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


Planner = TypeVar("Planner", bound=Runs)


class App(Generic[Planner]):
    """The ASGI application: the layers around the routes. ``planner`` and ``api`` are what they guard."""

    def __init__(self, planner: Planner, api: FastAPI, layers: Asgi) -> None:
        self.planner = planner
        self.api = api
        self._layers = layers

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        await (self.api if scope["type"] == "lifespan" else self._layers)(scope, receive, send)


def build_api(planner: Runs | None, routers: Iterable[APIRouter]) -> FastAPI:
    """Return the routes around a planner; its lifespan starts and stops that. None: for their contract alone."""

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
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        telemetry={"tracing": False, "metrics": False, "logs": False},  # ours is around all layers (web/traces.py)
    )
    api.state.planner = planner
    # As they are: including a router makes each of its routes anew, at the first request of every application.
    api.router.routes.extend(route for router in routers for route in router.routes)

    async def contract() -> Response:
        return JSONResponse(build(api))

    api.router.add_api_route(
        "/openapi.json", contract, include_in_schema=False, route_class_override=StrictRoute, response_model=None
    )
    # Errors leave the routes as they were raised: the layers see them, and the outermost answers them, like its own.
    api.middleware_stack = Router(api.router.routes, redirect_slashes=False, lifespan=lifespan)
    return api

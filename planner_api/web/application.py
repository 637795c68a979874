"""The ASGI application around a planner: its routes, and the layers in front of them."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

from fastapi import APIRouter
from starlette.datastructures import State
from starlette.routing import Router

from planner_api.web.asgi import Asgi, Scope


class Runs(Protocol):
    """What is started before the first request and stopped after the last."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


Planner = TypeVar("Planner", bound=Runs)


class App(Generic[Planner]):
    """The ASGI application: ``layers`` around ``routes``, which find the planner in its state."""

    def __init__(self, planner: Planner, routes: Router, layers: Asgi) -> None:
        self.planner = planner
        self.state = State({"planner": planner})
        self._routes = routes
        self._layers = layers

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        scope["app"] = self
        await (self._routes if scope["type"] == "lifespan" else self._layers)(scope, receive, send)


def build_routes(routers: Iterable[APIRouter]) -> Router:
    """Return the routes of an application, whose lifespan starts and stops its planner.

    Errors leave them as they were raised: the layers see them, and the outermost answers them, like its own.
    """

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        await app.planner.start()
        try:
            yield
        finally:
            await app.planner.stop()

    # As they are: including a router makes each of its routes anew, at the first request of every application.
    routes = [route for router in routers for route in router.routes]
    return Router(routes, redirect_slashes=False, lifespan=lifespan)

"""The planner of a fleet as an application: routes, and the layers in front of them."""

from typing import Any

from planner_api.console.app import Console
from planner_api.devices.guard import Guard
from planner_api.devices.routes import ROUTERS as DEVICES
from planner_api.embedded import ROUTERS as FOR_AGENTS
from planner_api.models.routes import named
from planner_api.plans.routes import planning_ahead
from planner_api.rollout.routes import named as aliases
from planner_api.rollout.routes import router as releases
from planner_api.service import Service
from planner_api.settings import Settings
from planner_api.views.routes import router as fleet
from planner_api.web.application import App, build_routes
from planner_api.web.asgi import Asgi
from planner_api.web.document import build
from planner_api.web.loopback import Loopback
from planner_api.web.observe import Observe
from planner_api.web.prefix import Prefixed
from planner_api.web.probes import router as operations
from planner_api.web.rate import AddressLimit, RateLimit
from planner_api.web.traces import traced

ROUTERS = (*FOR_AGENTS, *DEVICES, planning_ahead, fleet, named, aliases, releases, operations)


def create_app(settings: Settings) -> App[Service]:
    """Return the application; its lifespan opens and closes the database.

    A request passes through: observation (id, metrics, log, errors), a proxy's prefix, where no tokens are
    asked for what keeps web pages out, the console, which answers what is its own, the guard (token, role, rate), the
    routes.

    Raises:
        UsageError: a database this planner cannot use.
    """
    service = Service(settings)
    routes = build_routes(ROUTERS)
    per_token = RateLimit(settings.rate_per_token, settings.burst_per_token)
    per_address = AddressLimit(settings.rate_per_address, settings.burst_per_address)
    required = settings.tokens_required
    refused = service.quotas.refused
    inner: Asgi = Guard(
        routes, service.tokens, required=required, per_token=per_token, per_address=per_address, refused=refused
    )
    if settings.console:
        inner = Console(inner, service, required=required, per_bearer=per_token, per_address=per_address)
    if not required:
        inner = Loopback(inner, settings.addresses)
    observed = Observe(
        Prefixed(inner, settings.root_path), service.metrics.request, log_routine=settings.log_level == "debug"
    )
    return App(service, routes, traced(observed) if settings.telemetry else observed)


def openapi_document() -> dict[str, Any]:
    return build(build_routes(ROUTERS))

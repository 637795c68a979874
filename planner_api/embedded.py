"""The planner inside an agent's own process: what its agent asks for, and nothing of a fleet."""

from planner_api.models.routes import router as models
from planner_api.plans.routes import router as plans
from planner_api.profiles.routes import router as profiles
from planner_api.runtime import Planner
from planner_api.settings import Settings
from planner_api.web.application import App, build_routes
from planner_api.web.document import router as contract
from planner_api.web.logs import stay_quiet
from planner_api.web.observe import Observe

ROUTERS = (plans, profiles, models, contract)
"""What agents call; what they call most is tried first."""


def create_app(settings: Settings) -> App[Planner]:
    """Return the application of an agent's own planner: nobody needs a token there, and nobody scrapes it.

    Raises:
        UsageError: a database this planner cannot use.
    """
    stay_quiet()
    planner = Planner(settings)
    routes = build_routes(ROUTERS)
    return App(planner, routes, Observe(routes, log_routine=settings.log_level == "debug"))

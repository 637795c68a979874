"""One module per group of pages: what a page needs, put together; the templates draw it."""

from __future__ import annotations

from planner_api.console.pages.audit import router as audit
from planner_api.console.pages.devices import router as devices
from planner_api.console.pages.fleet import router as fleet
from planner_api.console.pages.groups import router as groups
from planner_api.console.pages.models import router as models
from planner_api.console.pages.oidc import router as oidc
from planner_api.console.pages.plans import router as plans
from planner_api.console.pages.profiles import router as profiles
from planner_api.console.pages.queue import router as queue
from planner_api.console.pages.releases import router as releases
from planner_api.console.pages.sign_in import router as sign_in
from planner_api.console.pages.tokens import router as tokens

ROUTERS = (sign_in, oidc, fleet, devices, groups, models, plans, profiles, releases, queue, tokens, audit)

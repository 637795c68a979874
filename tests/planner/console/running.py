"""The console of the sample fleet on a real socket, as a browser finds it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, ViewportSize

from hope_schema import PlanReply
from planner_api.app import create_app
from planner_api.cli.serve import Server, build_config
from planner_api.settings import Settings
from tests.browser import PATIENT_MS
from tests.planner.console.sample_fleet import FREQUENCY, OVER_HOSTS, SOCS, settle
from tests.planner.samples import admin_token, serving

NARROW: ViewportSize = {"width": 375, "height": 812}
WIDE: ViewportSize = {"width": 1440, "height": 900}
HUGE: ViewportSize = {"width": 3840, "height": 2160}


LISTS = {
    "fleet": "/console",
    "devices": "/console/devices",
    "groups": "/console/groups",
    "models": "/console/models",
    "plans": "/console/plans",
    "profiles": "/console/profiles",
    "releases": "/console/releases",
    "queue": "/console/queue",
    "tokens": "/console/tokens",
    "audit log": "/console/audit",
}
"""The pages that every console has, by their names."""


@dataclass(frozen=True)
class Running:
    """A console that is being served; ``plans`` by model and SoC, whose real names ``called`` makes of these."""

    url: str
    token: str
    plans: dict[tuple[str, str], PlanReply]
    database_url: str
    called: Callable[[str], str] = str

    @property
    def bearer(self) -> dict[str, str]:
        """The header of the admin's token."""
        return {"authorization": f"Bearer {self.token}"}

    def pages(self) -> dict[str, str]:
        """Every page of somebody who signed in, by its name."""
        plans = [self.plans["classifier", soc] for soc in SOCS]
        soc, left, right = self.called(SOCS[0]), plans[0].plan_id, plans[1].plan_id
        releases = httpx.get(f"{self.url}/releases", headers=self.bearer).json()["releases"]
        return LISTS | {
            "plan": f"/console/plans/{left}",
            "plan over hosts": f"/console/plans/{self.plans['classifier', OVER_HOSTS].plan_id}",
            "failed plan": "/console/plans/p-failed",
            "compare": f"/console/compare?left={left}@1&right={right}@2",
            "profile": f"/console/profiles/{soc}/{FREQUENCY}",
            "devices of a SoC": f"/console/devices?soc={soc}",
            "device": f"/console/devices/{soc}-phone-0",
            "group": f"/console/groups?change={self.called('early')}",
            "model": f"/console/models/{plans[0].plan.model_hash}",
            "name": f"/console/names/{self.called('classifier')}",
            "release": f"/console/releases/{releases[-1]['release_id']}",
            "error": "/console/plans/p-unknown",
        }

    def sign_in(self, browser: Browser, *, look_only: bool = False) -> Page:
        """A page of somebody who signed in with an admin's token, or only to look."""
        context = browser.new_context(base_url=self.url, viewport=WIDE)
        context.set_default_timeout(PATIENT_MS)
        page = context.new_page()
        page.goto("/console")
        page.get_by_label("Token").fill(self.token)
        page.get_by_label("Only look").set_checked(look_only)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/console")
        return page


@contextmanager
def running(path: Path, called: Callable[[str], str] | None = str) -> Iterator[Running]:
    """Fill a migrated SQLite file with the sample fleet, under the names of ``called``, and serve its console.

    Without ``called`` the planner is as new.
    """
    url = f"sqlite:///{path}"
    with serving(url, provisional_budget_s=0.05) as api:
        plans, token = settle(api, called) if called else {}, admin_token(api)
    settings = Settings(database_url=url, tokens_required=True, worker_in_process=False, fold_interval_s=3600.0)
    app = create_app(settings)
    server = Server(build_config(app, "127.0.0.1", 0), app.planner)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the planner did not start"
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield Running(f"http://127.0.0.1:{port}", token, plans, url, called or str)
    server.should_exit = True
    thread.join(10)

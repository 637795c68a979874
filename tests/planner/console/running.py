"""The console of the sample fleet on a real socket, as a browser finds it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, ViewportSize

from hope_schema import PlanReply
from planner_api.app import create_app
from planner_api.server import Server, build_config
from planner_api.settings import Settings
from tests.planner.console.sample_fleet import FREQUENCY, SOCS, settle
from tests.planner.samples import operator_token, serving

NARROW: ViewportSize = {"width": 375, "height": 812}
WIDE: ViewportSize = {"width": 1440, "height": 900}
HUGE: ViewportSize = {"width": 3840, "height": 2160}


@dataclass(frozen=True)
class Running:
    """A console that is being served."""

    url: str
    token: str
    plans: dict[tuple[str, str], PlanReply]
    database_url: str

    @property
    def bearer(self) -> dict[str, str]:
        """The header of the operator's token."""
        return {"authorization": f"Bearer {self.token}"}

    def pages(self) -> dict[str, str]:
        """Every page of somebody who signed in, by its name."""
        plans = [self.plans["classifier", soc].plan_id for soc in SOCS]
        releases = httpx.get(f"{self.url}/releases", headers=self.bearer).json()["releases"]
        return {
            "fleet": "/console",
            "plans": "/console/plans",
            "plan": f"/console/plans/{plans[0]}",
            "failed plan": "/console/plans/p-failed",
            "compare": f"/console/compare?left={plans[0]}@1&right={plans[1]}@2",
            "profiles": "/console/profiles",
            "profile": f"/console/profiles/{SOCS[0]}/{FREQUENCY}",
            "devices": f"/console/devices?soc={SOCS[0]}",
            "device": f"/console/devices/{SOCS[0]}-phone-0",
            "groups": "/console/groups?change=early",
            "models": "/console/models",
            "model": f"/console/models/{self.plans['classifier', SOCS[0]].plan.model_hash}",
            "name": "/console/names/classifier",
            "releases": "/console/releases",
            "release": f"/console/releases/{releases[-1]['release_id']}",
            "queue": "/console/queue",
            "tokens": "/console/tokens",
            "audit log": "/console/audit",
            "error": "/console/plans/p-unknown",
        }

    def sign_in(self, browser: Browser) -> Page:
        """A page of somebody who signed in with an operator's token."""
        context = browser.new_context(base_url=self.url, viewport=WIDE)
        context.set_default_timeout(10_000)
        page = context.new_page()
        page.goto("/console")
        page.get_by_label("Token").fill(self.token)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/console")
        return page


@contextmanager
def running(path: Path) -> Iterator[Running]:
    """Fill a migrated SQLite file with the sample fleet and serve its console."""
    url = f"sqlite:///{path}"
    with serving(url, provisional_budget_s=0.05) as api:
        plans, token = settle(api), operator_token(api)
    settings = Settings(database_url=url, tokens_required=True, worker_in_process=False, fold_interval_s=3600.0)
    server = Server(build_config(create_app(settings), "127.0.0.1", 0))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the planner did not start"
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield Running(f"http://127.0.0.1:{port}", token, plans, url)
    server.should_exit = True
    thread.join(10)

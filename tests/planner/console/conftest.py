"""A planner with a small fleet, served on a real socket, and a real browser: once for all tests of the console."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from hope_schema import PlanReply
from planner_api.app import create_app
from planner_api.server import Server, build_config
from planner_api.settings import Settings
from tests.browser import chromium
from tests.planner.console.sample_fleet import settle
from tests.planner.samples import operator_token, serving


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


@pytest.fixture(scope="module")
def fleet(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, dict]:  # type: ignore[type-arg]
    """The URL of a database with the sample fleet, an operator's token, and its plans."""
    path = tmp_path_factory.mktemp("console") / "hope.sqlite"
    shutil.copy(sqlite_template, path)
    with serving(f"sqlite:///{path}", provisional_budget_s=0.05) as api:
        plans = settle(api)
        return f"sqlite:///{path}", operator_token(api), plans


@pytest.fixture(scope="module")
def console(fleet: tuple[str, str, dict]) -> Iterator[Running]:  # type: ignore[type-arg]
    """The console of the sample fleet on a real socket."""
    url, token, plans = fleet
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a whole module."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def signed_in(browser: Browser, console: Running) -> Iterator[Page]:
    """A page of somebody who signed in with an operator's token."""
    context = browser.new_context(base_url=console.url, viewport={"width": 1440, "height": 900})
    context.set_default_timeout(10_000)
    page = context.new_page()
    page.goto("/console")
    page.get_by_label("Token").fill(console.token)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/console")
    yield page
    context.close()

"""A planner with a small fleet, served on a real socket, and a real browser: once for all tests of the console."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.browser import chromium
from tests.planner.console.running import Running, running
from tests.planner.samples import Api


@pytest.fixture
def api(api: Api) -> Api:
    """The planner of a test; its client follows no redirects, so that they can be looked at."""
    api.client.follow_redirects = False
    return api


@pytest.fixture(scope="module")
def console(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The console of the sample fleet on a real socket."""
    path = tmp_path_factory.mktemp("console") / "hope.sqlite"
    shutil.copy(sqlite_template, path)
    with running(path) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for a whole module."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def signed_in(browser: Browser, console: Running) -> Iterator[Page]:
    """A page of somebody who signed in with an admin's token."""
    page = console.sign_in(browser)
    yield page
    page.context.close()

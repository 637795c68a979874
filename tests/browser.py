"""A real Chromium for tests."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

PATIENT_MS = 60_000
"""How long anything in a page is waited for: what comes at once on an idle machine may take seconds on a busy one."""
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")


def installed() -> str | None:
    """Where the Chromium of this machine is; None: it has none."""
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, without a window; where there is none the test is skipped.

    NOTE: while it runs, Playwright's event loop counts as running in this thread: nothing else may call
    ``asyncio.run`` here, so that no fixture may keep it for longer than a module.
    """
    if (found := installed()) is None:
        pytest.skip("there is no Chromium here; as root `apt-get install chromium` brings one")
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENT_MS)
        running = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()

"""What axe finds on a page of the console, in both themes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

AXE = Axe().axe_script
OF_COLOURS = ["color-contrast", "link-in-text-block"]
"""Axe's rules that another theme can break."""
THEMES: Mapping[Literal["light", "dark"], Mapping[str, object]] = {"light": {}, "dark": {"runOnly": OF_COLOURS}}
"""What more axe is told in each theme."""


def violations(page: Page, name: str) -> list[str]:
    """One line for each; ``name`` is what the page is called in them."""
    found = []
    page.evaluate(AXE)
    for theme, more in THEMES.items():
        page.emulate_media(color_scheme=theme)
        options = {"resultTypes": ["violations"], "preload": False, **more}
        for violation in page.evaluate("options => axe.run(options).then(found => found.violations)", options):
            nodes = [node["target"] for node in violation["nodes"][:3]]
            found.append(f"{name}, {theme}: {violation['id']} at {nodes}")
    return found

"""Pictures of the console of the sample fleet, to be looked at: every page, in both themes, on a phone, a desk, a wall.

python -m tests.planner.console.pictures FOLDER          all of them
python -m tests.planner.console.pictures --docs          those of docs/images
"""

from __future__ import annotations

import argparse
import base64
import tempfile
from pathlib import Path

from playwright.sync_api import Page, ViewportSize

from planner_api.db.migrate import upgrade
from tests.browser import chromium
from tests.planner.console.running import HUGE, NARROW, Running, running

DESK: ViewportSize = {"width": 1280, "height": 800}
DOCS = Path(__file__).parents[3] / "docs" / "images"
IN_DOCS = {"plan": "console-plan", "profile": "console-profile"}
QUALITY = 80


def main() -> None:
    """Take them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("folder", nargs="?", type=Path)
    where.add_argument("--docs", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "hope.sqlite"
        upgrade(f"sqlite:///{path}")
        with running(path) as console, chromium() as browser:
            page = console.sign_in(browser)
            page.set_default_timeout(60_000)
            if options.docs:
                take_for_docs(page, console)
            else:
                take_all(page, console, options.folder)


def take_all(page: Page, console: Running, folder: Path) -> None:
    """``FOLDER/WIDTH-THEME/PAGE.webp`` of every page."""
    for size in (NARROW, DESK, HUGE):
        for theme in ("light", "dark"):
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            for name, path in console.pages().items():
                page.goto(path)
                take(page, folder / f"{size['width']}-{theme}" / f"{name.replace(' ', '-')}.webp", whole=True)


def take_for_docs(page: Page, console: Running) -> None:
    """The pictures of ``docs/console.md``."""
    page.set_viewport_size(DESK)
    page.emulate_media(color_scheme="light")
    for name, file in IN_DOCS.items():
        page.goto(console.pages()[name])
        take(page, DOCS / f"{file}.webp")


def take(page: Page, path: Path, *, whole: bool = False) -> None:
    """Write what a page looks like; the whole of it, or what fits the window."""
    path.parent.mkdir(parents=True, exist_ok=True)
    window = page.viewport_size
    if whole and window is not None:
        page.set_viewport_size({**window, "height": page.evaluate("document.documentElement.scrollHeight")})
    session = page.context.new_cdp_session(page)
    shot = session.send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
    path.write_bytes(base64.b64decode(shot["data"]))
    session.detach()
    if window is not None:
        page.set_viewport_size(window)


if __name__ == "__main__":
    main()

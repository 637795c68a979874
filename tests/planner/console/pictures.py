"""Pictures of the console of the sample fleet, to be looked at: every page, in both themes, on a phone, a desk, a wall.

python -m tests.planner.console.pictures FOLDER          all of them
python -m tests.planner.console.pictures --docs          those of docs/images
"""

from __future__ import annotations

import argparse
import base64
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize

from planner_api.db.migrate import upgrade
from tests.browser import PATIENT_MS, chromium
from tests.planner.console.running import HUGE, LISTS, NARROW, Running, running
from tests.planner.console.sample_fleet import long

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
    with tempfile.TemporaryDirectory() as directory, chromium() as browser:
        if options.docs:
            with fleet(Path(directory), str) as console:
                take_for_docs(console.sign_in(browser), console)
        else:
            take_all(browser, Path(directory), options.folder)


@contextmanager
def fleet(directory: Path, called: Callable[[str], str] | None) -> Iterator[Running]:
    """A console on a database of its own."""
    path = Path(tempfile.mkdtemp(dir=directory)) / "hope.sqlite"
    upgrade(f"sqlite:///{path}")
    with running(path, called) as console:
        yield console


def take_all(browser: Browser, directory: Path, folder: Path) -> None:
    """``FOLDER/SIZE-THEME/FLEET/PAGE.webp`` of every page: of the sample fleet, as who looks only and who is not
    signed in sees it, of the same under the longest names, and of a planner that knows nothing yet.
    """
    with fleet(directory, str) as console:
        take_pages(console.sign_in(browser), console.pages(), folder, "fleet")
        take_pages(console.sign_in(browser, look_only=True), console.pages(), folder, "looking-only")
        page = browser.new_page(base_url=console.url)
        take_pages(page, {"sign in": "/console/login", "session ended": "/console/login?ended=1"}, folder, "outside")
    with fleet(directory, long) as console:
        take_pages(console.sign_in(browser), console.pages(), folder, "long-names")
    with fleet(directory, None) as console:
        take_pages(console.sign_in(browser), LISTS, folder, "empty")


def take_pages(page: Page, pages: dict[str, str], folder: Path, name: str) -> None:
    """Pages in both themes on every size."""
    page.set_default_timeout(PATIENT_MS)
    for size in (NARROW, DESK, HUGE):
        for theme in ("light", "dark"):
            page.set_viewport_size(size)
            page.emulate_media(color_scheme=theme)
            for called, path in pages.items():
                page.goto(path)
                take(page, folder / f"{size['width']}-{theme}" / name / f"{called.replace(' ', '-')}.webp", whole=True)


def take_for_docs(page: Page, console: Running) -> None:
    """The pictures of ``docs/console.md``."""
    page.set_default_timeout(PATIENT_MS)
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

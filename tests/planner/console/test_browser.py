"""The console in a real Chromium: every page in both themes, by mouse, by keyboard and by axe."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from hope_schema import DeviceReport, MeasuredRun
from hope_schema.wording import reason
from planner_api.console.rendering import percent
from planner_api.planning.methods import METHODS
from tests.planner.console.running import HUGE, NARROW, WIDE, Running, running
from tests.planner.console.sample_fleet import FREQUENCY, RELEASED, SOCS
from tests.planner.console.violations import violations

LARGEST_BYTES = 200_000
CUT_OFF = """[...document.querySelectorAll("table.data, table.chart")]
    .filter(table => table.scrollWidth > table.parentElement.clientWidth).map(table => table.caption.textContent)"""
"""Tables of which one sees a part; the heat map, whose first column stays, may be wider."""


@pytest.fixture(scope="module")
def pages(console: Running) -> dict[str, str]:
    """Every page by its name."""
    return console.pages()


def check(page: Page, name: str) -> list[str]:
    """What axe finds on a page, in both themes, narrow and wide, and whether it fits; one line each."""
    found = violations(page, name)
    for size in (NARROW, HUGE, WIDE):
        page.set_viewport_size(size)
        if (over := page.evaluate("document.documentElement.scrollWidth - innerWidth")) > 0:
            found.append(f"{name}: {over} px wider than {size['width']}")
        found += [f"{name}: '{table}' is cut off at {size['width']}" for table in page.evaluate(CUT_OFF)]
        if page.locator("table:has(td.empty) thead:visible").count():
            found.append(f"{name}: a table of nothing shows its head")
    return found


def test_every_page_is_accessible_light_and_fits_every_screen(signed_in: Page, pages: dict[str, str]) -> None:
    """Axe finds nothing in either theme, nothing is cut off from 375 px to 4K, no script fails, and page, style and
    scripts together, compressed as they travel, are no heavier than they may be.
    """
    errors: list[str] = []
    signed_in.on("pageerror", lambda error: errors.append(str(error)))
    signed_in.on("console", lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None)
    cdp = signed_in.context.new_cdp_session(signed_in)
    cdp.send("Network.enable")
    cdp.send("Network.setCacheDisabled", {"cacheDisabled": True})
    received: list[float] = []
    cdp.on("Network.loadingFinished", lambda event: received.append(event["encodedDataLength"]))
    found = []
    for name, path in pages.items():
        received.clear()
        signed_in.goto(path, wait_until="load")
        assert 2 <= len(received) <= 6, name
        assert sum(received) <= LARGEST_BYTES, name
        found += check(signed_in, name)
    cdp.detach()
    assert found == []
    assert errors == []


def test_the_sign_in_page_is_accessible(browser: Browser, console: Running) -> None:
    """The first page everybody sees, with and without a problem on it."""
    page = browser.new_page(base_url=console.url)
    page.goto("/console/login")
    found = check(page, "sign in")
    page.get_by_label("Token").fill("hope_a_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("unknown, expired or revoked")
    assert found + check(page, "sign in again") == []
    page.close()


def test_who_only_looks_is_told_so_on_every_screen(browser: Browser, console: Running, pages: dict[str, str]) -> None:
    """On a phone as on a desk it says why nothing can be changed, and no page offers anything that does."""
    page = console.sign_in(browser, look_only=True)
    for size in (NARROW, WIDE):
        page.set_viewport_size(size)
        expect(page.get_by_text("Looking only")).to_be_visible()
    for name, path in pages.items():
        forms = re.findall(r'<form method="post"(?: action="([^"]*)")?', page.request.get(path).text())
        assert forms == ["/console/logout"], name
    page.context.close()


def test_somebody_signs_in_by_keyboard_and_lands_where_they_wanted(browser: Browser, console: Running) -> None:
    """From a link to a plan through the sign-in page to that plan; then out, and the way back is closed."""
    context = browser.new_context(base_url=console.url)
    page = context.new_page()
    path = f"/console/plans/{console.plans['detector', SOCS[1]].plan_id}"
    page.goto(path)
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type(console.token)
    page.keyboard.press("Enter")
    page.wait_for_url(f"**{path}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("detector")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/console/login")
    page.goto(path)
    expect(page.get_by_label("Token")).to_be_visible()
    context.close()


def test_a_plan_says_why_an_op_is_where_it_is(signed_in: Page, console: Running, pages: dict[str, str]) -> None:
    """Lanes per processor, a step chosen by keyboard is told with its cause, and the table says the same."""
    plan = console.plans["classifier", SOCS[0]].plan
    signed_in.goto(pages["plan"])
    for processor in plan.processors_used:
        expect(signed_in.locator(".names")).to_contain_text(processor)
    signed_in.get_by_role("group", name="Lanes of the plan, scrollable").focus()
    signed_in.keyboard.press("Home")
    told = signed_in.get_by_role("status")
    row = signed_in.locator(told.get_by_role("link", name="Show in the table").get_attribute("href") or "#none")
    cause, why = (row.locator(f".why {part}").text_content() for part in ("strong", ".reason"))
    expect(told).to_contain_text(f"{cause}: {why}.")
    expect(told.get_by_role("link", name="Show in the table")).to_be_visible()
    before = told.text_content()
    signed_in.keyboard.press("ArrowRight")
    expect(told).not_to_have_text(before or "")
    only = next(step for step in plan.steps if step.ops[-1] == "probabilities")
    assert only.next_best is not None
    expect(signed_in.locator(f"#step-{only.id} .reason")).to_have_text(reason(only))
    label = signed_in.locator(".label", has_text=re.compile(f"^{only.ops[-1]}$")).first
    zoom = signed_in.get_by_role("button", name="Zoom in")
    for _ in range(5):
        zoom.click()
    expect(label).to_be_visible()
    expect(signed_in.locator("main")).to_contain_text("Median measured")


def test_the_ops_of_a_step_are_one_line_and_all_of_them_a_click(
    signed_in: Page, console: Running, pages: dict[str, str]
) -> None:
    """On a desk the last op and the number of those before it fit one line; a click shows the others."""
    several = next(step for step in console.plans["classifier", SOCS[0]].plan.steps if len(step.ops) > 1)
    signed_in.set_viewport_size({"width": 1280, "height": 800})
    signed_in.goto(pages["plan"])
    heights = signed_in.locator(".steps tbody th").evaluate_all(
        "cells => cells.map(one => one.querySelector('summary, bdi').getBoundingClientRect().height"
        " / parseFloat(getComputedStyle(one).lineHeight))"
    )
    assert max(heights) < 1.5
    ops = signed_in.locator(f"#step-{several.id} th")
    expect(ops.get_by_text(several.ops[0], exact=True)).not_to_be_visible()
    ops.locator("summary").click()
    expect(ops.get_by_text(", ".join(several.ops[:-1]), exact=True)).to_be_visible()


def test_a_label_stands_on_a_bar_that_is_wide_enough(signed_in: Page, pages: dict[str, str]) -> None:
    """On no screen and at no magnification is one cut off or crossed out; the larger these are, the more have room."""
    room = """labels => labels.filter(label => label.getAttribute("visibility") === "visible").map(label => {
        const box = label.firstElementChild.getBBox();
        return label.width.baseVal.value - box.x - box.width;
    })"""

    def labelled() -> int:
        signed_in.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        left: list[float] = signed_in.locator(".label").evaluate_all(room)
        assert all(one >= 0 for one in left)
        return len(left)

    signed_in.goto(pages["plan"])
    above = "line => [...document.querySelectorAll('.label')].every(one => line.compareDocumentPosition(one) & 4)"
    assert signed_in.locator(".gantt line.bound").first.evaluate(above), "the bound crosses no label out"
    shown = []
    for size in (NARROW, WIDE, HUGE):
        signed_in.set_viewport_size(size)
        shown.append(labelled())
    assert shown[0] < shown[1] < shown[2]
    signed_in.set_viewport_size(NARROW)
    for _ in range(2):
        before = signed_in.evaluate("document.querySelector('.gantt .scroll').scrollWidth")
        signed_in.get_by_role("button", name="Zoom in").click()
        assert signed_in.evaluate("document.querySelector('.gantt .scroll').scrollWidth") > 1.9 * before
    assert labelled() > shown[0]
    signed_in.set_viewport_size(WIDE)


def test_two_plans_compared_say_what_was_promised_and_what_was_measured(
    signed_in: Page, console: Running, pages: dict[str, str]
) -> None:
    """Beside the makespans stands what devices reported, with the change; a word where none did."""
    signed_in.goto(pages["compare"])
    figures = signed_in.get_by_role("region", name="Both plans in figures")
    measured = figures.get_by_role("row", name="Mean measured").get_by_role("cell")
    expect(measured.nth(0)).to_have_text("no device reported")
    expect(measured.nth(1)).to_have_text(re.compile(r"^[\d.]+ ms\s+of \d+ reports\s*$"))
    left, right = (console.plans["classifier", soc] for soc in SOCS[:2])
    signed_in.goto(f"/console/compare?left={left.plan_id}@2&right={right.plan_id}@2")
    for name in ("Makespan", "Mean measured"):
        expect(figures.get_by_role("row", name=name).get_by_role("cell").nth(1)).to_contain_text(
            re.compile(r"ms \((0|[+−][\d.]+) %\)")
        )
    change = right.plan.makespan_us / left.plan.makespan_us - 1.0
    expect(figures.get_by_role("row", name="Makespan")).to_contain_text(percent(change, sign=True))


BROKEN = """[...document.querySelectorAll(".command > span")].filter(word => {
    const range = document.createRange();
    range.selectNodeContents(word);
    const lines = [...range.getClientRects()].map(line => line.width);
    const room = word.closest("p, td, li, div").clientWidth;
    return lines.length > 1 && lines.reduce((sum, width) => sum + width) < 0.9 * room;
}).map(word => word.textContent)"""
"""Words of commands that go on in a next line though they are shorter than one."""


def test_a_command_is_never_broken_within_a_word(
    browser: Browser, console: Running, sqlite_template: Path, tmp_path: Path
) -> None:
    """On a phone too, what is to be typed breaks between words alone, and it is copied as it is."""
    shutil.copy(sqlite_template, tmp_path / "new.sqlite")
    with running(tmp_path / "new.sqlite", None) as empty:
        found: dict[str, list[str]] = {}
        outside = browser.new_page(base_url=console.url)
        for page, paths in (
            (outside, ("/console/login",)),
            (console.sign_in(browser), ("/console/plans/p-unknown", "/console/models/" + "0" * 64)),
            (empty.sign_in(browser), ("/console", *(f"/console/{name}" for name in ("models", "plans", "profiles")))),
        ):
            page.set_viewport_size(NARROW)
            for path in paths:
                page.goto(path)
                assert page.evaluate(BROKEN) == [], path
                found[path] = page.locator(".command").evaluate_all(COPIED)
                assert found[path], path
            page.close()
    assert found["/console/plans/p-unknown"] == ["hope-planner plans list", "hope-agent run"]
    assert found["/console"] == [
        f"hope-agent enrol --planner {empty.url} --claim CLAIM", f"hope-agent run net.onnx --planner {empty.url}",
    ]  # fmt: skip


COPIED = """commands => commands.map(command => {
    getSelection().selectAllChildren(command);
    return getSelection().toString();
})"""
"""What goes to the clipboard where one marks the commands."""


def test_a_tile_is_as_wide_as_its_word(signed_in: Page, pages: dict[str, str]) -> None:
    """On every screen the name of the method that found a plan is one line, the longest too."""
    signed_in.goto(pages["plan"])
    name = signed_in.locator(".tiles > div", has_text="Found by").locator("dd").first
    name.evaluate("(name, longest) => { name.textContent = longest; }", max(METHODS, key=len))
    for width in (NARROW["width"], 1280, WIDE["width"]):
        signed_in.set_viewport_size({"width": width, "height": 900})
        assert name.evaluate(LINES) == 1, width


LINES = """words => {
    const range = document.createRange();
    range.selectNodeContents(words);
    return range.getClientRects().length;
}"""


def test_a_chart_that_goes_on_says_so(signed_in: Page, pages: dict[str, str]) -> None:
    """At 375 px a sentence says to scroll the lanes on; it goes at their end, and is not there on a desk."""
    signed_in.goto(pages["plan"])
    hint = signed_in.get_by_text("The chart goes on: scroll it to the right.")
    expect(hint).to_be_hidden()
    signed_in.set_viewport_size(NARROW)
    expect(hint).to_be_visible()
    signed_in.locator(".gantt .scroll").evaluate("lanes => lanes.scrollLeft = lanes.scrollWidth")
    expect(hint).to_be_hidden()
    signed_in.set_viewport_size(WIDE)


def test_a_new_token_is_copied_by_a_button(browser: Browser, console: Running) -> None:
    """It puts the whole token where one pastes from; where the browser forbids that, it marks it and says so."""
    page = console.sign_in(browser)
    for permissions, says in ((["clipboard-read", "clipboard-write"], "Copied"), ([], "Chosen: copy it now")):
        page.context.clear_permissions()
        page.context.grant_permissions(permissions)
        page.goto("/console/tokens")
        page.get_by_role("button", name="Make it").click()
        if not permissions:
            page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('forbidden')); }")
        page.get_by_role("button", name="Copy").click()
        expect(page.locator("button[data-copy]")).to_have_text(says)
        token = page.locator("#made").text_content() or ""
        assert token.startswith("hope_")
        took = "navigator.clipboard.readText()" if permissions else "getSelection().toString()"
        assert page.evaluate(took) == token
    page.context.close()


def test_taking_back_is_offered_as_largely_as_going_on(signed_in: Page, pages: dict[str, str]) -> None:
    """On a paused release both ways out are buttons of one height and letter, side by side."""
    signed_in.goto(pages["release"])
    both = (signed_in.get_by_role("button", name="Go on"), signed_in.locator("summary", has_text="Take it back"))
    sizes = [
        one.evaluate("one => [one.getBoundingClientRect().y, one.offsetHeight, getComputedStyle(one).fontSize]")
        for one in both
    ]
    assert sizes[0] == sizes[1]


def test_a_theme_that_was_chosen_stays(signed_in: Page) -> None:
    """The button goes from the system's theme to light and dark, and the next page knows."""
    signed_in.emulate_media(color_scheme="light")
    signed_in.goto("/console")
    dark = "getComputedStyle(document.body).backgroundColor"
    light = signed_in.evaluate(dark)
    button = signed_in.get_by_role("button", name="Theme")
    button.click()
    button.click()
    expect(button).to_contain_text("dark")
    assert signed_in.evaluate(dark) != light
    signed_in.goto("/console/plans")
    assert signed_in.evaluate(dark) != light
    signed_in.get_by_role("button", name="Theme").click()
    assert signed_in.evaluate(dark) == light


def test_everything_can_be_read_without_scripts(browser: Browser, console: Running, pages: dict[str, str]) -> None:
    """With scripts switched off one signs in and reads a plan and a heat map all the same."""
    context = browser.new_context(base_url=console.url, java_script_enabled=False)
    page = context.new_page()
    page.goto("/console")
    page.get_by_label("Token").fill(console.token)
    page.get_by_role("button", name="Sign in").click()
    page.goto(pages["plan"])
    expect(page.locator("svg rect.step").first).to_be_visible()
    page.goto(pages["profile"])
    expect(page.locator("td.heat.h0").first).to_be_visible()
    context.close()


def press(page: Page, name: str, keys: str) -> None:
    """Go from element to element by Tab until the one of this name has the focus, and type there."""
    called = "(element => element.labels?.[0] ?? element)(document.activeElement).textContent.trim()"
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(called) == name:
            return page.keyboard.press(keys) if keys in ("Enter", "Space") else page.keyboard.type(keys)
    raise AssertionError(f"Tab never comes to '{name}'")


def test_a_release_that_goes_wrong_comes_back_before_ones_eyes(signed_in: Page, console: Running) -> None:
    """Begun and moved on by keyboard alone, then watched: devices report that it is slower, and it is taken back."""
    signed_in.goto("/console/releases")
    press(signed_in, "Begin a release", "Enter")
    press(signed_in, "Model", "detector:1")
    press(signed_in, "Every stage waits for approval", "Space")
    press(signed_in, "Begin", "Enter")
    expect(signed_in.get_by_role("status")).to_contain_text("stage 1 of 4")
    for share in ("10 %", "50 %", "100 %"):
        press(signed_in, "Next stage now", "Enter")
        expect(signed_in.get_by_role("status")).to_contain_text(f"{share} of the devices")
    told = signed_in.get_by_role("status")
    plan = console.plans[RELEASED]
    headers = {**console.bearer, "content-type": "application/json"}
    run = MeasuredRun(
        plan_id=plan.plan_id, plan_version=plan.version + 1, measured_us=2 * plan.plan.makespan_us, runs=64
    )
    sent = DeviceReport(soc=RELEASED[1], frequency=FREQUENCY, measured=(run,)).model_dump_json()
    with httpx.Client(base_url=console.url, headers=headers) as phones:
        for number in range(30):
            answer = phones.put(f"/devices/{RELEASED[1]}-phone-{number}/report", content=sent)
            assert answer.status_code == 204
    expect(told).to_contain_text("Taken back")
    expect(told).to_contain_text("slower")
    expect(signed_in.get_by_role("button", name="Next stage now")).to_have_count(0)
    signed_in.goto("/console/audit?action=release.rollback")
    expect(signed_in.locator("tbody tr").first).to_contain_text("planner")

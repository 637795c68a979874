"""The page: whole without a network, harmless whatever a model calls its ops, usable by keyboard in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from playwright.sync_api import Page as Tab
from playwright.sync_api import expect

from agent_sdk.explain import Bar, ExplainedOp, Explanation, to_html
from agent_sdk.explain.page import COLUMNS
from tests.browser import chromium

HOSTILE = "</script><img src=x onerror=alert(1)>{{table}}\"'&"


def explanation(*names: str) -> Explanation:
    """Ops of these names one after the other, alternating between two processors."""
    places = [("ort@0", "ov@0")[index % 2] for index in range(len(names))]
    ops = tuple(
        ExplainedOp(
            op=name, type="Conv", super_op=name, segment=index, processor=place, predicted_us=10.0, alone_us=9.0,
            measured_us=12.0, next_best="gpu", next_best_us=15.0, cause="faster", why="9.0 µs against 15.0 µs on gpu",
        )
        for index, (name, place) in enumerate(zip(names, places, strict=True))
    )  # fmt: skip
    bars = tuple(
        Bar(place, 10.0 * index**2, 10.0 * (index + 1) ** 2, name=name)
        for index, (name, place) in enumerate(zip(names, places, strict=True))
    )
    return Explanation(
        model=names[0], answers="plan", why=f"the plan is faster than {names[0]}", processors=("ort@0", "ov@0"),
        planned_us=10.0 * len(names), lower_bound_us=1.0, measured_us=12.0 * len(names), method="ours", ops=ops,
        planned=bars, measured=bars, notes=(f"a note on {names[0]}",),
    )  # fmt: skip


class Page(HTMLParser):
    """Counts tags, and gathers what refers elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Take note of a tag."""
        self.tags.append(tag)
        self.references += [value or "" for name, value in attributes if name in ("src", "href", "action", "data")]


@contextmanager
def opened(folder: Path, shown: Explanation, *, width: int, height: int) -> Iterator[Tab]:
    """The page in a browser whose window is so many pixels wide and high."""
    file = folder / "page.html"
    file.write_text(to_html(shown), encoding="utf-8")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": width, "height": height})
        page.goto(file.as_uri())
        yield page


def test_a_page_asks_nobody(tmp_path: Path) -> None:
    """One file: no reference leaves it, and its policy forbids what a reference could fetch."""
    page = Page(to_html(explanation("a", "b", "c")))
    assert page.references
    assert all(reference.startswith("#") for reference in page.references)
    assert "link" not in page.tags
    assert "default-src 'none'" in to_html(explanation("a"))


def test_names_cannot_leave_their_place() -> None:
    """Op names that are markup, or the template's own marks, are shown as they are written."""
    page = to_html(explanation(HOSTILE, "b"))
    assert "<img" not in page
    assert Page(page).tags.count("script") == 1
    assert page.count("<table") == 1
    assert "{{table}}&quot;&#x27;&amp;" in page


def test_everything_is_in_the_table_and_in_the_chart() -> None:
    """A row per op beneath a bar per step and per segment."""
    page = to_html(explanation("a", "b", "c"))
    rows = re.findall(r"<tr id=\"segment-\d\".*?</tr>", page)
    assert len(rows) == 3
    assert all("15.0" in row and "gpu" in row and "faster: 9.0" in row for row in rows)
    assert len(re.findall(r'class="bar ', page)) == 6


def test_a_bar_of_several_ops_names_the_first_and_the_last() -> None:
    """What was launched as one is told by where it begins, where it ends, and how many ops it is."""
    shown = explanation("a", "b")
    segment = Bar("ort@0", 0.0, 30.0, name="c", ops=("a", "b", "c"))
    page = to_html(replace(shown, measured=(segment, Bar("ov@0", 40.0, 50.0, name="d", ops=("d",)))))
    assert 'aria-label="measured on ort@0: a … c, 3 ops, 30 µs from 0 µs on"' in page
    assert 'aria-label="measured on ov@0: d, 10 µs from 40 µs on"' in page


def test_the_chart_is_walked_through_with_the_keyboard(tmp_path: Path) -> None:
    """In a browser one Tab stop leads into the chart; arrows move along a lane and between lanes, + zooms."""
    with opened(tmp_path, explanation("a", "b", "c", "d"), width=1280, height=720) as page:
        page.locator('.bar[tabindex="0"]').focus()
        told = page.locator(".told")
        for key, where in (
            ("ArrowRight", "planned on ort@0: c"), ("ArrowDown", "planned on ov@0: b"), ("Home", "planned on ov@0: b"),
            ("ArrowUp", "planned on ort@0: a"), ("End", "planned on ort@0: c"), ("+", "planned on ort@0: c"),
        ):  # fmt: skip
            page.keyboard.press(key)
            expect(told).to_contain_text(f"{where},")
        expect(page.locator(".lanes")).to_have_attribute("style", "width: 200%;")
        expect(page.locator('.bar[tabindex="0"]')).to_have_count(1)
        expect(page.locator("tr.chosen")).to_have_count(1)


def test_the_cause_is_read_without_scrolling_on_a_desk(tmp_path: Path) -> None:
    """At 1100 pixels the table fits the page, and the sentence in its last column is given the most of it."""
    names = [f"inception_4a/branch_{number}/convolution_with_bias" for number in range(4)]
    with opened(tmp_path, explanation(*names), width=1100, height=900) as page:
        assert page.locator(".table").evaluate("table => table.scrollWidth - table.clientWidth") == 0
        widths = page.locator("tbody tr").first.locator("td").evaluate_all("cells => cells.map(one => one.offsetWidth)")
        assert widths[-1] >= 250


def test_a_phone_reads_the_table_downwards(tmp_path: Path) -> None:
    """At 360 pixels nothing scrolls sideways, every figure stands behind its column's name, and the filter filters."""
    names = [f"inception_4a/branch_{number}/convolution_with_bias" for number in range(4)]
    with opened(tmp_path, explanation(*names), width=360, height=800) as page:
        for scrolled in (":root", ".table"):
            assert page.locator(scrolled).evaluate("one => one.scrollWidth - one.clientWidth") == 0
        cells = page.locator("tbody tr").first.locator("td")
        labels = cells.evaluate_all("cells => cells.map(one => getComputedStyle(one, '::before').content)")
        assert labels == [f'"{name} "' for name in COLUMNS]
        page.locator("#filter").fill("branch_2")
        expect(page.locator("tbody tr:visible")).to_have_count(1)

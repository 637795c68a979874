"""An explanation as one HTML file that asks nobody for anything: a Gantt of the plan and of the run, and the table.

Everything is there without a script; with one the chart can be walked through with the arrow keys, zoomed, and the
table filtered. Names come from model files: every one is escaped.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from agent_sdk.errors import printable
from agent_sdk.explain.explanation import Bar, ExplainedOp, Explanation
from hope_schema.axis import place, ticks
from hope_schema.wording import duration

COLOURS: Final = 8
"""Processors told apart by colour; further ones begin anew, their lanes are named."""
LAST: Final = 92.0
"""Marks of the axis from here on, in per cent, end where they stand."""
COLUMNS: Final = (
    "op", "type", "super-op", "segment", "processor", "predicted µs", "alone µs", "measured µs", "next best", "its µs",
    "cause",
)  # fmt: skip
NUMBERS: Final = frozenset({"segment", "predicted µs", "alone µs", "measured µs", "its µs"})


def to_html(explanation: Explanation) -> str:
    parts = {
        "title": _text(f"{explanation.model}: what runs where, and why"),
        "labels": "".join(
            f'td:nth-child({at})::before {{ content: "{name} "; }}' for at, name in enumerate(COLUMNS, 1)
        ),
        "why": _text(explanation.why),
        "figures": "".join(
            f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>" for name, value in _figures(explanation)
        ),
        "notes": _notes(explanation.notes),
        "chart": _chart(explanation) if explanation.measured else "",
        "table": _table(explanation) if explanation.ops else "",
    }
    template = files("agent_sdk.explain").joinpath("page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _figures(explanation: Explanation) -> Iterable[tuple[str, str]]:
    answers = explanation.answers.removeprefix("whole:")
    yield "answers", {"plan": "the plan"}.get(answers, f"{answers} alone")
    for name, us in (
        ("planned", explanation.planned_us),
        ("this run of the plan" if explanation.planned else "measured", explanation.measured_us),
        ("lower bound", explanation.lower_bound_us),
    ):
        if us is not None:
            yield name, duration(us)
    yield "on", ", ".join(explanation.processors)
    if explanation.method:
        yield "found by", explanation.method


def _notes(notes: Sequence[str]) -> str:
    return "<h2>Notes</h2><ul>" + "".join(f"<li>{_text(note)}</li>" for note in notes) + "</ul>" if notes else ""


def _chart(explanation: Explanation) -> str:
    span = max((bar.finish_us for bar in (*explanation.planned, *explanation.measured)), default=0.0) or 1.0
    colour = _colours(explanation)
    groups = {op.super_op: str(op.segment) for op in explanation.ops}
    names, lanes, first = [], [], True
    for title, bars in (("planned", explanation.planned), ("measured", explanation.measured)):
        if not bars:
            continue
        names.append(f'<div class="group">{title}</div>')
        lanes.append('<div class="group"></div>')
        for processor in dict.fromkeys(bar.processor for bar in bars):
            own = [bar for bar in bars if bar.processor == processor]
            names.append(f"<div>{_dot(colour[processor])}{_text(processor)}</div>")
            drawn = []
            for bar in sorted(own, key=lambda one: one.start_us):
                drawn.append(_bar(bar, title, span, colour[processor], groups.get(bar.name, ""), first))
                first = False
            lanes.append(
                f'<div class="lane" role="group" aria-label="{title}, {_text(processor)}">{"".join(drawn)}</div>'
            )
    marks = "".join(
        f'<span{" class=last" if mark.at > LAST else ""} style="left:{mark.at}%">{duration(mark.value)}</span>'
        for mark in ticks(span)
    )
    return (
        '<h2>Plan and run</h2><p class="quiet">Arrow keys walk through the bars, + and - zoom. '
        "Hatched: tensors are moved.</p>"
        '<div class="tools"><button type="button" data-zoom="2">zoom in</button>'
        '<button type="button" data-zoom="0.5">zoom out</button></div>'
        f'<div class="chart"><div class="names">{"".join(names)}<div class="group"></div></div>'
        f'<div class="scroll"><div class="lanes">{"".join(lanes)}<div class="axis">{marks}</div></div></div></div>'
        '<p class="told quiet" aria-live="polite"></p>'
    )


def _bar(bar: Bar, title: str, span_us: float, colour: int, group: str, first: bool) -> str:
    left, width = place(bar.start_us, span_us), place(bar.finish_us - bar.start_us, span_us)
    what = "moving tensors for " if bar.kind == "transfer" else ""
    told = _text(
        f"{title} on {bar.processor}: {what}{bar.label}, {duration(bar.finish_us - bar.start_us)} "
        f"from {duration(bar.start_us)} on"
    )
    return (
        f'<a class="bar {bar.kind}" href="#segment-{group}" tabindex="{0 if first else -1}" data-group="{group}" '
        f'style="left:{left}%;width:{width}%;background-color:var(--c{colour})" aria-label="{told}" '
        f'title="{told}">{_text(bar.label) if width > 4 else ""}</a>'
    )


def _table(explanation: Explanation) -> str:
    colour = _colours(explanation)
    head = "".join(f'<th scope="col"{" class=number" if name in NUMBERS else ""}>{name}</th>' for name in COLUMNS)
    seen: set[int | None] = set()
    rows = []
    for op in explanation.ops:
        anchor = "" if op.segment in seen or op.segment is None else f' id="segment-{op.segment}"'
        seen.add(op.segment)
        rows.append(f'<tr{anchor} data-group="{op.segment}">{_cells(op, colour[op.processor])}</tr>')
    return (
        '<h2>Every op</h2><div class="tools"><label>filter <input id="filter" type="search"></label>'
        f'<span id="shown" class="quiet" aria-live="polite">{len(rows)} of {len(rows)}</span></div>'
        '<p class="quiet">Predicted is what the plan says, tensors waited for included; alone is the op itself. '
        "Runtimes time segments: what an op took of its segment is shared as it was predicted.</p>"
        f'<div class="table" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cells(op: ExplainedOp, colour: int) -> str:
    values = (
        op.op, op.type, op.super_op, "" if op.segment is None else str(op.segment), op.processor, _us(op.predicted_us),
        _us(op.alone_us), _us(op.measured_us), op.next_best or "", _us(op.next_best_us),
        f"{op.cause.replace('_', ' ')}: {op.why}",
    )  # fmt: skip
    cells = dict(zip(COLUMNS, map(_text, values), strict=True))
    cells["processor"] = _dot(colour) + cells["processor"]
    return "".join(f"<td{' class=number' if name in NUMBERS else ''}>{text}</td>" for name, text in cells.items())


def _colours(explanation: Explanation) -> dict[str, int]:
    names = [bar.processor for bar in (*explanation.planned, *explanation.measured)]
    return {name: index % COLOURS for index, name in enumerate(dict.fromkeys(names))}


def _dot(colour: int) -> str:
    return f'<span class="dot" style="background:var(--c{colour})"></span>'


def _us(us: float | None) -> str:
    return "" if us is None else f"{us:.1f}"


def _text(text: str) -> str:
    return escape(printable(text))

"""``hope-agent explain``: what runs where, when and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from agent_sdk.cli.options import Given, loads_a_network, refuse_unwritable, write
from agent_sdk.errors import printable

if TYPE_CHECKING:
    from agent_sdk.explain import Explanation

EXAMPLES: Final = """\b
examples:
  hope-agent explain net.onnx                      every op: where it runs, predicted and measured, and why
  hope-agent explain net.onnx --html net.html      a chart of the plan and of a run, one file for any browser
  hope-agent explain inception_v1 --json           one JSON object on stdout
"""
NUMBERS: Final = frozenset({2, 4, 5})
"""Columns that are set to the right."""


@click.command(epilog=EXAMPLES)
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="write a page with a chart and the table")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object; progress goes to stderr")
@loads_a_network
def explain(given: Given, *, html: Path | None, as_json: bool) -> int:
    """Say of every op where it runs, how long it takes, where else it could run, and why it does not."""
    if html is not None:
        refuse_unwritable("--html", html)
    with given.loaded(all_rivals=False) as (_, session):
        explanation = session.explain(given.inputs, seed=given.seed)
    if as_json:
        click.echo(json.dumps(explanation.as_json(), allow_nan=False))
    elif html is None:
        _show(explanation)
    if html is not None:
        from agent_sdk.explain import to_html

        write("the page", html, to_html(explanation).encode())
        click.echo(f"wrote {html}", err=True)
    return 0


def _show(explanation: Explanation) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    from agent_sdk.cli.report import show_notes

    console = Console()
    rows: list[tuple[str, ...]] = [("op", "type", "seg", "processor", "plan µs", "run µs", "next best")]
    for op in explanation.ops:
        other = "" if op.next_best_us is None else f"{op.next_best_us:.1f} {op.next_best}"
        segment = "" if op.segment is None else str(op.segment)
        took = "" if op.measured_us is None else f"{op.measured_us:.1f}"
        cells = (op.op, op.type, segment, op.processor, f"{op.predicted_us:.1f}", took, other)
        rows.append(tuple(printable(cell) for cell in cells))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *lines = (
        "  ".join(cell.rjust(width) if place in NUMBERS else cell.ljust(width) for place, cell, width in row).rstrip()
        for row in (zip(range(len(widths)), row, widths, strict=True) for row in rows)
    )
    if lines:
        console.print(head, style="bold", soft_wrap=True)
    before = ""
    for op, line in zip(explanation.ops, lines, strict=True):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
        if op.super_op != before:
            why = Text(printable(f"{op.cause.replace('_', ' ')}: {op.why}"), style="dim")
            if console.is_terminal:
                console.print(Padding(why, (0, 0, 0, 4), expand=False))
            else:  # a line is a line, however long
                console.print("    ", why, sep="", soft_wrap=True)
        before = op.super_op
    console.print(f"{explanation.model}: {explanation.why}", markup=False, highlight=False, soft_wrap=True)
    if explanation.planned_us is not None:
        planned_ms, run_ms = explanation.planned_us / 1e3, explanation.measured_us / 1e3
        console.print(f"the plan: {planned_ms:.2f} ms predicted, {run_ms:.2f} ms in this run", highlight=False)
    show_notes((note for note in explanation.notes if note != explanation.why), console)

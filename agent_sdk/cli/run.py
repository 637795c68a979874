"""``hope-agent run``: measure what the planner lacks, obtain a plan, run it, time it, check it."""

import json
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from agent_sdk.cli import examine, report
from agent_sdk.cli.options import Given, loads_a_network, positive, refuse_unwritable, write
from agent_sdk.explain import to_perfetto

MAX_RUNS: Final = 100_000
EXAMPLES: Final = """\b
examples:
  hope-agent run inception_v1 --compare      a network of the zoo, beside every single processor
  hope-agent run net.onnx --json             your own network; one JSON object on stdout
  hope-agent run net.onnx --shape x=1,3,640,640 --input photos.npz
  hope-agent run lstm --planner http://127.0.0.1:8000 --trace lstm.trace.json
  hope-agent run squeezenet --processors ort@0,ort@1 --method ilp
"""


@click.command(epilog=EXAMPLES)
@click.option(
    "--runs", type=click.IntRange(1, MAX_RUNS), default=10, show_default=True, metavar="N", help="the median counts"
)
@click.option("--compare", is_flag=True, help="also time every single processor")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="write a trace for ui.perfetto.dev")
@click.option("--tolerance", type=positive, metavar="X", help="largest relative error that is right (default: by type)")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object; progress goes to stderr")
@loads_a_network
def run(given: Given, *, runs: int, compare: bool, trace: Path | None, tolerance: float | None, as_json: bool) -> int:
    """Measure, plan, run and check one network."""
    if trace is not None:
        refuse_unwritable("--trace", trace)
    with given.loaded(all_rivals=compare) as (agent, session):
        inputs = session.draw(given.seed) if given.inputs is None else given.inputs
        if not session.plans.ready():
            whole = examine.examine_whole(session, inputs, runs=runs, tolerance=tolerance)
            click.echo(json.dumps(whole.as_json(), allow_nan=False)) if as_json else report.show_whole(whole, Console())
            if trace is not None:
                click.echo("hope-agent: no trace was written: a network that runs whole shows none", err=True)
            return 0 if whole.verdict.correct else 1
        found, recorded = examine.examine(agent, session, inputs, runs=runs, compare=compare, tolerance=tolerance)
        planned = session.latest.plan_executor.program
    if as_json:
        click.echo(json.dumps(found.as_json(), allow_nan=False))
    else:
        report.show(found, Console())
    if not found.verdict.correct:
        click.echo(f"hope-agent: {found.verdict}", err=True)
    if trace is not None:
        write("the trace", trace, json.dumps(to_perfetto(recorded, planned)).encode())
    return 0 if found.verdict.correct else 1

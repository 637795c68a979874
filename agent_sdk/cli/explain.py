"""``hope-agent explain``: what runs where, when and why."""

import json
from pathlib import Path
from typing import Final

import click

from agent_sdk.cli.options import Given, loads_a_network, refuse_unwritable, write
from agent_sdk.explain import to_html

EXAMPLES: Final = """\b
examples:
  hope-agent explain net.onnx                      every op: where it runs, predicted and measured, and why
  hope-agent explain net.onnx --html net.html      a chart of the plan and of a run, one file for any browser
  hope-agent explain inception_v1 --json           one JSON object on stdout
"""


@click.command(epilog=EXAMPLES)
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="write a page with a chart and the table")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object; progress goes to stderr")
@loads_a_network
def explain(given: Given, *, html: Path | None, as_json: bool) -> int:
    """Say of every op where it runs, how long it takes, and why.

    Also where else it could run, and why it does not.
    """
    if html is not None:
        refuse_unwritable("--html", html)
    with given.loaded(all_rivals=False) as (_, session):
        explanation = session.explain(given.inputs, seed=given.seed)
    if as_json:
        click.echo(json.dumps(explanation.as_json(), allow_nan=False))
    elif html is None:
        click.echo(explanation)
    if html is not None:
        write("the page", html, to_html(explanation).encode())
        click.echo(f"wrote {html}", err=True)
    return 0

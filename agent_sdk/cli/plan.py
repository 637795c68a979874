"""``hope-agent plan``: plans as files."""

from pathlib import Path
from typing import Final

import click

from agent_sdk.cli.options import Given, loads_a_network, refuse_unwritable

EXAMPLES: Final = """\b
examples:
  hope-agent plan export net.onnx -o net.plan      Agent().load("net.onnx", plan="net.plan") starts from it
"""


@click.group()
def plan() -> None:
    """Plans as files, for devices that measure and ask nothing."""


@plan.command(epilog=EXAMPLES)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="where to write it"
)
@loads_a_network
def export(given: Given, *, output: Path) -> int:
    """Measure and plan one network, and write its plan to a file.

    Devices of this kind start from it: load(model, plan=FILE).
    """
    refuse_unwritable("--output", output)
    with given.loaded(all_rivals=False) as (agent, session):
        agent.export_plan(session, output)
    click.echo(output)
    return 0

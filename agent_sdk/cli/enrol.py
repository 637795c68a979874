"""``hope-agent enrol``: exchange a claim for a token of this device's own."""

from __future__ import annotations

from typing import Final

import click

EXAMPLES: Final = """\b
examples:
  hope-agent enrol --planner https://planner.example --claim "$CLAIM"    of `hope-planner claims create`
  hope-agent run net.onnx --planner https://planner.example              uses the token from then on
"""


@click.command(epilog=EXAMPLES)
@click.option("--planner", metavar="URL", required=True, help="the planner to enrol with")
@click.option(
    "--claim", metavar="TOKEN", envvar="HOPE_CLAIM", help="the claim an admin gave you (default: $HOPE_CLAIM)"
)
def enrol(planner: str, claim: str | None) -> int:
    """Exchange a claim token for a token of this device's own."""
    from agent_sdk.planner.enrolment import enrolled  # late: it loads a client, and --help needs none

    click.echo(enrolled(planner, claim))
    return 0

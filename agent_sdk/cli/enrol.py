"""``hope-agent enrol``: exchange a claim for a token of this device's own."""

from typing import Final

import click

from agent_sdk.planner import enrolment

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
    device, is_new = enrolment.enrol(planner, claim)
    if is_new:
        click.echo(f"enrolled as {device}; hope-agent run --planner {planner} now uses its own token")
    else:
        click.echo(f"{device} is enrolled there already; hope-agent run --planner {planner} uses its token")
    return 0

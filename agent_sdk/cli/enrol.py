"""``hope-agent enrol``: exchange a claim for a token of this device's own."""

from __future__ import annotations

from typing import Final

import click

from agent_sdk.errors import ConflictError, InputError

EXAMPLES: Final = """\b
examples:
  hope-agent enrol --planner https://planner.example --claim "$CLAIM"    of `hope-planner tokens create --claim`
  hope-agent run net.onnx --planner https://planner.example              uses the token from then on
"""


@click.command(epilog=EXAMPLES)
@click.option("--planner", metavar="URL", required=True, help="the planner to enrol with")
@click.option(
    "--claim", metavar="TOKEN", envvar="HOPE_CLAIM", help="the claim an admin gave you (default: $HOPE_CLAIM)"
)
def enrol(planner: str, claim: str | None) -> int:
    """Exchange a claim token for a token of this device's own."""
    from agent_sdk.device.soc import read_soc
    from agent_sdk.paths import state_directory
    from agent_sdk.planner.blocking import BlockingPlanner
    from agent_sdk.planner.client import PlannerClient
    from agent_sdk.planner.identity import device_id, prepare_tokens, store_token, stored_token, versions
    from agent_sdk.planner.recognise import recognise
    from hope_schema import Enrolment

    soc, state = read_soc(), state_directory()
    own = device_id(state)
    known = f"{own} is enrolled there already; hope-agent run --planner {planner} uses its token"
    request = Enrolment(device_id=own, soc=soc.name, frequency=soc.frequency, versions=versions())
    try:
        prepare_tokens(state)
    except OSError as error:
        raise InputError(f"not enrolled: a token could not be kept in '{state}': {error.strerror}") from error
    with BlockingPlanner(PlannerClient(planner)) as asked:
        if asked.call(lambda _: recognise(PlannerClient, planner, state, own)) is not None:
            click.echo(known)
            return 0
        if not claim:
            raise InputError("an enrolment needs a claim: --claim TOKEN, or HOPE_CLAIM in the environment")
        try:
            receipt = asked.call(lambda client: client.enrol(claim, request))
        except ConflictError:  # it holds a valid token, which a planner without HOPE_ADDRESSES could not prove
            if stored_token(state, planner) is None:
                raise
            click.echo(known)
            return 0
    try:
        store_token(state, planner, receipt.token)
    except OSError as error:
        raise InputError(f"enrolled, but the token cannot be kept in '{state}': {error.strerror}") from error
    click.echo(f"enrolled as {receipt.device_id}; hope-agent run --planner {planner} now uses its own token")
    return 0

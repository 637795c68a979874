"""A token of this device's own, in exchange for a claim."""

from __future__ import annotations

from agent_sdk.errors import ConflictError, InputError
from agent_sdk.machine.soc import read_soc
from agent_sdk.paths import state_directory
from agent_sdk.planner.blocking import BlockingPlanner
from agent_sdk.planner.client import PlannerClient
from agent_sdk.planner.identity import device_id, prepare_tokens, store_token, stored_token, versions
from agent_sdk.planner.recognise import recognise
from hope_schema import Enrolment


def enrolled(planner: str, claim: str | None) -> str:
    """Enrol with a planner, unless this device is, and keep the token; returns a sentence that says so.

    Raises InputError where there is no claim, or the token cannot be kept, or PlannerError.
    """
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
            return known
        if not claim:
            raise InputError("an enrolment needs a claim: --claim TOKEN, or HOPE_CLAIM in the environment")
        try:
            receipt = asked.call(lambda client: client.enrol(claim, request))
        except ConflictError:  # it holds a valid token, which a planner without HOPE_ADDRESSES could not prove
            if stored_token(state, planner) is None:
                raise
            return known
    try:
        store_token(state, planner, receipt.token)
    except OSError as error:
        raise InputError(f"enrolled, but the token cannot be kept in '{state}': {error.strerror}") from error
    return f"enrolled as {receipt.device_id}; hope-agent run --planner {planner} now uses its own token"

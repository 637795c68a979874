"""A claim is exchanged for a token of this device's own, which is kept for the planner's address."""

from pathlib import Path

from agent_sdk.errors import ConflictError, InputError
from agent_sdk.machine.soc import read_soc
from agent_sdk.paths import state_directory
from agent_sdk.planner.client import PlannerClient
from agent_sdk.planner.identity import device_id, prepare_tokens, store_token, stored_token, versions
from agent_sdk.planner.recognise import recognise
from hope_schema import Enrolment


def enrol(planner: str, claim: str | None, state: Path | None = None) -> tuple[str, bool]:
    """Return the device's id, and whether it was enrolled now; it may be already, and spends no claim then.

    Args:
        claim: what an admin made for devices to enrol with; None is enough where it is enrolled already.
        state: where the device's id and its tokens are kept.

    Raises:
        InputError: no claim, or a folder in which no token can be kept.
        PlannerError: the planner refuses, or cannot answer now.
    """
    soc, state = read_soc(), state or state_directory()
    own = device_id(state)
    request = Enrolment(device_id=own, soc=soc.name, frequency=soc.frequency, versions=versions())
    try:
        prepare_tokens(state)
    except OSError as error:
        raise InputError(f"not enrolled: a token could not be kept in '{state}': {error.strerror}") from error
    with PlannerClient(planner) as asked:
        if recognise(PlannerClient, planner, state, own) is not None:
            return own, False
        if not claim:
            raise InputError("an enrolment needs a claim: --claim TOKEN, or HOPE_CLAIM in the environment")
        try:
            receipt = asked.enrol(claim, request)
        except ConflictError:  # it holds a valid token, which a planner without HOPE_ADDRESSES could not prove
            if stored_token(state, planner) is None:
                raise
            return own, False
    try:
        store_token(state, planner, receipt.token)
    except OSError as error:
        raise InputError(f"enrolled, but the token cannot be kept in '{state}': {error.strerror}") from error
    return receipt.device_id, True

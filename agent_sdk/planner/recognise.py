"""A planner that moved, or goes by another name: recognised by what it proves, never by being shown a token."""

import hmac
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from agent_sdk.errors import PlannerStatusError, RateLimitedError, ServerError
from agent_sdk.planner.client import TOKEN_VARIABLE, PlannerClient
from agent_sdk.planner.identity import kept_tokens, store_token, stored_token
from hope_schema import ProofRequest
from hope_schema.proof import address_of, hash_token, prove


def recognise(opening: Callable[..., PlannerClient], url: str, directory: Path, device_id: str) -> str | None:
    """Return the token that the planner at ``url`` gave this device at whatever address, and keep it for this one too.

    Args:
        opening: makes a client, given ``url`` and ``token``.
        url: the address as the caller wrote it.
        directory: where tokens are kept.

    Returns:
        None where the planner does not prove that it gave any of them.

    Raises:
        PlannerError: it cannot answer now.
    """
    tokens = kept_tokens(directory)
    try:
        address = address_of(url)
    except ValueError:  # no address, which the client says better
        return None
    if not tokens:
        return None
    request = ProofRequest(nonce=secrets.token_hex(32), device_id=device_id, address=address)
    try:
        with opening(url, token="") as stranger:
            answer = stranger.prove(request)
    except (RateLimitedError, ServerError):
        raise
    except PlannerStatusError:  # it does not know the device, or is no planner
        return None
    for token in tokens:
        if hmac.compare_digest(prove(hash_token(token), request, answer.salt), answer.proof):
            with suppress(OSError):  # then it proves itself again at the next start
                store_token(directory, url, token)
            return token
    return None


def recognising(opening: Callable[..., PlannerClient], url: str, directory: Path, device_id: str) -> PlannerClient:
    """Return a client of the planner at ``url``, with its token if it is recognised. Raises like ``recognise``."""
    token = recognise(opening, url, directory, device_id)
    planner = opening(url, token=token)
    if token is None:
        planner.enrolled_at = ", ".join(sorted({*kept_tokens(directory).values()} - {""}))
    return planner


def connecting(
    planner: str, token: str | None, state: Path, device_id: str, deadline_s: float
) -> tuple[Callable[[], PlannerClient], str | None]:
    """What connects to a remote planner as this device, or by the token that is given; and a note, if any.

    Without either, ``HOPE_TOKEN`` speaks. Raises InputError for what is no address.
    """
    speaks = token or (not kept_tokens(state) and os.environ.get(TOKEN_VARIABLE)) or ""
    token = token or stored_token(state, planner)
    client = partial(PlannerClient, device_id=device_id, deadline_s=deadline_s)
    client(planner, token=token).close()  # refuses what is no address now, not when it is first needed
    if token is None:
        return partial(recognising, client, planner, state, device_id), _as_whom(planner, speaks)
    return partial(client, planner, token=token), _as_whom(planner, speaks)


def _as_whom(planner: str, token: str) -> str | None:
    """A note where a person's token speaks, whose word makes a SoC count at once."""
    if not token.startswith(("hope_a_", "hope_v_")):
        return None
    who = "an admin" if token.startswith("hope_a_") else "a viewer"
    cure = f"`hope-agent enrol --planner {planner}` gets this device a token of its own"
    return f"speaks to {planner} as {who}, not as this device; {cure}"

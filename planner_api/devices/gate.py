"""The guard's short cut: a caller it already knows may be served without a task switch, a query or an exception."""

from __future__ import annotations

import time

from planner_api.devices.guard import LEEWAY_S, Tokens
from planner_api.devices.rate import RateLimit
from planner_api.devices.tokens import hash_token


class Gate:
    """Recognises callers for the plan cache in front of everything else.

    It says yes only where the guard would; whatever is not plain it leaves to the guard, which then also counts and
    words the refusal.
    """

    def __init__(self, tokens: Tokens, *, required: bool, per_token: RateLimit) -> None:
        self._tokens = tokens
        self._required = required
        self._per_token = per_token

    def recognises(self, authorization: bytes | None, method: str, path: str) -> bool:
        """Count and admit one request; False leaves the decision to the guard.

        Args:
            authorization: the header's value, None without one.
            method: of the request.
            path: of the request.
        """
        if authorization is None:
            return not self._required
        if authorization[:7] != b"Bearer ":
            return False
        known = self._tokens.known(hash_token(authorization[7:]))
        if known is None or known.expires_at + LEEWAY_S < time.time():
            return False
        principal = known.principal
        # NOTE: a refusal of the limit counts nothing, so the guard will refuse in its turn.
        if not principal.may(method, path) or self._per_token.hit(principal.name):
            return False
        self._tokens.saw(principal)
        return True

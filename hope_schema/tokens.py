"""Tokens of people, and claims that devices enrol with: a secret is shown once, and the planner keeps its hash."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from hope_schema.base import PRINTABLE, Contract, Count, Label

Number = Annotated[int, Field(ge=1, le=2**62)]
"""What a token or a claim is known by; it opens nothing."""
Note = Annotated[str, Field(max_length=128, pattern=PRINTABLE)]
Lifetime = Annotated[float, Field(gt=0.0, le=100 * 365 * 86_400.0, allow_inf_nan=False)]
"""Seconds for which it is valid."""
Uses = Annotated[int, Field(ge=1, le=10_000_000)]
TokenScope = Literal["admin", "viewer", "device"]
"""May do everything; may look; may do what one device needs."""


class NewToken(Contract):
    """``POST /tokens``: a token of a person, an admin's or, with ``read_only``, a viewer's."""

    read_only: bool = False
    label: Note = ""
    lifetime_s: Lifetime | None = None


class NewClaim(Contract):
    """``POST /claims``: what so many devices (null: any number) may exchange for tokens of their own."""

    uses: Uses | None = None
    label: Note = ""
    lifetime_s: Lifetime | None = None


class IssuedToken(Contract):
    """Reply to both: ``token`` is shown this once, ``id`` is what it is listed and revoked by."""

    id: Number
    token: Annotated[str, Field(min_length=32, max_length=128)]


class Token(Contract):
    """A token without its secret; ``device_id`` is null for a person's."""

    id: Number
    scope: TokenScope
    state: Literal["valid", "expired", "revoked"]
    label: str
    device_id: Label | None
    created_at: AwareDatetime
    expires_at: AwareDatetime | None


class TokenPage(Contract):
    """Tokens, newest first; ``next`` is the ``before`` of the following page, null on the last."""

    tokens: tuple[Token, ...]
    next: Number | None = None


class Claim(Contract):
    """A claim without its secret; ``uses_left`` is null where any number of devices may enrol with it."""

    id: Number
    state: Literal["valid", "spent", "expired", "revoked"]
    label: str
    uses_left: Count | None
    created_at: AwareDatetime
    expires_at: AwareDatetime | None


class ClaimPage(Contract):
    """Claims, newest first; ``next`` is the ``before`` of the following page, null on the last."""

    claims: tuple[Claim, ...]
    next: Number | None = None

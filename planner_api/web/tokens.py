"""Bearer tokens: 256 random bits, shown once, kept as a SHA-256.

With that much entropy a fast hash is enough: there is nothing to guess, so nothing to slow down.
"""

import re
import secrets
from typing import Literal

Kind = Literal["admin", "viewer", "device", "claim"]

_PREFIX: dict[Kind, str] = {"admin": "hope_a_", "viewer": "hope_v_", "device": "hope_d_", "claim": "hope_c_"}
"""A fixed prefix lets secret scanners find leaked tokens, and our logs leave them out."""

SECRET = re.compile(r"hope_[avdc]_[A-Za-z0-9_\-]{8,}")
"""What a token looks like in text."""


def new_token(kind: Kind) -> str:
    return _PREFIX[kind] + secrets.token_urlsafe(32)

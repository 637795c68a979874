"""How a planner proves to a device that it gave the device its token, before it is shown that token.

A challenge and its response: the device sends a nonce and the address that it called, the planner an HMAC (RFC 2104)
over both, keyed by what it keeps of the token. It answers for its own addresses alone, so who stands at another one and
passes the question on gets nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from typing import Annotated, Final

from pydantic import Field

from hope_schema.base import Contract, Digest, Label
from hope_schema.hashing import canonical

Address = Annotated[
    str, Field(max_length=280, pattern=r"^https?://(\[[0-9a-f:.]+\]|[a-z0-9._\-]+)(:[1-9][0-9]{0,4})?$")
]
"""Where a planner is called, as ``address_of`` writes it."""

# NOTE: a closed grammar, not a URL parser: what two parsers read differently leads elsewhere than it says.
_URL: Final = re.compile(r"(https?)://(\[[0-9a-f:.]+\]|[a-z0-9._\-]+)(?::([0-9]{1,5}))?/?", re.ASCII | re.IGNORECASE)
_PORTS: Final = {"http": 80, "https": 443}
_LONGEST_HOST: Final = 253


class ProofRequest(Contract):
    """``POST /devices/proof``, without a token: is this the planner that gave the device its token?

    ``nonce`` is random and used once; ``address`` is the one that the device called.
    """

    nonce: Digest
    device_id: Label
    address: Address


class Proof(Contract):
    """Reply to a device's question. ``salt`` is random; ``proof`` is what ``prove`` makes of both.

    A device that the planner does not know gets one that nobody can check, so the reply does not tell who is known.
    """

    salt: Digest
    proof: Digest


def hash_token(token: str | bytes) -> str:
    """What a planner stores of a token: its SHA-256 in hexadecimal."""
    return hashlib.sha256(token.encode() if isinstance(token, str) else token).hexdigest()


def prove(token_hash: str, request: ProofRequest, salt: str) -> str:
    """Return the proof, in hexadecimal, that only who knows the hash of the device's token can make."""
    message = {"purpose": "hope-planner-proof", "salt": salt, **request.model_dump()}
    return hmac.digest(token_hash.encode(), canonical(message), "sha256").hex()


def address_of(url: str) -> str:
    """Return a planner's address in its one spelling: ``https://planner.example``, ``http://127.0.0.1:8000``.

    Scheme and host in small letters, IPv6 as RFC 5952 writes it, no port where it is the scheme's own.

    Raises:
        ValueError: not an address alone: other schemes, users, paths, queries, names that are not ASCII.
    """
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError(f"'{url}' is not an address like https://planner.example or http://127.0.0.1:8000")
    scheme, host, digits = found[1].lower(), found[2].lower(), found[3]
    if host.startswith("["):
        host = f"[{ipaddress.IPv6Address(host[1:-1]).compressed}]"
    port = _PORTS[scheme] if digits is None else int(digits)
    if not 1 <= port <= 65535 or len(host) > _LONGEST_HOST:
        raise ValueError(f"'{url}' names no host of at most {_LONGEST_HOST} characters and port from 1 to 65535")
    return f"{scheme}://{host}" if port == _PORTS[scheme] else f"{scheme}://{host}:{port}"

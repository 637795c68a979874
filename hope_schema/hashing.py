"""One canonical form for everything that is hashed: sorted keys, no spaces, exact floats."""

from __future__ import annotations

import hashlib
import json
from typing import Any

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical(value: Any) -> bytes:
    """Return ``value`` as canonical JSON (UTF-8): equal values give equal bytes on every machine.

    Raises ValueError for NaN and infinity, which JSON cannot say.
    """
    return _ENCODER.encode(value).encode()


def digest(value: Any) -> str:
    """Return the SHA-256 of ``canonical(value)`` in hexadecimal."""
    return hashlib.sha256(canonical(value)).hexdigest()

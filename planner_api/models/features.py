"""Features of ops by signature, as they are stored: what predictors are trained on, whichever model they came with."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from hope_schema import SuperOp
from planner_api.prediction.features import Features, features


def described(supers: Iterable[SuperOp]) -> dict[str, bytes]:
    """Each signature with its features."""
    return {op.signature: msgspec.json.encode(features(op)) for op in supers}


def read(body: bytes) -> Features:
    """Features as they were stored."""
    return msgspec.json.decode(body, type=Features)

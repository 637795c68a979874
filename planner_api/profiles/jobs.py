"""The jobs on profiles by name."""

import msgspec

FOLD = "fold"
"""The kind of job that folds uploads into a profile."""
OUTDATED = "outdated"
"""The kind of job that follows a new version of a profile; whoever rests on profiles does it."""
PROFILE = "profile"
"""Topic: uploads were folded into a profile."""


def key_of(soc: str, frequency: str) -> str:
    """The key of jobs on a profile; no two profiles share one, whatever characters are in their names."""
    return msgspec.json.encode((soc, frequency)).decode()


def pair_of(key: str) -> tuple[str, str]:
    return msgspec.json.decode(key, type=tuple[str, str])

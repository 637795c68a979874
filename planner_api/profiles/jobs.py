"""The jobs on profiles by name, and the one way a profile is stored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from planner_api.db.engine import WriteSession
from planner_api.jobs.queue import put
from planner_api.jobs.repository import Wanted
from planner_api.profiles import repository
from planner_api.profiles.repository import ProfileHead

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
    """The SoC and frequency of a job on a profile."""
    return msgspec.json.decode(key, type=tuple[str, str])


async def store(
    session: WriteSession, head: ProfileHead, key: str, values: Mapping[str, Any], body: bytes | None, now: datetime
) -> bool:
    """Store a profile, and queue what follows a new version; False when another folder was faster."""
    if not await repository.store(session, head, values, body, now):
        return False
    if body is not None:
        await put(session, Wanted(OUTDATED, key, again=True))
    return True

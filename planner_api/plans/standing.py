"""What a planner's SQLite file says while no planner runs on it: one takes a second to load, ``sqlite3`` nothing."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

STANDING: Final = """
SELECT etag FROM plans JOIN plan_versions ON plan_id = plans.id
AND plan_versions.version = coalesce(served_version, plans.version)
WHERE plans.id = ? AND NOT EXISTS (SELECT * FROM jobs)
"""
"""The version of a plan that is served, where no work waits that could follow it by a newer one."""


def standing_tag(database: Path, plan_id: str) -> str | None:
    """The ETag that a planner started now would answer with at once; None where only a planner can tell."""
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as opened:
            row = opened.execute(STANDING, (plan_id,)).fetchone()
    except sqlite3.Error:  # there is none yet, it is damaged, or another release wrote it
        return None
    return None if row is None else str(row[0])

"""Where the agent keeps files."""

import os
from pathlib import Path
from typing import Final

from platformdirs import user_cache_path, user_data_path

CACHE_VARIABLE: Final = "HOPE_CACHE_DIR"
"""Environment variable that replaces the user's cache and data directories."""
ZOO_VARIABLE: Final = "HOPE_ZOO"
"""Environment variable that replaces the directory of built zoo networks."""


def cache_directory() -> Path:
    """What may be lost: plans, the embedded planner's database, optimised graphs, built networks."""
    return _chosen(CACHE_VARIABLE) or user_cache_path("hope", appauthor=False)


def state_directory() -> Path:
    """What must outlive a cleared cache: the device's id and its tokens."""
    return _chosen(CACHE_VARIABLE) or user_data_path("hope", appauthor=False)


def zoo_directory() -> Path:
    return _chosen(ZOO_VARIABLE) or cache_directory() / "zoo"


def _chosen(variable: str) -> Path | None:
    chosen = os.environ.get(variable)
    return Path(chosen).absolute() if chosen else None

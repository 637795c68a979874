"""Which device is this? A random id, made once and kept; it says nothing about its owner."""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress
from pathlib import Path


def device_id(directory: Path) -> str:
    """Return the id kept in ``directory``, making one on the first call.

    On a read-only disk every call returns a new id, which only costs the planner a little weighting accuracy.
    """
    path = directory / "device-id"
    with suppress(OSError):
        text = path.read_text().strip()
        if re.fullmatch(r"device-[0-9a-f]{32}", text):
            return text
    made = f"device-{uuid.uuid4().hex}"
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f"device-id.{os.getpid()}"
        temporary.write_text(made)
        os.replace(temporary, path)
    return made

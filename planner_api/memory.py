"""Memory that is free goes back to the system: glibc keeps what many small pieces were freed of."""

from __future__ import annotations

import asyncio
import ctypes
import sys


async def give_back() -> None:
    """Return free memory, where the C library can."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            await asyncio.to_thread(trim, 0)

"""Whose fault is it that a runtime failed: its own, or this machine's, which has no memory, disk or file left?"""

import errno
from typing import Final

from agent_sdk.errors import OutOfMemory, ProcessorError, ProcessorLost

NO_MEMORY: Final = (
    "bad_alloc",
    "bad allocation",
    "failed to allocate",
    "cannot allocate memory",
    "out of memory",
    "failed to write external initializers",
    "no space left on device",
)
"""What runtimes say, in lower case, when memory or the disk runs out."""
SHORTAGES: Final = frozenset({errno.ENOMEM, errno.ENOSPC, errno.EDQUOT})
"""What the operating system says then; its other errors have other causes and cures."""


def lacks_memory(error: Exception) -> bool:
    """Whether a runtime failed for want of memory, or of disk; none of them has an error of its own for that."""
    if isinstance(error, OSError):
        return error.errno in SHORTAGES
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(mark in text for mark in NO_MEMORY)


def first_line(error: Exception) -> str:
    """What a runtime says first; its class where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:400]


def machines_fault(error: Exception, where: str, text: str) -> ProcessorError | None:
    """What to raise when this machine failed, not the runtime; None where the runtime itself refused.

    NOTE: taken for a refusal, the trouble of one device would be told to the planner as *unsupported* for all.
    """
    if lacks_memory(error):
        return OutOfMemory(f"{where}: {text}; make room, or use fewer processors or a smaller model")
    if isinstance(error, OSError):
        return ProcessorLost(f"{where}: {text}")
    return None

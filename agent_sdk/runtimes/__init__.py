"""The runtimes that can run a segment of a network, a folder each, behind one small interface."""

from agent_sdk.errors import ProcessorError
from agent_sdk.runtimes.base import (
    Buffer,
    CompilationFailed,
    Executable,
    OutOfMemory,
    Processor,
    ProcessorLost,
    Segment,
    SilentFallback,
    UnsupportedOp,
    WrongOutput,
)

__all__ = [
    "Buffer",
    "CompilationFailed",
    "Executable",
    "OutOfMemory",
    "Processor",
    "ProcessorError",
    "ProcessorLost",
    "Segment",
    "SilentFallback",
    "UnsupportedOp",
    "WrongOutput",
]

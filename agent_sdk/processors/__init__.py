"""The runtimes that can run a segment of a network, one file each, behind one small interface."""

from agent_sdk.processors.base import (
    Buffer,
    CompilationFailed,
    Executable,
    OutOfMemory,
    Processor,
    ProcessorError,
    ProcessorLost,
    Segment,
    SilentFallback,
    UnknownProcessor,
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
    "UnknownProcessor",
    "UnsupportedOp",
    "WrongOutput",
]

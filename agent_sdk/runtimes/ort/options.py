"""How sessions of ONNX Runtime are set up, and opened."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final

import onnxruntime as ort

from agent_sdk.cancel import cancelling, check

CPU: Final = "CPUExecutionProvider"
LEVELS: Final = (
    ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
)
"""How much to optimise; the next is tried where the runtime fails on its own rewriting."""
QUIET: Final = 3
"""The runtime logs errors, and no warnings."""
SPINS: Final[Mapping[str, str]] = {"intra_op.spin_duration_us": "200"}
"""How long a worker polls for the next kernel before it sleeps: longer than any gap inside a run."""


def options(
    threads: int, entries: Mapping[str, str], level: ort.GraphOptimizationLevel = LEVELS[0]
) -> ort.SessionOptions:
    """Options for so many threads; ``entries`` of the session's configuration without their common beginning."""
    made = ort.SessionOptions()
    made.intra_op_num_threads, made.graph_optimization_level, made.log_severity_level = threads, level, QUIET
    for name, value in entries.items():
        made.add_session_config_entry(f"session.{name}", value)
    return made


@contextmanager
def cancellable(own: ort.SessionOptions) -> Iterator[None]:
    """Have sessions that are opened with these options end loading once the work is cancelled: NotWantedError."""
    try:
        with cancelling(partial(own.set_load_cancellation_flag, True)):
            yield
    except Exception:
        check()
        raise


def opened(source: bytes | str, own: ort.SessionOptions, provider: str = CPU) -> ort.InferenceSession:
    """A session of a network. Raises what the runtime raises, which are classes of its own, or NotWantedError."""
    with cancellable(own):
        return ort.InferenceSession(source, own, providers=[provider], enable_fallback=0)

"""When a plan starts each piece of work: offsets of keys at the arbiter."""

from __future__ import annotations

import numpy as np

from agent_sdk.engine.program import Program, ProgramSegment


def starts_ns(program: Program) -> tuple[np.ndarray, ...]:
    """Per lane and piece of work when the plan starts it, nanoseconds from the start of the plan."""
    end = max((own.finish_us for own in program.segments), default=0.0)
    found = []
    for row in program.by_lane:
        at, keys = end, []
        for work in reversed(row):  # what only copies is as urgent as what follows it in its queue
            at = work.start_us if isinstance(work, ProgramSegment) else at
            keys.append(round(at * 1e3))
        found.append(np.array(keys[::-1], np.int64))
    return tuple(found)

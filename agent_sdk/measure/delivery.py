"""What lies between the work of a run and its caller: the engine's own beginning and end, and copies of the outputs.

A network's work leaves the caches full of its own tensors, so both take several times as long as over and over by
themselves; they are read off runs of the network. The planner charges them as the way of outputs to the host.
"""

from __future__ import annotations

from collections.abc import Iterable

from agent_sdk.engine.trace import Trace
from hope_schema import HOST, TensorType


def deliveries(trace: Trace) -> Iterable[tuple[TensorType, str, float]]:
    """Of every output that some processor makes: its type, the place it stands in, and microseconds to the caller.

    Each is there once the engine's own work is done and its copy made: by its bytes, of what all of them took.
    """
    program = trace.program
    work = [span for span in trace.spans if span.kind != "wait"]
    lanes_us = max(span.end_us for span in work) - min(span.start_us for span in work)
    own_us = max(0.0, trace.total_us - trace.load_us - trace.store_us - lanes_us)
    made = {name: program.graph.tensor[name].type for name in program.graph.outputs if name in program.home}
    total = sum(kind.bytes for kind in made.values())
    for name, kind in made.items():
        home = program.home[name]
        place = HOST if home == HOST else program.processors[home].spec.place
        if place != HOST:
            yield kind, place, own_us + trace.store_us * kind.bytes / max(1, total)

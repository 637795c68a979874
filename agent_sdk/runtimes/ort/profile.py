"""Latencies of super-ops from ONNX Runtime's own profiler, run on the whole frozen graph."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime as ort

from agent_sdk.errors import OutOfMemory
from agent_sdk.machine.timing import Timing
from agent_sdk.model import Model
from agent_sdk.runtimes.attribution import share_out
from agent_sdk.runtimes.ort.graph import FrozenGraph


def kernel_times(session: ort.InferenceSession) -> dict[str, list[float]]:
    """End a session's profiling: frozen node name to microseconds of each run. The trace file is removed.

    Raises OutOfMemory where the disk had no room for all of it, which the runtime does not notice.
    """
    path = Path(session.end_profiling())
    try:
        events = json.loads(path.read_bytes())
    except ValueError as error:
        raise OutOfMemory(f"the trace '{path}' is cut off: {error}; make room on its disk") from error
    finally:
        path.unlink(missing_ok=True)
    found: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            found[event["name"].removesuffix("_kernel_time")].append(float(event["dur"]))
    return found


def attribute(model: Model, frozen: FrozenGraph, kernels: Mapping[str, Sequence[float]]) -> dict[str, Timing]:
    """Latencies by super-op id from kernel times by frozen node name.

    A change of layout belongs to the op that wants or makes the plain tensor. Super-ops that no kernel covers (ops
    that were dropped) are absent.
    """
    covered = {node.name: _covered(frozen, index) for index, node in enumerate(frozen.kernels)}
    return share_out(model, {name: kernels[name] for name in covered if kernels.get(name)}, covered)


def _covered(frozen: FrozenGraph, index: int) -> list[str]:
    node = frozen.kernels[index]
    graph = frozen.source
    if node.op_type == "ReorderInput":
        meaning = frozen.meaning.get(node.input[0])
        producer = graph.producer.get(meaning[0]) if meaning else None
        return [producer] if producer else _next(frozen, index)
    if node.op_type == "ReorderOutput":
        return _next(frozen, index)
    meaning = frozen.meaning.get(node.output[0])
    if meaning is None:
        return _next(frozen, index)
    stops = {frozen.meaning[name][0] for name in frozen.inputs_of(node) if name in frozen.meaning}
    covered: list[str] = []
    stack, seen = [meaning[0]], set()
    while stack:
        klass = stack.pop()
        producer = graph.producer.get(klass)
        if producer is None or producer in seen or (klass in stops and klass != meaning[0]):
            continue
        seen.add(producer)
        covered.append(producer)
        stack += [frozen.class_of[name] for name in graph.op[producer].inputs]
    return covered


def _next(frozen: FrozenGraph, index: int) -> list[str]:
    """The source ops of the first kernel that reads what this one writes; of its own tensor if nobody does."""
    node = frozen.kernels[index]
    for reader in frozen.readers.get(node.output[0], ()):
        if frozen.kernels[reader].op_type not in ("ReorderInput", "ReorderOutput"):
            return _covered(frozen, reader)
    meaning = frozen.meaning.get(node.output[0])
    producer = frozen.source.producer.get(meaning[0]) if meaning else None
    return [producer] if producer else []

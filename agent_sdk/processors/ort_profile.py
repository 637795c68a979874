"""Latencies of super-ops from ONNX Runtime's own profiler, run on the whole frozen graph."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnxruntime as ort

from agent_sdk.processors.ort_graph import FrozenGraph
from agent_sdk.processors.work import work
from agent_sdk.timing import Timing, scaled
from hope_schema import SuperOp


def kernel_times(session: ort.InferenceSession) -> dict[str, list[float]]:
    """End a session's profiling: frozen node name to microseconds of each run. The trace file is removed."""
    path = Path(session.end_profiling())
    try:
        events = json.loads(path.read_bytes())
    finally:
        path.unlink(missing_ok=True)
    found: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            found[event["name"].removesuffix("_kernel_time")].append(float(event["dur"]))
    return found


def profile_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder for trace files, which the runtime can only write to disk."""
    return tempfile.TemporaryDirectory(prefix="hope-profile-")


def attribute(
    frozen: FrozenGraph, super_ops: Sequence[SuperOp], kernels: Mapping[str, Sequence[float]], whole: Timing
) -> dict[str, Timing]:
    """Share kernel times out to super-ops, scaled so that together they make the whole network's latency.

    A kernel that covers parts of several super-ops is shared in proportion to their work. A change of layout
    belongs to the op that wants or makes the plain tensor. Super-ops that no kernel covers (twins that were merged,
    ops that were dropped) are absent.
    """
    home = {op.id: super_op for super_op in super_ops for op in super_op.ops}
    runs = min((len(times) for times in kernels.values()), default=0)
    if runs == 0:
        return {}
    totals: dict[str, list[float]] = {}
    for index, node in enumerate(frozen.nodes):
        times = list(kernels.get(node.name, ()))[-runs:]
        if not times:
            continue
        weights = {home[op].id: 0.0 for op in _covered(frozen, index)}
        if not weights:
            continue
        for op in _covered(frozen, index):
            weights[home[op].id] += work(frozen.source, frozen.source.op[op])
        total = sum(weights.values())
        for name, weight in weights.items():
            part = totals.setdefault(name, [0.0] * runs)
            for run, us in enumerate(times):
                part[run] += us * weight / total
    return scaled(totals, whole.us)


def _covered(frozen: FrozenGraph, index: int) -> list[str]:
    """The source ops that a frozen node computes."""
    node = frozen.nodes[index]
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
    node = frozen.nodes[index]
    for reader in frozen.readers.get(node.output[0], ()):
        if frozen.nodes[reader].op_type not in ("ReorderInput", "ReorderOutput"):
            return _covered(frozen, reader)
    meaning = frozen.meaning.get(node.output[0])
    producer = frozen.source.producer.get(meaning[0]) if meaning else None
    return [producer] if producer else []

"""What runs beside what inside one CUDA graph: a replay, kernel by kernel, as a trace that Perfetto opens."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from agent_sdk.explain.perfetto import lines_of


def traced_streams(launch: Callable[[], object], to: Path) -> dict[str, float]:
    """Record one replay, write its trace, and say how busy it was.

    A graph's nodes have no streams any more: a kernel stands on the first line that is free when it starts.

    Returns:
        ``kernels``, how many; ``at_once``, the most at one time; ``busy``, the mean number at work.
    """
    for _ in range(3):
        launch()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        launch()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "replay.json"
        profiled.export_chrome_trace(str(raw))
        events = json.loads(raw.read_text())["traceEvents"]
    kernels = sorted(
        (e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")), key=lambda e: e["ts"]
    )
    if not kernels:
        return {}
    begin, end = kernels[0]["ts"], max(event["ts"] + event["dur"] for event in kernels)
    lines = lines_of([(event["ts"], event["ts"] + event["dur"]) for event in kernels])
    multiprocessors = torch.cuda.get_device_properties(0).multi_processor_count
    shown = [slice_of(event, line, begin, multiprocessors) for event, line in zip(kernels, lines, strict=True)]
    to.write_text(json.dumps({"traceEvents": shown, "displayTimeUnit": "ms"}))
    busy = sum(event["dur"] for event in kernels) / (end - begin)
    return {"kernels": len(kernels), "at_once": max(lines) + 1, "busy": round(busy, 3)}


def slice_of(event: dict[str, Any], line: int, begin: float, multiprocessors: int) -> dict[str, Any]:
    """A kernel with its blocks, their threads, and the part of the multiprocessors that have one where each has one."""
    name = str(event["name"]).removeprefix("void ").partition("(")[0].partition("<")[0]
    start, length = round(event["ts"] - begin, 3), round(event["dur"], 3)
    found = {"ph": "X", "pid": 0, "tid": line, "name": name, "cat": event["cat"], "ts": start, "dur": length}
    if "grid" in event["args"]:
        blocks, threads = (math.prod(event["args"][one]) for one in ("grid", "block"))
        share = round(min(1.0, blocks / multiprocessors), 2)
        found["args"] = {"blocks": blocks, "threads": threads, "share of multiprocessors": share}
    return found

"""ONNX Runtime's global pool in a process of its own: once it is set there, no session may have threads of its own.

Reads a line of JSON for each measurement, and answers with a line that holds the number.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import onnxruntime as ort

from agent_sdk.scheduling.mixes import Mix
from benchmarks.mixes import plain
from benchmarks.mixes.capacity import measured


class Pooled:
    """The process.

    Args:
        folder: where the inputs of the networks are handed over.
        feeds: by network.
    """

    def __init__(self, folder: Path, feeds: Mapping[str, plain.Feed]) -> None:
        self._files: dict[str, str] = {}
        for index, (model, feed) in enumerate(feeds.items()):
            self._files[model] = str(folder / f"feed{index}.npz")
            np.savez(self._files[model], allow_pickle=False, **feed)
        self._child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.mixes.pooled"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._child.kill()
        self._child.wait()

    def measured(
        self, mix: Mix, load: float | None, alone_ms: Mapping[str, float], seconds: float, probes: int
    ) -> float:
        """What ``capacity.measured`` says there."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        asked = [mix.model_dump_json(), load, dict(alone_ms), seconds, probes, self._files]
        self._child.stdin.write(json.dumps(asked) + "\n")
        self._child.stdin.flush()
        return float(self._child.stdout.readline())


def main() -> None:
    ort.set_global_thread_pool_sizes(len(os.sched_getaffinity(0)), 1)
    for line in sys.stdin:
        mix, load, alone_ms, seconds, probes, files = json.loads(line)
        feeds = {model: dict(np.load(file)) for model, file in files.items()}
        parsed = Mix.model_validate_json(mix)
        with ExitStack() as closing:
            ask = plain.asking(parsed, feeds, lambda model: (plain.onnxruntime(model, shared=True), 1), closing)
            print(measured(parsed, load, alone_ms, ask, seconds, probes), flush=True)


if __name__ == "__main__":
    main()

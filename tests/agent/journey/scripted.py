"""Stands in for executors whose times are known, which no real one's are."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from agent_sdk.engine import Executor
from agent_sdk.errors import ExecutionError, SegmentFailedError


@dataclass
class Scripted:
    """An executor that takes ``us``, times a factor after so many runs, and its own trace; it ``lives`` so many."""

    us: float
    fails: bool = False
    lives: float = math.inf
    raises: BaseException | None = None
    hangs: bool = False
    runs: int = 0
    alone: bool = True
    slow_down: tuple[int, float] = (0, 1.0)
    closed: bool = False
    timeouts: list[float | None] = field(default_factory=list)
    program: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(trusting=False))

    @property
    def total_us(self) -> float:
        """What a trace would say."""
        after, factor = self.slow_down
        return self.us * (factor if self.runs > after else 1.0)

    def run(
        self, inputs: dict[str, np.ndarray], *, into: object = None, timeout_s: float | None = None, turn: object = None
    ) -> tuple[dict[str, np.ndarray], Scripted]:
        """Answer, or fail as a dying processor does."""
        self.runs += 1
        self.timeouts.append(timeout_s)
        if self.fails or self.runs > self.lives or "bad" in inputs:
            raise SegmentFailedError("ov@0", 0, ("op",), RuntimeError("gone"))
        if self.raises is not None:
            raise self.raises
        return {"y": np.zeros(1)}, Scripted(self.total_us, alone=self.alone)

    def traced(self, inputs: dict[str, np.ndarray]) -> Scripted:
        """The record alone."""
        return self.run(inputs)[1]

    let_go = Executor.let_go

    def close(self) -> None:
        """Remember it; one that hangs cannot be freed."""
        self.closed = True
        if self.hangs:
            raise ExecutionError("a run of this session hangs")

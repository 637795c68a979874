"""When a run has its turn on the device: its keys at the arbiter, and who may end it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from agent_sdk.cancel import NEVER, Cancel
from agent_sdk.engine.executor import Executor
from agent_sdk.engine.ports import Outputs
from agent_sdk.engine.trace import Trace


@dataclass(frozen=True)
class Turn:
    """How a run stands at the device's arbiter.

    Attributes:
        key: the smallest goes first; None: the time of the call.
        by_start: whether the time at which the plan starts a segment is added to the key of each.
        cancel: ends the run at the next segment's border.
    """

    key: int | None = None
    by_start: bool = False
    cancel: Cancel = NEVER

    def run(
        self,
        executor: Executor,
        inputs: Mapping[str, np.ndarray],
        *,
        into: Mapping[str, np.ndarray],
        timeout_s: float | None,
    ) -> tuple[Outputs, Trace]:
        """Run an executor so; raises what ``Executor.run`` raises."""
        if self is NOW:
            return executor.run(inputs, into=into, timeout_s=timeout_s)
        offsets = executor.starts_ns if self.by_start else ()
        return executor.run(inputs, into=into, timeout_s=timeout_s, key=self.key, offsets=offsets, cancel=self.cancel)


NOW: Final = Turn()
"""First come, first served."""

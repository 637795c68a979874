"""How a run stands at the device's arbiter, and who may end it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from agent_sdk.cancel import NEVER, Cancel
from agent_sdk.engine.arbiter import Hold, check_key
from agent_sdk.engine.program import Program


@dataclass(frozen=True, slots=True)
class Turn:
    """Where the segments of a run stand. Raises InputError for a key that the arbiter cannot hold.

    Attributes:
        key: the smallest goes first; None: the time of the call, nanoseconds of the monotonic clock.
        offsets: what each piece of work adds to that, per lane an array of int64: ``Program.starts_ns``, for example.
        cancel: ends the run at the next segment's border.
        hold: what the calling thread holds already, and takes over from the run where it walks all of that.
        meanwhile: something to be done while a device computes, where one does: on any thread, briefly; again where
            somebody else has to answer.
    """

    key: int | None = None
    offsets: Callable[[Program], Sequence[np.ndarray]] | None = None
    cancel: Cancel = NEVER
    hold: Hold | None = None
    meanwhile: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            check_key(self.key)


NOW: Final = Turn()
"""First come, first served."""

"""How a run stands at the device's arbiter, and who may end it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from agent_sdk.cancel import NEVER, Cancel
from agent_sdk.engine.arbiter import Hold, check_key


@dataclass(frozen=True, slots=True)
class Turn:
    """Where the segments of a run stand. Raises InputError for a key that the arbiter cannot hold.

    Attributes:
        key: the smallest goes first; None: the time of the call, nanoseconds of the monotonic clock.
        by_start: whether each piece of work adds to that when the plan starts it (``Program.starts_ns``).
        cancel: ends the run at the next segment's border.
        hold: what the calling thread holds already, and takes over from the run where it walks all of that.
        meanwhile: something to be done while a device computes, where one does: on any thread, briefly; again where
            somebody else has to answer.
    """

    key: int | None = None
    by_start: bool = False
    cancel: Cancel = NEVER
    hold: Hold | None = None
    meanwhile: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        if self.key is not None:
            check_key(self.key)


NOW: Final = Turn()
"""First come, first served."""

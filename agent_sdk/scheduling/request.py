"""One run that is asked for, as policies see it: of which network, since when, until when. Times are nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from agent_sdk.scheduling.network import Network

Late = Literal["drop", "late", "degrade"]
"""What becomes of a run that cannot make its deadline: it is dropped before it starts, as soon as its expected end is
too late; it runs all the same; or a cheaper network runs, where there is one."""
ON_LATE: Final[tuple[Late, ...]] = get_args(Late)
PRIORITY: Final = 100
"""Priorities go from minus this to this."""
PATIENCE_NS: Final = 1_000_000_000
"""A run without a deadline counts as due so long after its release, and one that has waited longer goes first."""
_CLASS_NS: Final = 3600 * 1_000_000_000
"""A priority is worth an hour: in fact whoever has the higher one goes first."""


@dataclass(eq=False, slots=True)
class Request:
    """A run that was asked for.

    Attributes:
        network: what is to run; a cheaper one once it was degraded.
        number: its place in the order of arrival.
        release_ns: when it was asked for.
        deadline_ns: when its outputs are to be there; None where nobody says.
        priority: the highest goes first.
        on_late: what becomes of it where it cannot make its deadline.
        fits: whether its inputs are those that plans were made for.
        epoch_ns: when the round of a joint plan began that it belongs to; None where it follows none.
        run: which of its network's runs in that round it is.
        unit: the first unit that has not run.
        then: what is reserved for it behind the subgraph that it runs: processor and nanoseconds.
    """

    network: Network
    number: int
    release_ns: int
    deadline_ns: int | None = None
    priority: int = 0
    on_late: Late = "late"
    fits: bool = True
    epoch_ns: int | None = None
    run: int = 0
    unit: int = 0
    then: tuple[int, int] | None = None

    @property
    def due_ns(self) -> int:
        """Its deadline, or what counts as such."""
        return self.release_ns + PATIENCE_NS if self.deadline_ns is None else self.deadline_ns

    @property
    def patient_ns(self) -> int:
        """Until when it waits; from then on it has waited for too long."""
        return PATIENCE_NS + (self.release_ns if self.deadline_ns is None else self.deadline_ns)

    def ranked(self, ns: int) -> int:
        """A key at the arbiter: of equal priority the smallest goes first."""
        return ns - self.priority * _CLASS_NS

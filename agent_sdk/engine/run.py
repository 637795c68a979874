"""One run on its way: its flight, who walks its lanes, and what went wrong."""

from __future__ import annotations

from agent_sdk.engine.flight import Flight
from agent_sdk.engine.interrupt import DeferredInterrupts
from agent_sdk.engine.threads import LaneThread


class Run:
    """What belongs to one run alone.

    Attributes:
        flight: what it writes into.
        home: the lane that the caller serves; -1 for none.
        threads: what walks the other lanes.
        failures: what went wrong outside segments, first things first.
        abandoned: lanes left behind in a runtime that hangs; guarded by the executor's lock.
    """

    __slots__ = ("abandoned", "failures", "flight", "home", "interrupts", "threads")

    def __init__(self, flight: Flight, home: int, interrupts: DeferredInterrupts) -> None:
        self.flight = flight
        self.home = home
        self.interrupts = interrupts
        self.threads: dict[int, LaneThread] = {}
        self.failures: list[BaseException] = []
        self.abandoned: set[int] = set()

    def fail(self, error: BaseException) -> None:
        """End it: every lane at its next segment."""
        self.failures.append(error)
        self.flight.loop.stop()

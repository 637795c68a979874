"""What a network was loaded from, and how it is to be answered."""

from dataclasses import dataclass

from agent_sdk.journey.planfile import TravellingPlan
from agent_sdk.model import Content, Shapes


@dataclass(frozen=True)
class LoadOptions:
    """What ``Agent.load`` was given.

    Attributes:
        shown: what to call the network before it is read.
        given_name: its name, where it is not the one that the file gives.
        shapes: those that it was loaded with; None where none were given.
        deterministic: one answer for one input, to the bit, as long as the session lives.
        all_rivals: keep the whole model ready on every kind of processor.
        in_flight: runs that each contender has under way at once.
    """

    content: Content
    shown: str
    given_name: str | None
    shapes: Shapes | None = None
    deterministic: bool = False
    all_rivals: bool = False
    in_flight: int = 1
    travelling: TravellingPlan | None = None

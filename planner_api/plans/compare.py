"""Which plans rest on figures that moved. Runs in a child."""

import msgspec

from planner_api.compression import loaded
from planner_api.jobs.computing import Ask
from planner_api.models.figures import Figures
from planner_api.profiles.known import Known, differ


class Resting(msgspec.Struct):
    """A plan, the processors that it may use, and by the place in the order the figures that it rests on."""

    plan_id: str
    processors: tuple[str, ...] | None
    figures: tuple[int, ...]


class CompareOrder(msgspec.Struct):
    """Plans that rest on one older version of a profile, that version, if it is kept, and the newest; compressed.

    ``version`` is the newest; with ``more`` there are plans that are compared after these.
    """

    before: bytes | None
    after: bytes
    plans: tuple[Resting, ...]
    figures: tuple[bytes, ...]
    threshold: float
    version: int
    more: bool


def compare(order: CompareOrder, _ask: Ask) -> list[str]:
    """Return the ids of the plans that rest on figures that moved, or that nobody knows any more."""
    if order.before is None:
        return [plan.plan_id for plan in order.plans]
    before, after = Known.read(order.before), Known.read(order.after)
    figures = [loaded(Figures, body) for body in order.figures]
    return [
        plan.plan_id
        for plan in order.plans
        if any(differ(before, after, figures[n], plan.processors, order.threshold) for n in plan.figures)
    ]

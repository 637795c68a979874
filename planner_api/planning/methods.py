"""The one table of methods: functions of one signature, ``(problem, budget) -> Solution``.

A method of your own is such a function. Name it where a method is asked for, as ``package.module:name``
(``python -m benchmarks.phones DIR --methods auto,mine:solve``), or put it into the table under a short name:

    METHODS["mine"] = Method("mine:solve", at_once=False)

What it returns is timed and proven legal like every other plan: build its schedule with `judge.simulator.simulate`
from a placement and an order.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hope_schema import Cut
from planner_api.planning.budget import Budget
from planner_api.planning.judge.simulator import Expected, Schedule
from planner_api.planning.problem import PlanningError, Problem

Feature = Literal["shares", "queues", "neighbours", "jobs"]
"""What a problem may have beyond HOPE's: ops that leave room beside them, channels with queues, ops that slow each
other, jobs that are released or due. That its ops may be cut binds nobody: who does not cut leaves them whole."""
EVERYTHING: frozenset[Feature] = frozenset({"shares", "queues", "neighbours", "jobs"})


@dataclass(frozen=True)
class Bound:
    """A proven lower bound on every schedule's value, in microseconds, and the argument that proves it."""

    us: float
    method: str


@dataclass(frozen=True)
class Solution:
    """A schedule and how it was found.

    ``rounds`` counts the search rounds spent; ``bound`` is what the method proved on its way, if it did.
    Where ops were cut, ``cuts`` says which, and the schedule is of ``cut``, the problem that they make; so it is where
    ops take further recipes.
    ``expected`` is what it takes in the mean, where runs are not alike and that has been asked.
    """

    schedule: Schedule
    method: str
    notes: tuple[str, ...] = ()
    rounds: int = 0
    bound: Bound | None = None
    cuts: tuple[Cut, ...] = ()
    cut: Problem | None = None
    expected: Expected | None = None

    @property
    def value_us(self) -> float:
        """What is minimised, in the mean."""
        return self.schedule.value_us if self.expected is None else self.expected.value_us

    @property
    def makespan_us(self) -> float:
        """When the last job is done, in the mean."""
        return self.schedule.makespan_us if self.expected is None else self.expected.makespan_us


Solve = Callable[[Problem, Budget], Solution]
"""A method. It raises PlanningError where it finds no plan, because an op cannot get its inputs where it can run."""


class UnknownMethod(PlanningError):
    """A method that no solver implements; the message lists those that exist."""


@dataclass(frozen=True)
class Method:
    """A method: where it stands, whether it answers at once, what it can serve, whether it cuts ops, or brings a bound.

    Methods that plan for a simpler machine serve what they may ignore: the simulator charges it.
    """

    entry: str
    at_once: bool = True
    serves: frozenset[Feature] = EVERYTHING
    cuts: bool = False
    proves: bool = False


_HERE = "planner_api.planning"
METHODS: dict[str, Method] = {
    "single": Method(f"{_HERE}.construct.single:solve"),
    "heft": Method(f"{_HERE}.construct.earliest:heft"),
    "grain": Method(f"{_HERE}.construct.earliest:grain"),
    "dmdar": Method(f"{_HERE}.construct.ready:dmdar"),
    "greedy": Method(f"{_HERE}.construct.greedy:solve"),
    "earliest_deadline": Method(f"{_HERE}.construct.ready:earliest_deadline"),
    "least_slack": Method(f"{_HERE}.construct.ready:least_slack"),
    "mosaic": Method(f"{_HERE}.construct.mosaic:mosaic", serves=frozenset({"neighbours"})),
    "codl": Method(f"{_HERE}.construct.codl:solve", serves=frozenset({"neighbours"}), cuts=True),
    "partitiontuner": Method(f"{_HERE}.construct.mosaic:partitiontuner", serves=frozenset({"neighbours"})),
    "one_host": Method(f"{_HERE}.construct.single:one_host"),
    "hpa": Method(f"{_HERE}.construct.tiers:hpa"),
    "neurosurgeon": Method(f"{_HERE}.construct.tiers:neurosurgeon"),
    "dads": Method(f"{_HERE}.construct.tiers:dads"),
    "vsm": Method(f"{_HERE}.construct.vsm:solve", cuts=True),
    "ilp": Method(f"{_HERE}.ilp:solve", at_once=False, serves=frozenset({"queues", "neighbours"})),
    "auto": Method(f"{_HERE}.auto:solve", at_once=False, cuts=True, proves=True),
}
"""Every method by name; imported on first use."""


def method(name: str) -> Method:
    """The method of a name of the table, or of an entry ``package.module:function``.

    Raises:
        UnknownMethod: there is none.
    """
    if name in METHODS:
        return METHODS[name]
    if ":" in name.strip(":"):
        return Method(name, at_once=False)
    raise UnknownMethod(f"there is no method '{name}': choose one of {', '.join(METHODS)}, or MODULE:FUNCTION")


def features(problem: Problem) -> frozenset[Feature]:
    """What a problem has beyond HOPE's."""
    machine = problem.machine
    found: list[Feature] = []
    if problem.share is not None:
        found.append("shares")
    if machine.queues:
        found.append("queues")
    if (machine.slowdown > 1.0).any():
        found.append("neighbours")
    if len(problem.jobs) > 1 or problem.objective == "lateness" or problem.jobs[0].release_us > 0:
        found.append("jobs")
    return frozenset(found)


def solve(problem: Problem, name: str, budget: Budget) -> Solution:
    """Solve a problem by a named method.

    Raises:
        UnknownMethod: no solver has that name.
        PlanningError: the method cannot serve the problem, or finds no legal plan.
    """
    chosen = method(name)
    missing = features(problem) - chosen.serves
    if missing:
        raise PlanningError(f"{name} knows nothing of {' and '.join(sorted(missing))}")
    module, _, function = chosen.entry.partition(":")
    try:
        implementation: Solve = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        if name in METHODS:
            raise
        raise UnknownMethod(f"there is no method '{name}': {error}") from error
    return implementation(problem, budget)

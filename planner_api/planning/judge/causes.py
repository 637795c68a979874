"""Why each op is where it is: one cause per step of a plan."""

import math
from collections.abc import Sequence

from hope_schema import Cause
from planner_api.planning.judge.simulator import Schedule
from planner_api.planning.problem import Problem


def causes(problem: Problem, schedule: Schedule) -> list[Cause]:
    """The cause of each op's placement.

    An op that is slower where it is than on its fastest processor avoids transfers when its latency plus the
    transfers that hang on its place (with every other op left where it is, cached tensors free) would be no
    lower there; otherwise it is a parallel branch: it gives way to other work.
    """
    return [_cause(problem, schedule, op) for op in range(len(problem.ops))]


def next_best(latency_us: Sequence[float], here: int, kinds: Sequence[str]) -> tuple[int, float] | None:
    """Where an op could run instead of here, and how long it takes there: processors of the same kind come last."""
    others = [p for p, us in enumerate(latency_us) if p != here and us < math.inf]
    if not others:
        return None
    best = min(others, key=lambda p: (kinds[p] == kinds[here], latency_us[p], p))
    return best, float(latency_us[best])


def _cause(problem: Problem, schedule: Schedule, op: int) -> Cause:
    row = problem.lists.latency[op]
    here = schedule.assignment[op]
    if sum(us < math.inf for us in row) == 1:
        return Cause.ONLY_SUPPORTED
    fastest = min(row)
    if row[here] == fastest:
        return Cause.FASTER
    elsewhere = min(us + _moves(problem, schedule, op, there) for there, us in enumerate(row) if us == fastest)
    return (
        Cause.AVOIDS_TRANSFER if row[here] + _moves(problem, schedule, op, here) <= elsewhere else Cause.PARALLEL_BRANCH
    )


def _moves(problem: Problem, schedule: Schedule, op: int, place: int) -> float:
    """Transfers in microseconds that exist only because ``op`` runs at ``place``."""
    lists, assignment, host = problem.lists, schedule.assignment, problem.host
    total = 0.0
    for tensor in lists.reads[op]:
        producer = lists.producer[tensor]
        source = assignment[producer] if producer >= 0 else host
        if source != place and not any(assignment[r] == place for r in lists.readers[tensor] if r != op):
            total += float(problem.crossing_us(tensor)[source, place])
    for tensor in lists.writes[op]:
        targets = {assignment[reader] for reader in lists.readers[tensor]}
        if problem.is_output[tensor]:
            targets.add(host)
        total += float(problem.crossing_us(tensor)[place, sorted(targets - {place})].sum())
    return total

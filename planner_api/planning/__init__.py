"""Pure planning: problem, simulator, solvers, bounds. No HTTP, no SQL, no clock but a budget.

``plan`` does all of it; the other names are the parts that it is made of.
"""

from __future__ import annotations

from collections.abc import Sequence

from hope_schema import Method, ModelGraph, Plan, Profile
from planner_api.planning.assemble import assemble
from planner_api.planning.judge.checker import IllegalSchedule, check
from planner_api.planning.judge.simulator import Move, Schedule, simulate
from planner_api.planning.optimise import Outcome, optimise
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.problem.build import build_problem
from planner_api.planning.solver import Bound, Budget, Solution, UnknownMethod

__all__ = [
    "Bound",
    "Budget",
    "IllegalSchedule",
    "Move",
    "Outcome",
    "PlanningError",
    "Problem",
    "Schedule",
    "Solution",
    "UnknownMethod",
    "build_problem",
    "check",
    "optimise",
    "plan",
    "simulate",
]


def plan(
    graph: ModelGraph,
    profile: Profile,
    *,
    processors: Sequence[str] | None = None,
    method: Method = "auto",
    budget_s: float = 5.0,
    seed: int = 0,
    rounds: int | None = None,
) -> Plan:
    """Plan a model on a SoC.

    Args:
        graph: the model.
        profile: the figures of one SoC at one frequency.
        processors: ids of the candidate processors; None takes all that the profile knows.
        method: ``auto`` (the portfolio), ``ilp`` (HOPE's own route), ``greedy`` or ``partitiontuner`` (at once).
        budget_s: seconds that ``auto`` and ``ilp`` may take; 0 answers with the first plan.
        seed: of the search.
        rounds: count work instead of time; the body is then the same, byte for byte, for the same inputs.

    Raises:
        PlanningError: no plan exists, or a figure, a name or a budget makes no sense; the message names it.
    """
    budget = Budget(budget_s, rounds, seed)
    problem = build_problem(graph, profile, processors)
    return assemble(graph, profile, problem, optimise(problem, method, budget))

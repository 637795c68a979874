"""Pure planning: problem, judge, methods, bounds. No HTTP, no SQL, no clock but a budget.

``plan`` does all of it; the other names are the parts that it is made of.
"""

from collections.abc import Sequence

from hope_schema import ModelGraph, Plan, Profile
from hope_schema.plan import CUTTING
from planner_api.planning.again import begun_with
from planner_api.planning.assemble import assemble
from planner_api.planning.budget import Budget
from planner_api.planning.judge.checker import IllegalSchedule, check
from planner_api.planning.judge.simulator import Move, Schedule, simulate
from planner_api.planning.methods import Bound, Solution, UnknownMethod
from planner_api.planning.optimise import Outcome, optimise
from planner_api.planning.periods import check_periods, unrolled
from planner_api.planning.problem import Job, Machine, Objective, PlanningError, Problem
from planner_api.planning.problem.build import build_problem


def plan(
    graphs: ModelGraph | Sequence[ModelGraph],
    profile: Profile,
    *,
    processors: Sequence[str] | None = None,
    method: str = "auto",
    jobs: Sequence[Job] | None = None,
    objective: Objective = "makespan",
    budget_s: float = 5.0,
    seed: int = 0,
    rounds: int | None = None,
    after: Plan | None = None,
) -> Plan:
    """Plan a model, or several together, on a SoC.

    Args:
        graphs: the model, or one per job.
        profile: the figures of one SoC at one frequency.
        processors: ids of the candidate processors; None takes all that the profile knows.
        method: a name of ``methods.METHODS``, ``auto`` for the best that the budget buys, or ``package.module:solve``.
        jobs: release, period, deadline and weight of each model; None: all at once, nothing due.
        objective: ``makespan`` (when the last is done), ``lateness`` (of the one that is latest) or ``throughput``
            (when the last is done, of as many runs as the periods have, where none waits for its release).
        budget_s: seconds that methods which do not answer at once may take; 0 answers with the first plan.
        seed: of the search.
        rounds: count work instead of time; the body is then the same, byte for byte, for the same inputs.
        after: an earlier plan of the same networks, which ``auto`` begins with.

    Raises:
        PlanningError: no plan exists, or a figure, a name or a budget makes no sense; the message names it.
    """
    budget = Budget(budget_s, rounds, seed)
    networks = (graphs,) if isinstance(graphs, ModelGraph) else tuple(graphs)
    if jobs is not None and len(jobs) != len(networks):
        raise PlanningError(f"{len(networks)} networks for {len(jobs)} jobs")
    runs = unrolled(jobs or (Job(),) * len(networks), objective)
    networks = tuple(networks[network] for network, _ in runs)
    problem = build_problem(networks, profile, processors, [job for _, job in runs], objective, cut=method in CUTTING)
    check_periods(problem)
    if after is not None:
        problem = begun_with(after, problem)
    return assemble(networks, profile, problem, optimise(problem, method, budget))

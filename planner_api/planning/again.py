"""Planning again where figures have changed: an earlier plan is a start, and what has left its band is searched first.

D3 re-plans locally when a layer's time or a bandwidth leaves its band. A plan says what it was made with: how long each
step takes alone, and each move. So what has changed is read off the plan, and the search's windows lie around it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from graphlib import CycleError
from itertools import pairwise
from typing import Final

import numpy as np

from hope_schema import Cut, Plan, Step
from hope_schema.cutting import CutError
from planner_api.planning.bound import quick_bound
from planner_api.planning.budget import Budget
from planner_api.planning.judge.simulator import Schedule, in_start_order, simulate
from planner_api.planning.methods import Solution
from planner_api.planning.problem import Earlier, PlanningError, Problem, Recipe, called
from planner_api.planning.problem.cuts import cut_problem
from planner_api.planning.problem.order import ordered
from planner_api.planning.problem.recipes import by_recipes
from planner_api.planning.search.replays import settled
from planner_api.planning.search.search import Search

BAND: Final = 0.1
"""Relative change of a latency or a move beyond which it is planned anew."""
METHOD: Final = "plan update"
"""What a plan says that found it where nothing better than an earlier one was found."""
SHARE: Final = 0.1
"""Part of the budget for what has changed."""


def begun_with(plan: Plan, problem: Problem) -> Problem:
    """The problem with an earlier plan of it to begin with; as it is where the plan is no start for it."""
    jobs = range(len(plan.jobs))
    cuts = tuple(
        cut.model_copy(update={"op": called(cut.op, job, len(jobs))}) for job in jobs for cut in plan.jobs[job].cuts
    )
    try:
        recipes = () if cuts else _recipes(plan, problem)
        made = _remade(problem, cuts, recipes)
        schedule = schedule_of(plan, made)
    except PlanningError:
        return problem
    return replace(problem, earlier=Earlier(schedule.assignment, schedule.sequence, changed(plan, made), recipes, cuts))


def _remade(problem: Problem, cuts: Sequence[Cut], recipes: Sequence[Recipe]) -> Problem:
    """The problem with its ops in parts, or by recipes, as a plan has them. Raises PlanningError."""
    if not cuts:
        return by_recipes(problem.whole, recipes)
    if not {cut.op for cut in cuts} <= {*problem.cutter.shapes}:  # ops by what they make, and inputs
        raise PlanningError("the plan cuts ops that stay whole here")
    try:
        return cut_problem(problem, cuts)[0]
    except CutError as error:
        raise PlanningError(f"the plan cuts ops as they cannot be cut here: {error}") from error


def _recipes(plan: Plan, problem: Problem) -> tuple[Recipe, ...]:
    """The further recipes that a plan's ops take, as far as there still are such."""
    taken = {(op, step.processor, step.recipe) for op, step in enumerate(_steps(plan, problem))}
    names = problem.processors
    return tuple(one for one in problem.recipes if (one.op, names[one.processor], one.number) in taken)


def schedule_of(plan: Plan, problem: Problem) -> Schedule:
    """The schedule that a plan describes, timed with the figures of the problem that its cuts make.

    Raises:
        PlanningError: the plan is of other networks or processors.
    """
    turn = {step: position for position, step in enumerate(plan.order)}
    steps = _steps(plan, problem)
    for step in steps:
        if step.processor not in problem.processors:
            raise PlanningError(f"the plan uses '{step.processor}', which is no candidate here")
    home = [problem.processors.index(step.processor) for step in steps]
    by_start = sorted(range(len(home)), key=lambda op: (steps[op].start_us, turn[steps[op].id]))
    try:
        found = [simulate(problem, home, order) for order in (by_start, _sequence(plan, problem, home, by_start))]
    except ValueError as error:
        raise PlanningError(f"the plan is of another network: {error}") from error
    return in_start_order(problem, min(found, key=lambda schedule: schedule.value_us))


def _sequence(plan: Plan, problem: Problem, home: Sequence[int], by_start: Sequence[int]) -> Sequence[int]:
    """The order in which ops were placed: a queue carries moves in that of their first readers, not of their starts."""
    machine, lists = problem.machine, problem.lists
    rank = {op: turn for turn, op in enumerate(by_start)}
    before = {op: {*earlier} for op, earlier in enumerate(lists.before)}
    for resource in range(machine.uses.shape[1] if problem.share is None else 0):
        for one, other in pairwise(op for op in by_start if machine.uses[home[op], resource]):
            before[other].add(one)
    tensors = _by_name(problem, problem.tensors)
    places = {name: place for place, name in enumerate(machine.places)}
    owner = np.arange(len(places)) if machine.owner is None else machine.owner
    carried: dict[str, list[int]] = {}
    for move in plan.transfers:
        if move.over and move.target in places:
            tensor, there = tensors[move.job, move.tensor], owner[places[move.target]]
            readers = [op for op in lists.readers[tensor] if owner[machine.place[home[op]]] == there]
            first = min(readers, key=rank.__getitem__, default=lists.producer[tensor])
            carried.setdefault(move.over, []).append(first)
    for ops in carried.values():
        for one, other in pairwise(ops):
            if one != other and min(one, other) >= 0:
                before[other].add(one)
    try:
        return ordered(before, key=rank.__getitem__)
    except CycleError:
        return by_start


def _steps(plan: Plan, problem: Problem) -> list[Step]:
    """The last step of each op of the problem. Raises PlanningError where the plan is of other ops or tensors."""
    found, ops = {(step.job, step.ops[-1]): step for step in plan.steps}, _by_name(problem, problem.ops)
    moved = {(move.job, move.tensor) for move in plan.transfers}
    if not (found.keys() >= ops.keys() and moved <= _by_name(problem, problem.tensors).keys()):
        raise PlanningError("the plan is of other networks")
    return [found[op] for op in ops]


def _by_name(problem: Problem, names: Sequence[str]) -> dict[tuple[int, str], int]:
    """Ops or tensors by network and name there, as in a plan; slices and joins also name what they are for."""
    if len(problem.jobs) == 1:
        return {(0, name): index for index, name in enumerate(names)}
    parted = ((name.partition(":")[::2], index) for index, name in enumerate(names))
    return {(int(job), own.replace(f">{job}:", ">")): index for (job, own), index in parted}


def changed(plan: Plan, problem: Problem) -> frozenset[int]:
    """Ops whose latency where they are, or a move of what they read or make, is not what the plan was made with."""
    ops: set[int] = set()
    for op, step in enumerate(_steps(plan, problem)):
        here = problem.processors.index(step.processor)
        apart = problem.in_parts is not None and problem.in_parts[op, here]  # then its time is spread over its steps
        if not apart and step.alone_us is not None and _left_band(step.alone_us, float(problem.latency_us[op, here])):
            ops.add(op)
    places = {name: place for place, name in enumerate(problem.machine.places)}
    tensors = _by_name(problem, problem.tensors)
    for move in plan.transfers:
        if move.source not in places or move.target not in places:
            continue
        tensor = tensors[move.job, move.tensor]
        us = float(problem.transfer_us[tensor, places[move.source], places[move.target]])
        if _left_band(move.finish_us - move.start_us, us):
            ops |= set(problem.lists.readers[tensor]) | {problem.lists.producer[tensor]} - {-1}
    return frozenset(ops)


def _left_band(planned_us: float, us: float) -> bool:
    return abs(us - planned_us) > BAND * max(planned_us, 1.0)


def solve(problem: Problem, budget: Budget) -> Solution:
    """An earlier plan with what has changed, and what is around it, planned anew in a small part of the budget."""
    earlier = problem.earlier
    if earlier is None:
        raise PlanningError("there is no earlier plan")
    problem = _remade(problem, earlier.cuts, earlier.recipes)
    made = problem if earlier.cuts or earlier.recipes else None
    begun = in_start_order(problem, simulate(problem, earlier.assignment, earlier.sequence))
    if math.isinf(begun.value_us):
        raise PlanningError("the earlier plan is no longer possible")
    if not earlier.changed or budget.left() <= 0 or budget.rounds == 0:
        return Solution(begun, METHOD, cuts=earlier.cuts, cut=made)
    search = Search(problem, begun, budget.seed, near=earlier.changed)
    search.run(budget.part(SHARE), quick_bound(problem).us)
    found = search.found(METHOD)
    found = replace(found, cuts=earlier.cuts, cut=found.cut or made)
    plans = replace(found, schedule=begun, cut=made), found
    return min((settled(problem, one) for one in plans), key=lambda one: one.value_us)

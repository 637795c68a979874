"""The search for cuts: CoDL's, or the heaviest ops cut, whichever is best; then one small change after another.

Which ops, which axis, which processors and where between them is chosen by one judge, the simulator, together with
placement and order: after each change of cuts the annealing has a few turns where the change is.
"""

from __future__ import annotations

import math
import random
from contextlib import suppress
from dataclasses import replace

from hope_schema import Cut
from hope_schema.cutting import CutError
from planner_api.planning.budget import Budget
from planner_api.planning.judge.simulator import Schedule, simulate
from planner_api.planning.problem import PlanningError, Problem
from planner_api.planning.problem.cuts import TENTHS, cut_problem
from planner_api.planning.search.search import Search
from planner_api.planning.split.choices import Choices, Team, choices_of
from planner_api.planning.split.codl import planned
from planner_api.planning.split.plan import CutPlan, Cuts, carried

HEAVIEST = (8, 32, 10_000)
"""So many of the heaviest ops are cut to start from."""
CODL_SHARE = 0.5
"""Part of what is left of the budget for CoDL's, whose formula is asked of every pair of processors."""
TURNS = 30
"""Turns of annealing for each start,"""
TURNS_NEAR = 4
"""and where a change of cuts is."""
STALE = 60
"""Changes without progress after which no more are made; half as many where no start was better than whole ops."""
WARMTH = 0.002
"""Relative worsening that is taken with probability 1/e at the beginning; none at the end."""
MOST_AT_ONCE = 4
"""Neighbouring ops that one change is about."""


def search_cuts(problem: Problem, whole: Schedule, budget: Budget) -> CutPlan:
    """The best plan with cuts that the budget buys, or the one without that it starts from.

    A budget of rounds counts changes of cuts.
    """
    choices = choices_of(problem)
    plain = _plain(problem, whole)
    starts = [plain]
    with suppress(PlanningError):
        share = budget.within(CODL_SHARE * min(budget.seconds, budget.left()))
        starts.append(_annealed(planned(problem, share)[0], budget))
    for count in HEAVIEST:
        for axes, chained in (((2, 1), True), ((2, 1), False), ((1, 2), False)):
            if budget.left() > 0.5 * budget.seconds or budget.rounds is not None:
                starts.append(_heaviest(choices, plain, count, axes, budget, chained=chained))
    best = min(starts, key=lambda plan: plan.schedule.value_us)
    return _improve(choices, best, budget, STALE if best.cuts else STALE // 2)


def _plain(problem: Problem, schedule: Schedule) -> CutPlan:
    """A plan without cuts in the order in which cutting lists ops."""
    cut, made = cut_problem(problem, ())
    old = {name: op for op, name in enumerate(problem.ops)}
    order = [old[piece.op] for piece in made]
    new = {op: place for place, op in enumerate(order)}
    home = [schedule.assignment[op] for op in order]
    return CutPlan({}, cut, made, simulate(cut, home, [new[op] for op in schedule.sequence]))


def _heaviest(
    choices: Choices, plain: CutPlan, count: int, axes: tuple[int, ...], budget: Budget, *, chained: bool
) -> CutPlan:
    """The heaviest ops cut for their best pairs, along the first of the axes that they allow.

    With ``chained`` an op behind others that are cut is cut as the first of them, and computes what it needs itself.
    """
    heavy = set(sorted(choices.axes, key=lambda op: -choices.fastest[choices.index[op]])[:count])
    cuts: dict[str, Cut] = {}
    homes: dict[str, Team] = {}
    for op in choices.axes:
        if op not in heavy:
            continue
        axis = next((axis for axis in axes if axis in choices.axes[op]), choices.axes[op][0])
        follows = chained and axis == axes[0] and _may_chain(choices, cuts, op, axis)
        model = choices.before[op][0] if follows else op
        team = homes[model] if follows else choices.teams[op][0]
        cut = choices.cut(op, axis, choices.shares_of(cuts[model]) if follows else choices.shares(op, team), follows)
        if cut is not None:
            cuts[op], homes[op] = cut, team
    _unchain(choices, cuts)
    try:
        return _annealed(carried(choices.problem, cuts, homes, plain), budget)
    except CutError:  # a part of some op would be too small for those behind it
        return plain


def _annealed(plan: CutPlan, budget: Budget) -> CutPlan:
    search = Search(plan.problem, plan.schedule, budget.seed)
    for _ in range(TURNS if search.movable else 0):
        if budget.left() <= 0:
            break
        search.round()
    return replace(plan, schedule=search.schedule())


def _improve(choices: Choices, plan: CutPlan, budget: Budget, stale: int) -> CutPlan:
    """Change a few cuts at a time; a little worse is taken now and then, and the best is kept."""
    chance = random.Random(budget.seed)
    names = list(choices.axes)
    weights = [float(choices.fastest[choices.index[op]]) for op in names]
    best, made, last, left = plan, 0, 0, budget.left()
    while made - last < stale and (budget.left() > 0 if budget.rounds is None else made < budget.rounds):
        done = 1 - budget.left() / left if budget.rounds is None else made / budget.rounds
        made += 1
        first = names.index(chance.choices(names, weights)[0])
        chosen = names[first : first + chance.randint(1, MOST_AT_ONCE)]
        try:
            new = _changed(choices, plan, chosen, chance)
        except CutError:
            continue
        search = Search(new.problem, new.schedule, chance.getrandbits(30))
        near = [op for op, piece in enumerate(new.pieces) if piece.op in chosen and piece.kind in ("whole", "part")]
        for turn in range(TURNS_NEAR if search.movable else 0):
            search.round(op=near[turn * len(near) // TURNS_NEAR])
        new = replace(new, schedule=search.schedule())
        worse = new.schedule.value_us / max(plan.schedule.value_us, 1e-9) - 1
        if worse <= 0 or chance.random() < math.exp(-worse / (WARMTH * max(1e-6, 1 - done))):
            plan = new
            if plan.schedule.value_us < best.schedule.value_us:
                best, last = plan, made
    return best


def _changed(choices: Choices, plan: CutPlan, chosen: list[str], chance: random.Random) -> CutPlan:
    """The plan with other cuts of some ops. Raises CutError for what cannot be made."""
    where: dict[str, list[int]] = {}
    for op, piece in enumerate(plan.pieces):
        if piece.kind in ("whole", "part"):
            where.setdefault(piece.op, []).append(op)
    cuts = dict(plan.cuts)
    homes: dict[str, tuple[int, ...]] = {}
    for name in chosen:
        parts = where[name]
        here = tuple(plan.schedule.assignment[part] for part in parts)
        now = cuts.get(name)
        if now is None:
            team = chance.choice(choices.teams[name])
            axis = chance.choice(choices.axes[name])
            lean = chance.choice((-0.2, -0.1, 0.0, 0.0, 0.1, 0.2))
            shares = choices.shares(name, team)
            shares = [min(0.9, max(0.1, shares[0] + lean)), *shares[1:]]
            found = choices.cut(
                name, axis, [one / sum(shares) for one in shares], _may_chain(choices, cuts, name, axis)
            )
            if found is not None:
                cuts[name], homes[name] = found, team
        elif len(set(here)) == 1 or chance.random() < 0.25:
            del cuts[name]
            homes[name] = (chance.choice(here),)
        else:
            cuts[name], homes[name] = _other(choices, plan, now, parts, chance)
    _unchain(choices, cuts)
    return carried(choices.problem, cuts, homes, plan)


def _may_chain(choices: Choices, cuts: Cuts, op: str, axis: int) -> bool:
    """Whether all that an op reads is cut like it."""
    before = choices.before[op]
    same = [cuts[one] for one in before if one in cuts and cuts[one].axis == axis]
    return bool(same) and len(same) == len(before) and len({len(cut.at) for cut in same}) == 1


def _unchain(choices: Choices, cuts: dict[str, Cut]) -> None:
    """Break the chains that have nothing to hold on to any more."""
    for op, cut in list(cuts.items()):
        if not cut.chained:
            continue
        if not _may_chain(choices, cuts, op, cut.axis) or len(cuts[choices.before[op][0]].at) != len(cut.at):
            cuts[op] = cut.model_copy(update={"chained": False})


def _other(
    choices: Choices, plan: CutPlan, cut: Cut, parts: list[int], chance: random.Random
) -> tuple[Cut, tuple[int, ...]]:
    """A cut op cut otherwise: what ends first gets more, another axis and team, or a chain begun or broken."""
    shares, dice = choices.shares_of(cut), chance.random()
    here = tuple(plan.schedule.assignment[part] for part in parts)
    if dice < 0.6:
        ends = [plan.schedule.finish_us[part] for part in parts]
        early, late = ends.index(min(ends)), ends.index(max(ends))
        if chance.random() < 0.3:
            early, late = late, early
        shares[early], shares[late] = shares[early] + 1 / TENTHS, shares[late] - 1 / TENTHS
        return choices.cut(cut.op, cut.axis, shares, cut.chained) or cut, here
    if dice < 0.8:
        team = chance.choice(choices.teams[cut.op])
        other = choices.cut(cut.op, chance.choice(choices.axes[cut.op]), choices.shares(cut.op, team))
        return (cut, here) if other is None else (other, team)
    return cut.model_copy(update={"chained": not cut.chained}), here

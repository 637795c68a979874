"""One window of placement, order and cuts annealed together, as machine code; see `search.annealing` for whole ops."""

from __future__ import annotations

import numpy as np

from planner_api.planning.judge.evaluator import Arrays
from planner_api.planning.kernel import kernel
from planner_api.planning.search.moves import uniform
from planner_api.planning.split.moves import copy_mode, propose, take_back
from planner_api.planning.split.state import Joint
from planner_api.planning.split.timing import drop, estimate, find_tails, keep, time_stretch
from planner_api.planning.split.ways import Ways


@kernel
def anneal_cuts(
    a: Arrays,
    w: Ways,
    s: Joint,
    low: int,
    high: int,
    end: int,
    number: int,
    moves: int,
    hot: float,
    cold: float,
    random: np.ndarray,
) -> float:
    """Anneal a window of a timed plan.

    Args:
        a: the problem.
        w: how its ops may be cut.
        s: the plan; left with the best modes and order met, its times with those of the last one accepted.
        low: first position that may change.
        high: one past the last.
        end: one past the last position that is timed with every move.
        number: of the first trial; larger than any before it on this plan.
        moves: how many to try.
        hot: first temperature in microseconds.
        cold: last temperature.
        random: one word of random state.

    Returns:
        The best value met, as the tails see it.
    """
    # Past the window only what is paid there can become less: near enough to turn most moves down where it ends.
    find_tails(a, w, s, high)
    hope = 0.0
    for at in range(high, end):
        for part in range(s.modes.parts[s.sequence[at]]):
            hope = max(hope, s.paid[s.sequence[at], part])
    find_tails(a, w, s, end)
    passing = 0.0
    for at in range(low):
        op = s.sequence[at]
        for part in range(s.modes.parts[op]):
            passing = max(passing, s.finish[op, part] + s.tail[op, part])
    for u in range(len(s.ends)):
        s.ends[u] = s.ends_at[end, u]
    current = max(passing, estimate(s, end, s.peak_at[end], low))
    best = current
    for at in range(low, high):
        s.best_sequence[at] = s.sequence[at]
        copy_mode(s.modes, s.sequence[at], s.best, s.sequence[at])
    ratio = (cold / hot) ** (1.0 / max(1, moves - 1))
    temperature = hot / ratio
    for move in range(1, moves + 1):
        temperature *= ratio
        changes, first, source, target = propose(a, w, s, low, high, number + move, random)
        if changes < 0 or first >= high:
            take_back(s, -changes - 1 if changes < 0 else changes, source, target)
            continue
        limit = current - temperature * np.log(max(uniform(random), 1e-300))
        value = time_stretch(a, w, s, first, high, end, number + move, limit, hope)
        if value <= limit:
            value = max(passing, estimate(s, end, value, low))
        if value > limit:
            drop(s, first)
            take_back(s, changes, source, target)
            continue
        current = value
        keep(a, s, first, end)
        if current < best:
            best = current
            for at in range(low, high):
                s.best_sequence[at] = s.sequence[at]
                copy_mode(s.modes, s.sequence[at], s.best, s.sequence[at])
    for at in range(low, high):
        s.sequence[at] = s.best_sequence[at]
        copy_mode(s.best, s.sequence[at], s.modes, s.sequence[at])
    return float(best)

"""Windowed simulated annealing over (assignment, sequence) with an incremental evaluator.

A window is a stretch of consecutive positions in start-time order. Inside it, ops change processor and order; what
lies before is frozen, and what lies after enters through tails (longest paths to the end of the accepted schedule), so
that one move costs about one window of work instead of one schedule. Where every op takes its processor whole and no
queue carries moves, tails are exact; elsewhere they are a guide, and the round that ran the window times it anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner_api.planning.judge.evaluator import RETIMED, Arrays, State, accept, count_in, fits, reject, trial
from planner_api.planning.kernel import copy_into, inner_kernel, kernel
from planner_api.planning.problem import FloatArray, IntArray
from planner_api.planning.search.moves import LONGEST_STRETCH, propose, take_back, uniform


class Window(NamedTuple):
    """What the annealing of one window knows of the rest of the schedule.

    Attributes:
        low, high: first position that may change, one past the last.
        reach_move, reach_flip: (n,) one past the last position whose transfers an op can alter when moved or flipped.
        far: (n,) last position of a reader.
        crossing: ops that someone past the window reads.
        through: (n,) microseconds from an op's start to the end, less what is due.
        next_at, held_at: (n + 1, R * W) the same of the ops that follow on each resource from a position on, with
            their shares, longest first.
        bypass_at: (n + 1,) longest path that jumps from before the window to a position or beyond.
        flipped, best_assignment, best_sequence: scratch.
    """

    low: int
    high: int
    reach_move: IntArray
    reach_flip: IntArray
    far: IntArray
    crossing: IntArray
    through: FloatArray
    next_at: FloatArray
    held_at: FloatArray
    bypass_at: FloatArray
    flipped: IntArray
    best_assignment: IntArray
    best_sequence: IntArray


def window(a: Arrays, s: State, low: int, high: int) -> Window:
    """The window from ``low`` to ``high`` of a timed schedule."""
    n = len(s.sequence)
    last = _greatest(a.readers_at, s.position[a.readers])
    reach_move = np.maximum(_greatest(a.reads_at, last[a.reads]) + 1, high)
    reach_flip = np.maximum(_greatest(a.writes_at, last[a.writes]) + 1, reach_move)
    end = int(reach_flip[s.sequence[low:high]].max())
    far = _greatest(a.after_at, s.position[a.after])
    near = s.sequence[low:end]
    return Window(
        low=low,
        high=high,
        reach_move=reach_move,
        reach_flip=reach_flip,
        far=far,
        crossing=near[far[near] >= high],
        through=np.zeros(n),
        next_at=np.zeros_like(s.ends_at),
        held_at=np.zeros_like(s.held_at),
        bypass_at=np.full(n + 1, -np.inf),
        flipped=np.empty((LONGEST_STRETCH, 2), dtype=np.int64),
        best_assignment=s.assignment.copy(),
        best_sequence=s.sequence.copy(),
    )


def _greatest(at: IntArray, values: IntArray) -> IntArray:
    """The largest of ``values[at[i] : at[i + 1]]`` for every i; -1 where there are none."""
    result = np.full(len(at) - 1, -1, dtype=np.int64)
    full = np.flatnonzero(at[1:] > at[:-1])
    if len(full):
        result[full] = np.maximum.reduceat(values, at[:-1][full])
    return result


@inner_kernel
def _later(a: Arrays, s: State, w: Window, op: int, since: int) -> float:
    """Longest way from an op's finish through its readers at ``since`` or later to the end."""
    here = s.assignment[op]
    tail = -np.inf
    for t in range(a.writes_at[op], a.writes_at[op + 1]):
        tensor = a.writes[t]
        for k in range(a.readers_at[tensor], a.readers_at[tensor + 1]):
            reader = a.readers[k]
            if s.position[reader] >= since:
                there = s.assignment[reader]
                way = w.through[reader]
                if there != here:
                    way += a.lag[here]
                    if a.busy[a.place[here], a.place[there]] >= 0:
                        way += a.cost[tensor, a.place[here], a.place[there]]
                tail = max(tail, way)
    return tail


@inner_kernel
def _retail(a: Arrays, s: State, w: Window, until: int) -> None:
    """Longest paths to the end of the ops from ``until`` back to the window's end."""
    slots, length = len(s.ends), a.length
    for k in range(slots):
        s.ends[k] = w.next_at[until, k]
        s.held[k] = w.held_at[until, k]
    for at in range(until - 1, w.high - 1, -1):
        op = s.sequence[at]
        here = s.assignment[op]
        share = a.share[op, here]
        tail = max(a.export[op, here] - a.due[op], _later(a, s, w, op, at + 1))
        for u in range(a.uses_at[here], a.uses_at[here + 1]):
            tail = max(tail, fits(s.ends, s.held, a.uses[u] * length, (a.uses[u] + 1) * length, share))
        through = s.spent[op] + tail
        w.through[op] = through
        for u in range(a.uses_at[here], a.uses_at[here + 1]):
            count_in(s.ends, s.held, a.uses[u] * length, (a.uses[u] + 1) * length, through, share)
        for k in range(slots):
            w.next_at[at, k] = s.ends[k]
            w.held_at[at, k] = s.held[k]
        bypass = w.bypass_at[at + 1]
        for k in range(a.before_at[op], a.before_at[op + 1]):
            earlier = a.before[k]
            if s.position[earlier] < w.low:
                lag = a.lag[s.assignment[earlier]] if s.assignment[earlier] != here else 0.0
                bypass = max(bypass, s.finish[earlier] + lag + through)
        w.bypass_at[at] = bypass


@inner_kernel
def _estimate(a: Arrays, s: State, w: Window, until: int, peak: float, limit: float) -> float:
    """The end of a schedule timed up to ``until``, as the tails see it; beyond ``limit`` any value that is, too."""
    value, length = max(peak, w.bypass_at[until]), a.length
    for k in range(len(s.ends)):
        share = w.held_at[until, k]
        if share > 0.0:
            first = k // length * length
            free = s.ends[k] if length == 1 else fits(s.ends, s.held, first, first + length, share)
            value = max(value, free + w.next_at[until, k])
    if value <= limit:
        for c in range(len(w.crossing)):
            op = w.crossing[c]
            if w.far[op] >= until and s.position[op] < until:
                value = max(value, s.finish[op] + _later(a, s, w, op, until))
    return float(value)


@kernel
def anneal(
    a: Arrays, s: State, w: Window, number: int, moves: int, hot: float, cold: float, random: np.ndarray
) -> float:
    """Anneal a window of a timed schedule.

    Args:
        a: the problem.
        s: the schedule; left with the best placement and order met, its times with those of the last one accepted.
        w: the window.
        number: of the first trial; larger than any before it on this schedule.
        moves: how many to try.
        hot: first temperature in microseconds.
        cold: last temperature.
        random: one word of random state.

    Returns:
        The best value met, as the tails see it.
    """
    n = len(s.sequence)
    low, high = w.low, w.high
    _retail(a, s, w, n)
    for k in range(len(s.ends)):
        s.ends[k] = s.ends_at[high, k]
        s.held[k] = s.held_at[high, k]
    current = _estimate(a, s, w, high, s.peak_at[high], np.inf)
    best = current
    copy_into(w.best_sequence, s.sequence)
    copy_into(w.best_assignment, s.assignment)
    ratio = (cold / hot) ** (1.0 / max(1, moves - 1))
    temperature = hot / ratio
    for move in range(1, moves + 1):
        temperature *= ratio
        flips, source, target = propose(a, s, low, high, w.flipped, random)
        if flips == 0 and source < 0:
            continue
        first, until = high, high
        for f in range(flips):
            op = w.flipped[f, 0]
            first = min(first, s.position[op])
            until = max(until, w.reach_flip[op])
        if source >= 0:
            first = min(first, source, target)
            until = max(until, w.reach_move[s.sequence[target]])
        limit = current - temperature * np.log(max(uniform(random), 1e-300))
        value = trial(a, s, first, until, high, limit, number + move)
        if value <= limit:
            value = _estimate(a, s, w, until, value, limit)
        if value > limit:
            reject(s, first)
            take_back(s, flips, source, target, w.flipped)
            continue
        current = value
        accept(a, s, first, until, high)
        if s.counts[RETIMED]:
            _retail(a, s, w, until)
        if current < best:
            best = current
            copy_into(w.best_sequence, s.sequence)
            copy_into(w.best_assignment, s.assignment)
    copy_into(s.sequence, w.best_sequence)
    copy_into(s.assignment, w.best_assignment)
    return float(best)

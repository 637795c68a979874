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
from planner_api.planning.kernel import copy_into, inlined_kernel, inner_kernel, kernel
from planner_api.planning.problem import FloatArray, IntArray
from planner_api.planning.search.moves import LONGEST_STRETCH, propose, take_back, uniform


class Window(NamedTuple):
    """What the annealing of one window knows of the rest of the schedule.

    Attributes:
        low, high: first position that may change, one past the last.
        reach_move, reach_flip: (n,) one past the last position whose transfers an op can alter when moved or flipped.
        saving: (n,) how much of what is paid past the window concerns the op.
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
    saving: FloatArray
    far: IntArray
    crossing: IntArray
    through: FloatArray
    next_at: FloatArray
    held_at: FloatArray
    bypass_at: FloatArray
    flipped: IntArray
    best_assignment: IntArray
    best_sequence: IntArray


class Survey:
    """What windows need to know of a problem, and of a timed schedule around them."""

    def __init__(self, a: Arrays) -> None:
        self.a = a
        self.slices = {name: _Slices(getattr(a, f"{name}_at")) for name in ("reads", "writes", "readers", "after")}
        self.tensors = np.arange(len(a.producer))

    def window(self, s: State, low: int, high: int) -> Window:
        """The window from ``low`` to ``high`` of a timed schedule."""
        a, n, slices = self.a, len(s.sequence), self.slices
        last = slices["readers"].greatest(s.position[a.readers])
        reach_move = np.maximum(slices["reads"].greatest(last[a.reads]) + 1, high)
        reach_flip = np.maximum(slices["writes"].greatest(last[a.writes]) + 1, reach_move)
        end = int(reach_flip[s.sequence[low:high]].max())
        far = slices["after"].greatest(s.position[a.after])
        home = np.where(a.producer >= 0, a.place[s.assignment[a.producer]], a.host)
        late = np.where((s.payer >= high) & (s.payer < n), a.cost[self.tensors, home], 0.0).sum(axis=1)
        if a.launches:
            late += np.where((s.taker >= high) & (s.taker < n), a.launch, 0.0).sum(axis=1)
        near = s.sequence[low:end]
        return Window(
            low=low,
            high=high,
            reach_move=reach_move,
            reach_flip=reach_flip,
            saving=slices["reads"].sum(late[a.reads]) + slices["writes"].sum(late[a.writes]),
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


class _Slices:
    """Reductions over ``x[at[i] : at[i + 1]]`` for every i."""

    def __init__(self, at: IntArray) -> None:
        self.full = np.flatnonzero(at[1:] > at[:-1])
        self.starts = at[:-1][self.full]
        self.count = len(at) - 1

    def greatest(self, values: IntArray) -> IntArray:
        """The largest value of each slice; -1 for an empty one."""
        result = np.full(self.count, -1, dtype=np.int64)
        if len(self.full):
            result[self.full] = np.maximum.reduceat(values, self.starts)
        return result

    def sum(self, values: FloatArray) -> FloatArray:
        """The sum of each slice."""
        result = np.zeros(self.count)
        if len(self.full):
            result[self.full] = np.add.reduceat(values, self.starts)
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


@inlined_kernel
def _on_resources(a: Arrays, s: State, w: Window, until: int) -> float:
    """Longest path that leaves what was timed up to ``until`` by a resource."""
    length = a.length
    value = -np.inf
    for k in range(len(s.ends)):
        share = w.held_at[until, k]
        if share > 0.0:
            first = k // length * length
            free = s.ends[k] if length == 1 else fits(s.ends, s.held, first, first + length, share)
            value = max(value, free + w.next_at[until, k])
    return value


@inner_kernel
def _estimate(a: Arrays, s: State, w: Window, until: int, peak: float, limit: float) -> float:
    """The end of a schedule timed up to ``until``, as the tails see it; beyond ``limit`` any value that is, too."""
    value = max(peak, w.bypass_at[until], _on_resources(a, s, w, until))
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
        hope = 0.0
        for f in range(flips):
            op = w.flipped[f, 0]
            hope += w.saving[op]
            first = min(first, s.position[op])
            until = max(until, w.reach_flip[op])
        if source >= 0:
            first = min(first, source, target)
            until = max(until, w.reach_move[s.sequence[target]])
            hope += w.saving[s.sequence[target]]
        limit = current - temperature * np.log(max(uniform(random), 1e-300))
        # Past the window only what is paid for the ops that were changed can become less, by ``hope`` at most: near
        # enough to turn most moves down at the window's end.
        value = -np.inf
        at = first
        while at < until and value <= limit:
            to = high if at < high else until
            value = trial(a, s, first, at, to, high, limit, number + move)
            at = to
            if at == high and until > high and value <= limit:
                value = max(value, _on_resources(a, s, w, high) - hope, w.bypass_at[high] - hope)
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

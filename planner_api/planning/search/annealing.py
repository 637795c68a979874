"""Windowed simulated annealing over modes and order with an incremental evaluator.

A window is a stretch of consecutive positions in start-time order. Inside it, ops change how they are computed (where,
or in which parts) and their order; what lies before is frozen, and what lies after enters through tails (longest paths
to the end of the accepted plan), so that one move costs about one window of work instead of one plan. Where every op
takes its processors whole and no queue carries moves, tails are exact; elsewhere they are a guide, and the round that
ran the window times it anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from planner_api.planning.judge.arrays import RETIMED, Arrays, State
from planner_api.planning.judge.evaluator import accept, count_in, fits, reject, trial
from planner_api.planning.judge.parts import find_regions, takes_of
from planner_api.planning.judge.ways import FIELDS, HOME, PARTS
from planner_api.planning.kernel import inlined_kernel, kernel
from planner_api.planning.problem import FloatArray, IntArray
from planner_api.planning.search.moves import NONE, copy_mode, draw, propose, take_back


class Window(NamedTuple):
    """What the annealing of one window knows of the rest of the plan.

    Attributes:
        low, high: first position that may change, one past the last.
        reach_move, reach_change: (n,) one past the last position whose transfers an op can alter when moved or changed.
        saving: (n,) how much of what is paid past the window concerns the op.
        far: (n,) last position of a reader.
        crossing: ops that someone past the window reads.
    """

    low: int
    high: int
    reach_move: IntArray
    reach_change: IntArray
    saving: FloatArray
    far: IntArray
    crossing: IntArray


class Survey:
    """What windows need to know of a problem, and of a timed plan around them."""

    def __init__(self, a: Arrays) -> None:
        self.a = a
        self.slices = {name: _Slices(getattr(a, f"{name}_at")) for name in ("reads", "writes", "readers", "after")}
        self.tensors = np.arange(len(a.producer))

    def window(self, s: State, low: int, high: int) -> Window:
        """The window from ``low`` to ``high`` of a timed plan."""
        a, n, slices = self.a, len(s.sequence), self.slices
        last = slices["readers"].greatest(s.position[a.readers])
        reach_move = np.maximum(slices["reads"].greatest(last[a.reads]) + 1, high)
        reach_change = np.maximum(slices["writes"].greatest(last[a.writes]) + 1, reach_move)
        end = int(reach_change[s.sequence[low:high]].max())
        far = slices["after"].greatest(s.position[a.after])
        home = np.where(a.producer >= 0, a.place[s.modes[a.producer, 0, HOME]], a.host)
        paid = a.cost[self.tensors, home]
        if a.launches:
            paid = np.hstack([paid, np.broadcast_to(a.launch, (len(paid), len(a.launch)))])
        paying = ((s.holder >= high) & (s.holder < n)).reshape(len(self.tensors), a.most, a.columns).any(axis=1)
        late = np.where(paying, paid, 0.0).sum(axis=1)
        near = s.sequence[low:end]
        return Window(
            low=low,
            high=high,
            reach_move=reach_move,
            reach_change=reach_change,
            saving=slices["reads"].sum(late[a.reads]) + slices["writes"].sum(late[a.writes]),
            far=far,
            crossing=near[far[near] >= high],
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


@inlined_kernel
def _later(a: Arrays, s: State, op: int, part: int, since: int) -> float:
    """Longest way from a part's finish through what reads it at ``since`` or later to the end."""
    m, here = s.mode, s.mode[op * a.width + part * FIELDS + HOME]
    tail = -np.inf
    for t in range(a.writes_at[op], a.writes_at[op + 1]):
        tensor = a.writes[t]
        for k in range(a.readers_at[tensor], a.readers_at[tensor + 1]):
            reader = a.readers[k]
            if s.position[reader] < since:
                continue
            read = a.reads_at[reader]
            while a.reads[read] != tensor:
                read += 1
            for other in range(m[reader * a.width + PARTS]):
                if m[op * a.width + PARTS] > 1 and not takes_of(a, s, reader, other, read, part):
                    continue
                there, way = m[reader * a.width + other * FIELDS + HOME], s.through[reader * a.most + other]
                if there != here:
                    way += a.lag[here]
                    if a.carried[a.place[here], a.place[there]]:
                        way += a.cost[tensor, a.place[here], a.place[there]]
                tail = max(tail, way)
    return tail


@inlined_kernel
def _retail(a: Arrays, s: State, low: int, high: int, until: int) -> None:
    """Longest paths to the end of what stands from ``until`` back to the window's end."""
    slots, length, line = a.slots, a.length, s.front
    for k in range(2 * slots):
        line[k] = s.next_at[until, k]
    for at in range(until - 1, high - 1, -1):
        op = s.sequence[at]
        for part in range(s.mode[op * a.width + PARTS] - 1, -1, -1):
            here = s.mode[op * a.width + part * FIELDS + HOME]
            share = a.share[op, here]
            tail = max(a.export[op, here] - a.due[op], _later(a, s, op, part, at + 1))
            for u in range(a.uses_at[here], a.uses_at[here + 1]):
                tail = max(tail, fits(line, slots, a.uses[u] * length, (a.uses[u] + 1) * length, share))
            s.through[op * a.most + part] = s.spent[op * a.most + part] + tail
            for u in range(a.uses_at[here], a.uses_at[here + 1]):
                first = a.uses[u] * length
                count_in(line, slots, first, first + length, s.through[op * a.most + part], share)
        for k in range(2 * slots):
            s.next_at[at, k] = line[k]
        bypass = s.bypass_at[at + 1]
        for read in range(a.reads_at[op], a.reads_at[op + 1]):
            maker = a.producer[a.reads[read]]
            if maker < 0 or s.position[maker] >= low:
                continue
            for part in range(s.mode[op * a.width + PARTS]):
                here = s.mode[op * a.width + part * FIELDS + HOME]
                for k in range(s.mode[maker * a.width + PARTS]):
                    if s.mode[maker * a.width + PARTS] == 1 or takes_of(a, s, op, part, read, k):
                        home = s.mode[maker * a.width + k * FIELDS + HOME]
                        lag = a.lag[home] if home != here else 0.0
                        bypass = max(bypass, s.finish[maker * a.most + k] + lag + s.through[op * a.most + part])
        s.bypass_at[at] = bypass


@inlined_kernel
def _on_resources(a: Arrays, s: State, until: int) -> float:
    """Longest path that leaves what was timed up to ``until`` by a resource."""
    value = -np.inf
    for k in range(a.slots):
        share = s.next_at[until, a.slots + k]
        if share > 0.0:
            first = k // a.length * a.length
            free = s.front[k] if a.length == 1 else fits(s.front, a.slots, first, first + a.length, share)
            value = max(value, free + s.next_at[until, k])
    return value


@inlined_kernel
def _estimate(a: Arrays, s: State, w: Window, until: int, peak: float, limit: float) -> float:
    """The end of a plan timed up to ``until``, as the tails see it; beyond ``limit`` any value that is, too."""
    value = max(peak, s.bypass_at[until], _on_resources(a, s, until))
    for c in range(len(w.crossing) if value <= limit else 0):
        op = w.crossing[c]
        if w.far[op] >= until and s.position[op] < until:
            for part in range(s.mode[op * a.width + PARTS]):
                value = max(value, s.finish[op * a.most + part] + _later(a, s, op, part, until))
    return float(value)


@kernel
def anneal(a: Arrays, s: State, w: Window, moves: int, hot: float, cold: float, random: np.ndarray) -> float:
    """Anneal a window of a timed plan; without moves time the plan.

    Args:
        a: the problem.
        s: the plan; left with the best modes and order met, its times with those of the last one accepted.
        w: the window.
        moves: how many to try.
        hot: first temperature in microseconds.
        cold: last temperature.
        random: one word of random state.

    Returns:
        The largest ``done - due`` (with nothing due the makespan); of a window its best, as the tails see it.
    """
    n, low, high = len(s.sequence), w.low, w.high
    current, best, behind = np.inf, np.inf, n
    ratio = (cold / hot) ** (1.0 / max(1, moves - 1))
    temperature = hot / ratio / ratio
    for at in range(n - 1 if moves == 0 else -1, -1, -1):
        s.position[s.sequence[at]] = at
        if s.mode[s.sequence[at] * a.width + PARTS] > 1:
            find_regions(a, s, s.sequence[at])
    for number in range(1, moves + 2):
        temperature *= ratio
        if behind > high and moves > 0:
            _retail(a, s, low, high, behind)
            behind = high
        # The first trial changes nothing: of the whole plan, or, where there are moves, of what ends with the window.
        changes, source, target, hope, limit = 0, NONE, NONE, 0.0, np.inf
        first, until = (high, high) if moves > 0 else (low, n)
        if number > 1:
            draw(random, s.draws)
            changes, source, target = propose(a, s, low, high, number)
            if changes < 0 or (changes == 0 and source < 0):
                take_back(a, s, -changes - 1 if changes < 0 else changes, source, target)
                continue
            for change in range(changes):
                op = s.changed[change]
                hope += w.saving[op]
                first = min(first, s.position[op])
                until = max(until, w.reach_change[op])
            if source >= 0:
                first = min(first, source, target)
                until = max(until, w.reach_move[s.sequence[target]])
                hope += w.saving[s.sequence[target]]
            limit = current - temperature * np.log(max(s.draws[3], 1e-300))
        # Past the window only what is paid for the ops that were changed can become less, by ``hope`` at most: near
        # enough to turn most moves down at the window's end.
        value, start, going = -np.inf, first, True
        while going:
            stop = high if start < high else until
            value = trial(a, s, first, start, stop, high, limit, number)
            if stop == high and until > high and value <= limit:
                value = max(value, _on_resources(a, s, high) - hope, s.bypass_at[high] - hope)
            start, going = stop, stop < until and value <= limit
        if value <= limit and moves > 0:
            value = _estimate(a, s, w, until, value, limit)
        if value > limit:
            reject(a, s, first)
            take_back(a, s, changes, source, target)
            continue
        current = value
        accept(a, s, first, until, high)
        if moves == 0:
            return float(value)
        if s.counts[RETIMED]:
            behind = until
        if current < best or number == 1:
            best = current
            for at in range(low, high):
                s.best_sequence[at] = s.sequence[at]
                copy_mode(a, s.mode, s.sequence[at], s.best, s.sequence[at])
    for at in range(low, high):
        s.sequence[at] = s.best_sequence[at]
        copy_mode(a, s.best, s.sequence[at], s.mode, s.sequence[at])
    return float(best)


def evaluate(a: Arrays, s: State) -> float:
    """Time a whole plan; see `simulator` for the rules.

    Args:
        a: the problem.
        s: the plan; its modes and sequence are read, everything else is filled.

    Returns:
        The largest ``done - due``: with nothing due the makespan in microseconds.
    """
    s.holder.fill(len(s.sequence))
    for scratch in (s.mark, s.turns, s.touched):
        scratch.fill(0)
    nothing = np.zeros(0, dtype=np.int64)
    everything = Window(0, len(s.sequence), nothing, nothing, np.zeros(0), nothing, nothing)
    return float(anneal(a, s, everything, 0, 1.0, 1.0, np.ones(1, dtype=np.uint64)))

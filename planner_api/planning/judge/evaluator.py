"""The simulator's arithmetic as machine code: the same numbers, bit for bit, some fifty times faster.

One kernel times any stretch of a sequence: a whole plan, or what one move of the annealing changes
(`search.annealing`). Where ops are cut, their parts follow the simulator's rules, and slices and joins, which
`problem.cuts` makes ops of their own, are counted with the part that reads them: there it is a guide, and the simulator
times what comes of it.
"""

from __future__ import annotations

import numpy as np

from planner_api.planning.judge.arrays import NOTED, REACHED, RETIMED, Arrays, State
from planner_api.planning.judge.parts import needed, piece
from planner_api.planning.judge.simulator import FULL
from planner_api.planning.judge.ways import AXIS, FIELDS, HIGH, HOME, LOW, NEVER, PARTS, TENTH, WHOLE
from planner_api.planning.kernel import inlined_kernel
from planner_api.planning.problem import FloatArray
from planner_api.planning.problem.cutter import TENTHS

ALL = 0
"""Key of what stands of a tensor somewhere: all of it;"""
PARTLY = 1 << 60
"""and what no part reads again: some of an output on the host."""


@inlined_kernel
def fits(line: FloatArray, slots: int, first: int, last: int, share: float) -> float:
    """From when on a resource, whose entries stand from ``first`` to ``last``, has room for one more share."""
    taken = 0.0
    for k in range(first, last):
        other = line[slots + k]
        if other == 0.0:
            return 0.0
        if taken + other + share > FULL:
            return float(line[k])
        taken += other
    return 0.0


@inlined_kernel
def count_in(line: FloatArray, slots: int, first: int, last: int, end: float, share: float) -> None:
    """Let a resource, whose entries stand from ``first`` to ``last``, count one more part."""
    at = first
    while at < last and line[slots + at] > 0.0 and line[at] >= end:
        at += 1
    for k in range(last - 1, at, -1):
        line[k] = line[k - 1]
        line[slots + k] = line[slots + k - 1]
    if at < last:
        line[at] = end
        line[slots + at] = share


@inlined_kernel
def _found(s: State, cell: int, first: int, number: int) -> tuple[int, float]:
    """What of a tensor is brought there by those before in the trial, and when; -1: nothing."""
    if s.holder[cell] < first:
        return s.key[cell], s.when[cell]
    if s.mark[cell] == number:
        return s.new_key[cell], s.new_when[cell]
    return -1, 0.0


@inlined_kernel
def accept(a: Arrays, s: State, first: int, until: int, high: int) -> None:
    """Make the last trial the plan."""
    cells = a.most * a.columns
    for at in range(first, until):
        op = s.sequence[at]
        for part in range(s.mode[op * a.width + PARTS]):
            s.spent[op * a.most + part] = s.new_spent[at * a.most + part]
        for r in range(a.reads_at[op], a.reads_at[op + 1]):
            for cell in range(a.reads[r] * cells, (a.reads[r] + 1) * cells):
                if first <= s.holder[cell] < until:
                    s.holder[cell] = len(s.sequence)
        if at <= high:
            for k in range(len(s.front)):
                s.front_at[at, k] = s.new_front[at, k]
    if until <= high:
        for k in range(len(s.front)):
            s.front_at[until, k] = s.new_front[until, k]
    for f in range(s.counts[NOTED]):
        cell = s.log[f, 0]
        if cell >= 0:
            s.holder[cell], s.key[cell], s.when[cell] = s.log[f, 1], s.new_key[cell], s.new_when[cell]


@inlined_kernel
def trial(a: Arrays, s: State, first: int, start: int, until: int, high: int, limit: float, number: int) -> float:
    """Time positions ``start`` to ``until``: a new trial from ``first`` on, or the rest of one that got to ``start``.

    What is found stands in the scratch space (and the parts' finish) until `accept` or `reject`. Where nothing limits
    it, the ops' start and done are written too.

    Args:
        a: the problem.
        s: the plan.
        first: first position of the trial.
        start: first position to time; more than ``first`` continues the same trial.
        until: one past the last.
        high: up to this position the state before each position is noted.
        limit: stop when the end must lie beyond it.
        number: of the trial; larger than that of any before.

    Returns:
        The largest ``done - due`` up to ``until``, ``inf`` when it stopped or a part cannot be.
    """
    m, w, front = s.mode, a.ways, s.front
    slots, length, places = a.slots, a.length, a.cost.shape[1]
    last = len(front) - 1
    if start == first:
        for k in range(len(front)):
            front[k] = s.front_at[first, k]
        s.counts[NOTED] = 0
        s.counts[RETIMED] = 0
        s.counts[REACHED] = first
    noted = s.counts[NOTED]
    for at in range(start, until):
        if at <= high:
            for k in range(len(front)):
                s.new_front[at, k] = front[k]
        op = s.sequence[at]
        own = op * a.width
        count = m[own + PARTS]
        opened, finished = np.inf, -np.inf
        for part in range(a.most):
            s.old_finish[at * a.most + part] = s.finish[op * a.most + part]
        s.counts[REACHED] = at + 1
        for part in range(count):
            mine = own + part * FIELDS
            here = m[mine + HOME]
            target = a.place[here]
            begin, copying = 0.0, 0.0
            launched = False
            fetched = noted
            for r in range(a.reads_at[op], a.reads_at[op + 1]):
                tensor = a.reads[r]
                maker = a.producer[tensor]
                pieces, axis, low, high_end, theirs = 1, WHOLE, 0, 0, maker * a.width
                if maker >= 0:
                    pieces = m[theirs + PARTS]
                if count > 1:
                    axis, low, high_end = needed(w.needs, m, own, part, r)
                    if axis == NEVER:
                        return np.inf
                copied, taken, along = 0.0, 0, axis
                for k in range(pieces):
                    size, key, slot = 1.0, ALL, k
                    if pieces > 1:
                        along = w.axes[maker, m[theirs + AXIS]]
                        begins, ends = piece(m, theirs, along, k, part, axis, low, high_end)
                        if begins >= ends:
                            continue
                        taken += 1
                        size = (ends - begins) / w.extent[maker, m[theirs + AXIS]]
                        key = 1 + (begins << 13) + ends
                        if begins != m[theirs + k * FIELDS + LOW] or ends != m[theirs + k * FIELDS + HIGH]:
                            copied += size
                    if axis >= 0 and (pieces == 1 or along != axis):
                        size *= (high_end - low) / w.needs.span[r, m[own + AXIS]]
                        copied += size
                        if pieces == 1:
                            # Beside all of a whole tensor a place keeps the slice of it that it fetched first.
                            slot, key = 1, 1 + (low << 13) + high_end
                        else:
                            key += (low << 39) + (high_end << 26)
                    source, exists = a.host, a.release[op]
                    if maker >= 0:
                        home = m[theirs + k * FIELDS + HOME]
                        if home == here:
                            begin = max(begin, s.finish[maker * a.most + k])
                            continue
                        source, exists = a.place[home], s.finish[maker * a.most + k] + a.lag[home]
                    begin = max(begin, exists)
                    if a.launches:  # first the processor takes it in, then its place holds it
                        cell = (tensor * a.most + slot) * a.columns + places + here
                        known, arrived = _found(s, cell, first, number)
                        if known != key:
                            launched = True
                            s.log[noted, 0], s.log[noted, 1], s.paid[noted] = cell, at, 0.0
                            s.mark[cell], s.new_key[cell] = number, key
                            noted += 1
                    if source == target:
                        continue
                    cell = (tensor * a.most + slot) * a.columns + target
                    known, arrived = _found(s, cell, first, number)
                    if known != key and slot != k:
                        whole, since = _found(s, cell - a.columns, first, number)
                        if whole == ALL:
                            known, arrived = key, since
                    if known == key:
                        if a.waits:
                            begin = max(begin, arrived)
                        continue
                    # Back along the way to where it stands, then forth over each channel.
                    base, since, hops = cell - target, exists, 1
                    s.way[0], stop = target, a.hop[source, target]
                    while stop != source:
                        known, arrived = _found(s, base + stop, first, number)
                        if known == key:
                            since = arrived
                            break
                        s.way[hops] = stop
                        hops += 1
                        stop = a.hop[source, stop]
                    s.way[hops] = stop
                    unpaid = 0  # channels behind the last queue, which the reader pays for
                    while unpaid < hops and a.busy[s.way[unpaid + 1], s.way[unpaid]] < 0:
                        unpaid += 1
                    for step in range(hops - 1, -1, -1):
                        stop, there = s.way[step + 1], s.way[step]
                        known, arrived = _found(s, base + there, first, number)
                        s.log[noted, 0], s.log[noted, 1] = -1, at
                        if known < 0:
                            s.log[noted, 0], s.mark[base + there], s.new_key[base + there] = base + there, number, key
                        cost = a.cost[tensor, stop, there]
                        if key != ALL:
                            cost = w.fixed[tensor, stop, there] + w.slope[tensor, stop, there] * size
                        s.paid[noted] = cost
                        if step >= unpaid:
                            q = a.busy[stop, there]
                            if q >= 0:
                                since = max(since, front[2 * slots + q])
                            since += cost
                            if q >= 0:
                                front[2 * slots + q] = since
                            s.paid[noted] = -1.0
                            if known < 0:
                                s.new_when[base + there] = since
                        noted += 1
                    begin = max(begin, since)
                if taken > 1 and copied == 0.0:
                    copied = 1.0
                if copied > 0.0:
                    copying += w.glue[tensor, along] * copied
            share = a.share[op, here]
            for u in range(a.uses_at[here], a.uses_at[here + 1]):
                if length == 1:
                    begin = max(begin, front[a.uses[u]])
                else:
                    begin = max(begin, fits(front, slots, a.uses[u] * length, (a.uses[u] + 1) * length, share))
            now = begin
            for f in range(fetched, noted):
                if s.paid[f] >= 0.0:
                    now += s.paid[f]
                    if s.log[f, 0] >= 0:
                        s.new_when[s.log[f, 0]] = now
            if launched:
                now += a.launch[here]
            us = a.latency[op, here]
            if count > 1:
                d, g, tenth = w.row[op], m[own + AXIS], m[mine + TENTH]
                stop = m[mine + FIELDS + TENTH] if part + 1 < count else TENTHS
                more = m[mine + HIGH] - m[mine + LOW] - w.border[op, g, stop] + w.border[op, g, tenth]
                us = w.part_us[d, g, tenth, stop, here] + w.more_us[d, g, here] * more + copying
            if a.slow[here] > 0.0:
                pressing = 0.0
                for u in range(a.near_at[here], a.near_at[here + 1]):
                    busy = 0.0
                    for k in range(a.near[u] * length, (a.near[u] + 1) * length):
                        if front[k] <= begin:
                            break
                        busy += 1.0 if length == 1 else front[slots + k]
                    pressing += min(busy, 1.0)
                room = (a.near_at[here + 1] - a.near_at[here]) - share * (a.uses_at[here + 1] - a.uses_at[here])
                pressure = min(pressing / room, 1.0) if room > 1e-9 else 0.0
                us = us * (1.0 + a.slow[here] * pressure)
            now += us
            s.new_spent[at * a.most + part] = now - begin
            s.finish[op * a.most + part] = now
            done = now + a.export[op, here]
            if a.queued and target != a.host and a.carried[target, a.host]:
                hops, stop = 0, a.host
                while stop != target:
                    s.way[hops] = stop
                    hops += 1
                    stop = a.hop[target, stop]
                s.way[hops] = target
                for t in range(a.writes_at[op], a.writes_at[op + 1]):
                    tensor = a.writes[t]
                    if a.is_output[tensor]:
                        since = now
                        for step in range(hops - 1, -1, -1):
                            stop, there = s.way[step + 1], s.way[step]
                            cost = a.cost[tensor, stop, there]
                            if count > 1:
                                part_of = (m[mine + HIGH] - m[mine + LOW]) / w.extent[op, m[own + AXIS]]
                                cost = w.fixed[tensor, stop, there] + w.slope[tensor, stop, there] * part_of
                            q = a.busy[stop, there]
                            if q >= 0:
                                since = max(since, front[2 * slots + q])
                            since += cost
                            if q >= 0:
                                front[2 * slots + q] = since
                            cell = (tensor * a.most + part) * a.columns + there
                            s.log[noted, 0], s.log[noted, 1], s.paid[noted] = cell, at, 0.0
                            s.mark[cell], s.new_key[cell], s.new_when[cell] = (
                                number,
                                ALL if count == 1 else PARTLY,
                                since,
                            )
                            noted += 1
                        done = max(done, since)
            if not now + a.tail[op] <= limit:
                return np.inf
            for u in range(a.uses_at[here], a.uses_at[here + 1]):
                if length == 1:
                    front[a.uses[u]] = max(front[a.uses[u]], now)
                    front[slots + a.uses[u]] = 1.0
                else:
                    count_in(front, slots, a.uses[u] * length, (a.uses[u] + 1) * length, now, share)
            front[last] = max(front[last], done - a.due[op])
            opened, finished = min(opened, begin), max(finished, done)
            if at >= high and s.new_spent[at * a.most + part] != s.spent[op * a.most + part]:
                s.counts[RETIMED] = 1
        if limit == np.inf:
            s.done[op] = finished
            if a.cuttable:
                # Parts begin at different times, and in the order of starts nothing may overtake another.
                for b in range(a.before_at[op], a.before_at[op + 1]):
                    opened = max(opened, s.start[a.before[b]])
                for turn in range(2):
                    for part in range(count):
                        here = m[own + part * FIELDS + HOME]
                        for u in range(a.uses_at[here], a.uses_at[here + 1]):
                            opened = max(opened, s.turns[a.uses[u]])
                            if turn == 1:
                                s.turns[a.uses[u]] = opened
            s.start[op] = opened
    if until <= high:
        for k in range(len(front)):
            s.new_front[until, k] = front[k]
    s.counts[NOTED] = noted
    return float(front[last])


@inlined_kernel
def reject(a: Arrays, s: State, first: int) -> None:
    """Forget the last trial; modes and order must still be those that were tried."""
    for at in range(first, s.counts[REACHED]):
        for part in range(a.most):
            s.finish[s.sequence[at] * a.most + part] = s.old_finish[at * a.most + part]

"""What a placement, an order and cuts take together, as machine code: what the search for cuts goes by.

Parts follow the simulator's rules (`judge.simulator`); slices and joins, which `problem.cuts` makes ops of their own,
are counted with the part that reads them. Some things are simpler, so that this is a guide, and the simulator times
what comes of it: queues are not waited for, shares count as all of a resource, a launch is paid with every fetch, and
each place fetches for itself what it lacks of a tensor that was cut.
"""

from __future__ import annotations

import numpy as np

from planner_api.planning.judge.evaluator import Arrays
from planner_api.planning.kernel import ZERO, inlined_kernel, inner_kernel, kernel
from planner_api.planning.split.state import FAR, Joint, Modes
from planner_api.planning.split.ways import NEVER, WHOLE, Ways

REACHED, FETCHES = 0, 1
"""What `Joint.counts` counts."""
ALL = 0
"""Key of what a place has of a tensor: all of it."""


@inlined_kernel
def needed(w: Ways, m: Modes, op: int, part: int, read: int) -> tuple[int, int, int]:
    """What a part reads of a tensor: the axis, or WHOLE or NEVER, start and stop."""
    if m.parts[op] == 1:
        return WHOLE, 0, 0
    g = m.axis[op]
    axis = w.need_axis[read, g]
    if axis < 0:
        return axis, 0, 0
    low, high = m.start[op, part], m.stop[op, part]
    if w.need_at[read, g] >= 0:
        low, high = w.low[w.need_at[read, g] + low], w.high[w.need_at[read, g] + high]
    if low >= high:
        return NEVER, 0, 0
    if low == 0 and high == w.span[read, g]:
        return WHOLE, 0, 0
    return axis, low, high


@inlined_kernel
def holds_on(a: Arrays, w: Ways, m: Modes, op: int) -> bool:
    """Whether a chained op reads nothing but the same parts of what it reads; else it is not chained."""
    if m.parts[op] == 1 or m.chained[op] == 0 or a.reads_at[op] == a.reads_at[op + 1]:
        return False
    for read in range(a.reads_at[op], a.reads_at[op + 1]):
        maker = a.producer[a.reads[read]]
        axis = w.need_axis[read, m.axis[op]]
        if maker < 0 or axis < 0 or m.parts[maker] != m.parts[op] or w.axes[maker, m.axis[maker]] != axis:
            return False
    return True


@inner_kernel
def find_regions(a: Arrays, w: Ways, m: Modes, op: int) -> bool:
    """What each part of a cut op computes, with what chains add to it; whether that has changed."""
    g = m.axis[op]
    changed = False
    for part in range(m.parts[op]):
        start, stop = w.border[op, g, m.tenth[op, part]], w.border[op, g, m.tenth[op, part + 1]]
        for t in range(a.writes_at[op], a.writes_at[op + 1]):
            tensor = a.writes[t]
            for k in range(a.readers_at[tensor], a.readers_at[tensor + 1]):
                reader = a.readers[k]
                if not holds_on(a, w, m, reader):
                    continue
                for read in range(a.reads_at[reader], a.reads_at[reader + 1]):
                    if a.reads[read] == tensor:
                        axis, low, high = needed(w, m, reader, part, read)
                        if axis >= 0:
                            start, stop = min(start, low), max(stop, high)
                        elif axis == WHOLE:
                            start, stop = 0, w.extent[op, g]
        changed = changed or start != m.start[op, part] or stop != m.stop[op, part]
        m.start[op, part], m.stop[op, part] = start, stop
    return changed


@inlined_kernel
def piece(w: Ways, m: Modes, maker: int, k: int, part: int, axis: int, low: int, high: int) -> tuple[int, int]:
    """Of what part ``k`` of a cut op makes: what part ``part`` of a reader takes of it; see ``hope_schema.cutting``."""
    count = m.parts[maker]
    if axis != w.axes[maker, m.axis[maker]]:
        first = m.start[maker, k]
        if k > 0:
            first = max(first, m.stop[maker, k - 1])
        return first, m.stop[maker, k]
    if part < count and m.start[maker, part] <= low and high <= m.stop[maker, part]:
        return (low, high) if k == part else (0, 0)
    for holder in range(count):
        if m.start[maker, holder] <= low and high <= m.stop[maker, holder]:
            return (low, high) if k == holder else (0, 0)
    first, last = max(low, m.start[maker, k]), min(high, m.stop[maker, k])
    if k != part:
        if k > 0:
            first = max(first, m.stop[maker, k - 1])
        if k < part < count:
            last = min(last, m.start[maker, part])
    return first, last


@inner_kernel
def time_stretch(
    a: Arrays, w: Ways, s: Joint, first: int, high: int, until: int, number: int, limit: float, hope: float
) -> float:
    """Time positions ``first`` to ``until``; the results are scratch until `keep` or `drop`.

    From ``high`` on it stops where the rest of the way, ``hope`` less, leads beyond ``limit``.

    Returns:
        The latest end up to there; ``inf`` beyond ``limit`` or where something cannot be.
    """
    m = s.modes
    for u in range(len(s.ends)):
        s.ends[u] = s.ends_at[first, u]
    peak = s.peak_at[first]
    fetches = 0
    s.counts[REACHED] = first
    for at in range(first, until):
        for u in range(len(s.ends)):
            s.new_ends[at, u] = s.ends[u]
        s.new_peak[at] = peak
        op = s.sequence[at]
        count = m.parts[op]
        for part in range(m.home.shape[1]):
            s.old_begin[at, part] = s.begin[op, part]
            s.old_finish[at, part] = s.finish[op, part]
        s.counts[REACHED] = at + 1
        for part in range(count):
            here = m.home[op, part]
            target = a.place[here]
            begin, spent = 0.0, 0.0
            launched = False
            for read in range(a.reads_at[op], a.reads_at[op + 1]):
                tensor = a.reads[read]
                maker = a.producer[tensor]
                axis, low, high = needed(w, m, op, part, read)
                if axis == NEVER:
                    return np.inf
                pieces = 1
                if maker >= 0:
                    pieces = m.parts[maker]
                copied, taken, along = 0.0, 0, axis
                for k in range(pieces):
                    size, key = 1.0, ALL
                    if pieces > 1:
                        begins, ends = piece(w, m, maker, k, part, axis, low, high)
                        if begins >= ends:
                            continue
                        taken += 1
                        along = w.axes[maker, m.axis[maker]]
                        size = (ends - begins) / w.extent[maker, m.axis[maker]]
                        key = 1 + (begins << 13) + ends
                        if begins != m.start[maker, k] or ends != m.stop[maker, k]:
                            copied += size
                    if axis >= 0 and along == axis and pieces == 1:
                        size = (high - low) / w.span[read, m.axis[op]]
                        key = 1 + (low << 13) + high
                        copied += size
                    elif axis >= 0 and along != axis:
                        size *= (high - low) / w.span[read, m.axis[op]]
                        key += (low << 39) + (high << 26)
                        copied += size
                    source = a.host
                    if maker >= 0:
                        home = m.home[maker, k]
                        if home == here:
                            begin = max(begin, s.finish[maker, k])
                            continue
                        source = a.place[home]
                        begin = max(begin, s.finish[maker, k] + a.lag[home])
                    else:
                        begin = max(begin, a.release[op])
                    if source == target:
                        launched = True
                        continue
                    # Of each part a place keeps what it fetched first; of a whole tensor all, and one slice beside it.
                    slot = k
                    if pieces == 1 and key != ALL:
                        slot = 1
                        if s.moved[tensor, 0, target] == number or s.payer[tensor, 0, target] < first:
                            continue
                    known = -1
                    if s.payer[tensor, slot, target] < first:
                        known = s.key[tensor, slot, target]
                    elif s.moved[tensor, slot, target] == number:
                        known = s.new_key[tensor, slot, target]
                    if known == key:
                        continue
                    if key == ALL:
                        spent += a.cost[tensor, source, target]
                    else:
                        spent += w.fixed[tensor, source, target] + w.slope[tensor, source, target] * size
                    launched = True
                    if known == -1:
                        s.moved[tensor, slot, target] = number
                        s.new_key[tensor, slot, target] = key
                        s.log[fetches, 0] = tensor
                        s.log[fetches, 1] = slot
                        s.log[fetches, 2] = target
                        s.log[fetches, 3] = at
                        fetches += 1
                if taken > 1 and copied == 0.0:
                    copied = 1.0
                if copied > 0.0:
                    spent += w.glue[tensor, along] * copied
            for u in range(a.uses_at[here], a.uses_at[here + 1]):
                begin = max(begin, s.ends[a.uses[u]])
            us = a.latency[op, here]
            if count > 1:
                d, g = w.row[op], m.axis[op]
                t, v = m.tenth[op, part], m.tenth[op, part + 1]
                more = m.stop[op, part] - m.start[op, part] - w.border[op, g, v] + w.border[op, g, t]
                us = w.part_us[d, g, t, v, here] + w.more_us[d, g, here] * more
            if a.slow[here] > 0.0:
                busy = 0.0
                for u in range(a.near_at[here], a.near_at[here + 1]):
                    if s.ends[a.near[u]] > begin:
                        busy += 1.0
                room = (a.near_at[here + 1] - a.near_at[here]) - (a.uses_at[here + 1] - a.uses_at[here])
                if room > 0:
                    us *= 1.0 + a.slow[here] * min(busy / room, 1.0)
            now = begin + spent + us
            if launched:
                now += a.launch[here]
            s.begin[op, part] = begin
            s.finish[op, part] = now
            s.paid[op, part] = spent
            if not now <= limit or (at >= high and now + s.rest[op, part] - hope > limit):
                return np.inf
            for u in range(a.uses_at[here], a.uses_at[here + 1]):
                s.ends[a.uses[u]] = max(s.ends[a.uses[u]], now)
            peak = max(peak, now + a.export[op, here])
    for u in range(len(s.ends)):
        s.new_ends[until, u] = s.ends[u]
    s.new_peak[until] = peak
    s.counts[FETCHES] = fetches
    return float(peak)


@inlined_kernel
def keep(a: Arrays, s: Joint, first: int, until: int) -> None:
    """Make the last trial the plan."""
    n = len(s.sequence)
    for at in range(first, until):
        op = s.sequence[at]
        for read in range(a.reads_at[op], a.reads_at[op + 1]):
            tensor = a.reads[read]
            for k in range(s.payer.shape[1]):
                for place in range(s.payer.shape[2]):
                    if first <= s.payer[tensor, k, place] < until:
                        s.payer[tensor, k, place] = n
    for f in range(s.counts[FETCHES]):
        tensor, k, place = s.log[f, 0], s.log[f, 1], s.log[f, 2]
        s.payer[tensor, k, place] = s.log[f, 3]
        s.key[tensor, k, place] = s.new_key[tensor, k, place]
    for at in range(first, until + 1):
        for u in range(len(s.ends)):
            s.ends_at[at, u] = s.new_ends[at, u]
        s.peak_at[at] = s.new_peak[at]


@inlined_kernel
def drop(s: Joint, first: int) -> None:
    """Forget the last trial; modes and order must still be those that were tried."""
    for at in range(first, s.counts[REACHED]):
        op = s.sequence[at]
        for part in range(s.finish.shape[1]):
            s.begin[op, part] = s.old_begin[at, part]
            s.finish[op, part] = s.old_finish[at, part]


@inlined_kernel
def _find_turns(a: Arrays, s: Joint) -> None:
    """Turns of a timed plan: parts of an op begin at different times, and nothing may overtake another on the way."""
    m = s.modes
    for u in range(len(s.ends)):
        s.ends[u] = 0.0
    for at in range(len(s.sequence)):
        op = s.sequence[at]
        turn = s.begin[op, 0]
        for part in range(1, m.parts[op]):
            turn = min(turn, s.begin[op, part])
        for b in range(a.before_at[op], a.before_at[op + 1]):
            turn = max(turn, s.turn[a.before[b]])
        for part in range(m.parts[op]):
            for u in range(a.uses_at[m.home[op, part]], a.uses_at[m.home[op, part] + 1]):
                turn = max(turn, s.ends[a.uses[u]])
        for part in range(m.parts[op]):
            for u in range(a.uses_at[m.home[op, part]], a.uses_at[m.home[op, part] + 1]):
                s.ends[a.uses[u]] = turn
        s.turn[op] = turn


@kernel
def time_all(a: Arrays, w: Ways, s: Joint, number: int) -> float:
    """Time the whole plan, its modes and sequence as they are: the latest end in microseconds."""
    n = len(s.sequence)
    for tensor in range(s.payer.shape[0]):
        for k in range(s.payer.shape[1]):
            for place in range(s.payer.shape[2]):
                s.payer[tensor, k, place] = n
    for at in range(n - 1, -1, -1):
        s.position[s.sequence[at]] = at
        if s.modes.parts[s.sequence[at]] > 1:
            find_regions(a, w, s.modes, s.sequence[at])
    value = time_stretch(a, w, s, ZERO, n, n, number, np.inf, 0.0)
    if value < np.inf:
        keep(a, s, ZERO, n)
        _find_turns(a, s)
    return float(value)


@inner_kernel
def find_tails(a: Arrays, w: Ways, s: Joint, until: int) -> None:
    """Longest ways to the end from what stands before ``until``: by the resources, and through those that read it."""
    m = s.modes
    for u in range(len(s.next)):
        s.next[u] = FAR
    for op in range(len(s.sequence)):
        s.parts_then[op] = m.parts[op]
        for part in range(s.tail.shape[1]):
            s.tail[op, part] = FAR
    for at in range(len(s.sequence) - 1, until - 1, -1):
        op = s.sequence[at]
        for part in range(m.parts[op] - 1, -1, -1):
            here = m.home[op, part]
            tail = max(a.export[op, here], s.tail[op, part])
            for u in range(a.uses_at[here], a.uses_at[here + 1]):
                tail = max(tail, s.next[a.uses[u]])
            s.rest[op, part] = tail
            through = s.finish[op, part] - s.begin[op, part] + tail
            for u in range(a.uses_at[here], a.uses_at[here + 1]):
                s.next[a.uses[u]] = through
            for read in range(a.reads_at[op], a.reads_at[op + 1]):
                maker = a.producer[a.reads[read]]
                if maker < 0:
                    continue
                axis, low, high = needed(w, m, op, part, read)
                for k in range(m.parts[maker]):
                    if m.parts[maker] > 1:
                        begins, ends = piece(w, m, maker, k, part, axis, low, high)
                        if begins >= ends:
                            continue
                    lag = 0.0
                    if m.home[maker, k] != here:
                        lag = a.lag[m.home[maker, k]]
                    s.tail[maker, k] = max(s.tail[maker, k], lag + through)


@inner_kernel
def estimate(s: Joint, until: int, peak: float, low: int) -> float:
    """The end of a plan timed up to ``until``, as the tails see it; nothing before ``low`` has changed."""
    value = peak
    for u in range(len(s.next)):
        value = max(value, s.ends[u] + s.next[u])
    for at in range(low, until):
        op = s.sequence[at]
        if s.tail[op, 0] == FAR and s.tail[op, s.parts_then[op] - 1] == FAR:
            continue
        if s.modes.parts[op] == s.parts_then[op]:
            for part in range(s.parts_then[op]):
                value = max(value, s.finish[op, part] + s.tail[op, part])
        else:
            tail, finish = FAR, 0.0
            for part in range(s.parts_then[op]):
                tail = max(tail, s.tail[op, part])
            for part in range(s.modes.parts[op]):
                finish = max(finish, s.finish[op, part])
            value = max(value, finish + tail)
    return value

"""What parts of cut ops compute and read, as machine code: the rules of ``hope_schema.cutting`` on intervals."""

from __future__ import annotations

from planner_api.planning.judge.arrays import Arrays, State
from planner_api.planning.judge.ways import AXIS, CHAINED, FIELDS, HIGH, LOW, NEVER, PARTS, TENTH, WHOLE, Needs
from planner_api.planning.kernel import inlined_kernel, inner_kernel
from planner_api.planning.problem import IntArray
from planner_api.planning.problem.cutter import TENTHS

# NOTE: these two are given no more than they need: every array that a call passes costs the loops around it.


@inner_kernel
def needed(w: Needs, m: IntArray, own: int, part: int, read: int) -> tuple[int, int, int]:
    """What a part of the op whose mode begins at ``own`` reads: the axis, or WHOLE or NEVER, start and stop."""
    if m[own + PARTS] == 1:
        return WHOLE, 0, 0
    g = m[own + AXIS]
    axis = w.axis[read, g]
    if axis < 0:
        return axis, 0, 0
    low, high = m[own + part * FIELDS + LOW], m[own + part * FIELDS + HIGH]
    if w.at[read, g] >= 0:
        low, high = w.low[w.at[read, g] + low], w.high[w.at[read, g] + high]
    if low >= high:
        return NEVER, 0, 0
    if low == 0 and high == w.span[read, g]:
        return WHOLE, 0, 0
    return axis, low, high


@inner_kernel
def piece(m: IntArray, own: int, along: int, k: int, part: int, axis: int, low: int, high: int) -> tuple[int, int]:
    """What part ``part`` of a reader takes of part ``k`` of a cut op, whose mode begins at ``own``.

    The op is cut ``along`` an axis; the reader's part reads from ``low`` to ``high`` along ``axis``.
    """
    count, mine, one = m[own + PARTS], own + part * FIELDS, own + k * FIELDS
    before = 0
    if k > 0:
        before = m[one - FIELDS + HIGH]
    if axis != along:
        return max(m[one + LOW], before), m[one + HIGH]
    if part < count and m[mine + LOW] <= low and high <= m[mine + HIGH]:
        return (low, high) if k == part else (0, 0)
    for holder in range(count):
        if m[own + holder * FIELDS + LOW] <= low and high <= m[own + holder * FIELDS + HIGH]:
            return (low, high) if k == holder else (0, 0)
    first, last = max(low, m[one + LOW]), min(high, m[one + HIGH])
    if k != part:
        first = max(first, before)
        if k < part < count:
            last = min(last, m[mine + LOW])
    return first, last


@inlined_kernel
def holds_on(a: Arrays, s: State, op: int) -> bool:
    """Whether a chained op reads nothing but the same parts of what it reads; else it is not chained."""
    m, w, own = s.mode, a.ways, op * a.width
    if m[own + PARTS] == 1 or m[own + CHAINED] == 0 or a.reads_at[op] == a.reads_at[op + 1]:
        return False
    for read in range(a.reads_at[op], a.reads_at[op + 1]):
        maker = a.producer[a.reads[read]]
        axis = w.needs.axis[read, m[own + AXIS]]
        if (
            maker < 0
            or axis < 0
            or m[maker * a.width + PARTS] != m[own + PARTS]
            or w.axes[maker, m[maker * a.width + AXIS]] != axis
        ):
            return False
    return True


@inlined_kernel
def find_regions(a: Arrays, s: State, op: int) -> bool:
    """What each part of a cut op computes, with what chains add to it; whether that has changed."""
    m, w, own = s.mode, a.ways, op * a.width
    g, count = m[own + AXIS], m[own + PARTS]
    changed = False
    for part in range(count):
        mine = own + part * FIELDS
        last = m[own + (part + 1) * FIELDS + TENTH] if part + 1 < count else TENTHS
        start, stop = w.border[op, g, m[own + part * FIELDS + TENTH]], w.border[op, g, last]
        for k in range(a.after_at[op], a.after_at[op + 1]):
            reader = a.after[k]
            if not holds_on(a, s, reader):
                continue
            for read in range(a.reads_at[reader], a.reads_at[reader + 1]):
                if a.producer[a.reads[read]] == op:
                    axis, low, high = needed(w.needs, m, reader * a.width, part, read)
                    if axis >= 0:
                        start, stop = min(start, low), max(stop, high)
                    elif axis == WHOLE:
                        start, stop = 0, w.extent[op, g]
        changed = changed or start != m[mine + LOW] or stop != m[mine + HIGH]
        m[mine + LOW], m[mine + HIGH] = start, stop
    return changed


@inlined_kernel
def takes_of(a: Arrays, s: State, op: int, part: int, read: int, k: int) -> bool:
    """Whether a part of an op takes anything of part ``k`` of what makes the tensor of a read."""
    maker = a.producer[a.reads[read]]
    if s.mode[maker * a.width + PARTS] == 1:
        return True
    axis, low, high = needed(a.ways.needs, s.mode, op * a.width, part, read)
    along = a.ways.axes[maker, s.mode[maker * a.width + AXIS]]
    begins, ends = piece(s.mode, maker * a.width, along, k, part, axis, low, high)
    return bool(begins < ends)

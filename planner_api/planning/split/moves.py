"""The random moves of the search for cuts: where ops run, in what order, in which parts, and back."""

from __future__ import annotations

import numpy as np

from planner_api.planning.judge.evaluator import Arrays
from planner_api.planning.kernel import ZERO, inlined_kernel, inner_kernel
from planner_api.planning.problem.cutter import TENTHS
from planner_api.planning.search.moves import LONGEST_STRETCH, next_link, shift, slot, uniform
from planner_api.planning.split.state import Joint, Modes
from planner_api.planning.split.timing import find_regions
from planner_api.planning.split.ways import AXES, Ways


@inlined_kernel
def copy_mode(source: Modes, at: int, target: Modes, to: int) -> None:
    """Copy how one op is computed."""
    target.parts[to] = source.parts[at]
    target.axis[to] = source.axis[at]
    target.chained[to] = source.chained[at]
    for part in range(source.home.shape[1]):
        target.tenth[to, part] = source.tenth[at, part]
        target.home[to, part] = source.home[at, part]
        target.start[to, part] = source.start[at, part]
        target.stop[to, part] = source.stop[at, part]
    target.tenth[to, source.home.shape[1]] = source.tenth[at, source.home.shape[1]]


@inlined_kernel
def _note(s: Joint, op: int, number: int, changes: int) -> int:
    """Remember how an op is computed before a trial changes it; how many have been changed by now."""
    if s.touched[op] == number:
        return changes
    s.touched[op] = number
    s.changed[changes] = op
    copy_mode(s.modes, op, s.undo, changes)
    return changes + 1


@inner_kernel
def _settle(a: Arrays, w: Ways, s: Joint, op: int, low: int, number: int, changes: int) -> int:
    """Work out the parts of an op, and of all that chains tie to it; -1 where that lies before ``low``."""
    m, top, room = s.modes, 0, len(s.stack)
    for t in range(a.writes_at[op], a.writes_at[op + 1]):
        tensor = a.writes[t]
        for k in range(a.readers_at[tensor], a.readers_at[tensor + 1]):
            reader = a.readers[k]
            if m.chained[reader] == 1 and m.parts[reader] > 1:
                for b in range(a.before_at[reader], a.before_at[reader + 1]):
                    if a.before[b] != op and top < room - 1:
                        s.stack[top] = a.before[b]
                        top += 1
    # The op itself comes first: what the others make for it follows from its parts as they are now.
    s.stack[top] = op
    top += 1
    first = True
    while top > 0:
        top -= 1
        here = s.stack[top]
        if m.parts[here] == 1 and here != op:
            continue
        before = changes
        changes = _note(s, here, number, changes)
        changed = m.parts[here] > 1 and find_regions(a, w, m, here)
        if changed and s.position[here] < low:
            return -changes - 1
        if not changed and changes > before:
            changes -= 1
            s.touched[here] = 0
        if changed or (here == op and first):
            first = first and here != op
            for b in range(a.before_at[here], a.before_at[here + 1]):
                if top == room:
                    return -changes - 1
                s.stack[top] = a.before[b]
                top += 1
    return changes


@inlined_kernel
def _cut(a: Arrays, w: Ways, m: Modes, op: int, source: int, lean: int) -> bool:
    """Cut an op as another one is, its borders so many tenths further; False where that cannot be."""
    axis, g = w.axes[source, m.axis[source]], -1
    for other in range(AXES):
        if w.row[op] >= 0 and w.axes[op, other] == axis:
            g = other
    if g < 0:
        return False
    count = m.parts[source]
    for part in range(count):
        if part > 0:
            tenth = m.tenth[source, part] + lean
            if not 0 < tenth < TENTHS:
                return False
        else:
            tenth = 0
        if not a.latency[op, m.home[source, part]] < np.inf:
            return False
        last = TENTHS
        if part < count - 1:
            last = m.tenth[source, part + 1] + lean
        if not 0 < last <= TENTHS or w.border[op, g, tenth] >= w.border[op, g, last]:
            return False
        if not w.part_us[w.row[op], g, tenth, last, m.home[source, part]] < np.inf:
            return False
    m.parts[op], m.axis[op] = count, g
    for part in range(count):
        m.home[op, part] = m.home[source, part]
        m.tenth[op, part] = m.tenth[source, part]
        if part > 0:
            m.tenth[op, part] += lean
    m.tenth[op, count] = TENTHS
    return True


@inlined_kernel
def _choose(w: Ways, m: Modes, op: int, random: np.ndarray) -> None:
    """One of the op's best cuts, which it has."""
    first = w.option_at[op]
    option = first + int(uniform(random) * (w.option_at[op + 1] - first))
    m.parts[op], m.axis[op] = w.option_parts[option], w.option_axis[option]
    for part in range(m.parts[op]):
        m.home[op, part], m.tenth[op, part] = w.option_home[option, part], w.option_tenth[option, part]
    m.tenth[op, m.parts[op]] = TENTHS


@inlined_kernel
def _whole(a: Arrays, m: Modes, op: int, home: int) -> bool:
    """Put an op whole on a processor, or where its first part is; False where that changes nothing."""
    if not a.latency[op, home] < np.inf:
        home = m.home[op, 0]
    if not a.latency[op, home] < np.inf or (m.parts[op] == 1 and m.home[op, 0] == home):
        return False
    m.parts[op], m.home[op, 0] = 1, home
    return True


@inlined_kernel
def _passes_rival(a: Arrays, s: Joint, source: int, target: int) -> bool:
    """Whether an op moved to another position passes one that cannot run beside it: else no time changes."""
    m, op = s.modes, s.sequence[source]
    for at in range(min(source, target), max(source, target) + 1):
        other = s.sequence[at]
        for part in range(m.parts[op] if at != source else 0):
            for k in range(m.parts[other]):
                if a.rivals[m.home[op, part], m.home[other, k]]:
                    return True
    return False


@inner_kernel
def propose(
    a: Arrays, w: Ways, s: Joint, low: int, high: int, number: int, random: np.ndarray
) -> tuple[int, int, int, int]:
    """Make one random change inside the window.

    Move an op (25 %); else take an op, or a stretch of a chain, and put it whole on one processor (a third), cut it
    like its first op, or like a neighbour of that (a third), or move its borders by a tenth, tie it or untie it.

    Returns:
        How many ops were changed (noted in ``undo``; negative: the change cannot be made, less one), the first
        position that changed, and from which position to which an op was moved (-1: none).
    """
    m = s.modes
    position = low + int(uniform(random) * (high - low))
    op = s.sequence[position]
    kind = uniform(random)
    if kind < 0.25:
        target = slot(a, s, op, low, high, random)
        if not _passes_rival(a, s, position, target):
            return 0, high, -1, -1
        shift(s, position, target)
        return 0, min(position, target), position, target
    wanted = 1
    if uniform(random) < 0.6:
        wanted = 2 + int(uniform(random) * (LONGEST_STRETCH - 1))
    action = uniform(random)
    home = int(uniform(random) * a.latency.shape[1])
    lean = 1 - 2 * int(uniform(random) * 2)
    model, tie = op, 1
    if uniform(random) < 0.3:
        tie = 0
    changes, link = ZERO, op
    for turn in range(wanted):
        before = changes
        changes = _note(s, link, number, changes)
        made = False
        if action < 0.33:
            made = _whole(a, m, link, home)
        elif action < 0.75:
            made = turn > 0 and m.parts[model] > 1 and _cut(a, w, m, link, model, ZERO)
            if turn == 0:
                near = a.before_at[op + 1] - a.before_at[op]
                around = near + a.after_at[op + 1] - a.after_at[op]
                if around > 0 and uniform(random) < 0.5:
                    pick = int(uniform(random) * around)
                    other = a.before[a.before_at[op] + pick] if pick < near else a.after[a.after_at[op] + pick - near]
                    made = m.parts[other] > 1 and _cut(a, w, m, op, other, ZERO)
                if not made and w.row[op] >= 0 and w.option_at[op] < w.option_at[op + 1]:
                    _choose(w, m, op, random)
                    if uniform(random) < 0.5:
                        _cut(a, w, m, op, op, lean)
                    made = True
            if made:
                m.chained[link] = tie
        elif m.parts[link] > 1:
            made = action >= 0.92 or _cut(a, w, m, link, link, lean)
            if action >= 0.92:
                m.chained[link] = 1 - m.chained[link]
        if made:
            changes = _settle(a, w, s, link, low, number, changes)
            if changes < 0:
                return changes, high, -1, -1
        elif changes > before:
            changes -= 1
            s.touched[link] = 0
        link = next_link(a, s, link, high, random)
        if link < 0:
            break
    first = high
    for change in range(changes):
        first = min(first, s.position[s.changed[change]])
    return changes, first, -1, -1


@inlined_kernel
def take_back(s: Joint, changes: int, source: int, target: int) -> None:
    """Undo what `propose` did."""
    if source >= 0:
        shift(s, target, source)
    for change in range(changes):
        copy_mode(s.undo, change, s.modes, s.changed[change])

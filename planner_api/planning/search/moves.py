"""The random moves of annealing: change how ops are computed and in what order, and take it back."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from planner_api.planning.judge.arrays import DRAWS, Arrays, State
from planner_api.planning.judge.parts import find_regions
from planner_api.planning.judge.ways import AXES, AXIS, CHAINED, FIELDS, HOME, PARTS, TENTH
from planner_api.planning.kernel import inlined_kernel
from planner_api.planning.problem import IntArray
from planner_api.planning.problem.cutter import TENTHS

LONGEST_STRETCH = 8
"""Ops of a chain that one move may change together."""
CUTTING = 0.65
"""Of the moves that change how ops are computed, so many cut them where that can be; the others put them whole."""
LINKS = 16
"""From here on in `State.draws`: which way a chain goes on."""
NONE = cast(int, np.int64(-1))


@inlined_kernel
def draw(random: np.ndarray, draws: Any) -> None:
    """Fill an array with numbers of [0, 1) from a xorshift64* generator whose one-word state is advanced in place."""
    x = random[0]
    for k in range(len(draws)):
        x ^= x >> np.uint64(12)
        x ^= x << np.uint64(25)
        x ^= x >> np.uint64(27)
        draws[k] = float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0
    random[0] = x


@inlined_kernel
def copy_mode(a: Arrays, source: IntArray, at: int, target: IntArray, to: int) -> None:
    """Copy how one op is computed."""
    for field in range(a.width):
        target[to * a.width + field] = source[at * a.width + field]


@inlined_kernel
def _note(a: Arrays, s: State, op: int, number: int, changes: int) -> int:
    """Remember how an op is computed before a trial changes it; how many have been changed by now."""
    if s.touched[op] == number:
        return changes
    s.touched[op] = number
    s.changed[changes] = op
    copy_mode(a, s.mode, op, s.undo, changes)
    return changes + 1


@inlined_kernel
def _neighbour(a: Arrays, op: int, pick: float) -> int:
    """A random op that the op reads from, or that reads from it; -1 where there is none."""
    near = a.before_at[op + 1] - a.before_at[op]
    around = near + a.after_at[op + 1] - a.after_at[op]
    which = int(pick * around)
    if around == 0:
        return NONE
    return int(a.before[a.before_at[op] + which] if which < near else a.after[a.after_at[op] + which - near])


@inlined_kernel
def _another(a: Arrays, s: State, op: int, neighbour: int) -> int:
    """A random other processor that supports the op, where there are many often a neighbour's; or the same one."""
    here = s.mode[op * a.width + HOME] if s.mode[op * a.width + PARTS] == 1 else NONE
    if a.latency.shape[1] > 2 and s.draws[4] < 0.5 and neighbour >= 0:
        there = s.mode[neighbour * a.width + HOME]
        if there != here and a.latency[op, there] < np.inf:
            return int(there)
    count = 0
    for p in range(a.latency.shape[1]):
        if p != here and a.latency[op, p] < np.inf:
            count += 1
    pick = int(s.draws[5] * count)
    for p in range(a.latency.shape[1]):
        if p != here and a.latency[op, p] < np.inf:
            if pick == 0:
                return p
            pick -= 1
    return int(here)


@inlined_kernel
def _cut(a: Arrays, s: State, op: int, model: int, lean: int) -> bool:
    """Cut an op as another one is, its borders so many tenths further; False where that cannot be."""
    m, w = s.mode, a.ways
    count, axis, g = m[model * a.width + PARTS], w.axes[model, m[model * a.width + AXIS]], NONE
    if w.row[op] < 0 or count == 1:
        return False
    for other in range(AXES):
        if w.axes[op, other] == axis:
            g = other
    if g < 0:
        return False
    for part in range(count):
        begin = m[model * a.width + part * FIELDS + TENTH] + lean if part > 0 else 0
        end = m[model * a.width + (part + 1) * FIELDS + TENTH] + lean if part + 1 < count else TENTHS
        home = m[model * a.width + part * FIELDS + HOME]
        if not (0 <= begin < end <= TENTHS and (part == 0 or begin > 0)) or not a.latency[op, home] < np.inf:
            return False
        if w.border[op, g, begin] >= w.border[op, g, end] or not w.part_us[w.row[op], g, begin, end, home] < np.inf:
            return False
    for part in range(count):
        m[op * a.width + part * FIELDS + HOME] = m[model * a.width + part * FIELDS + HOME]
        m[op * a.width + part * FIELDS + TENTH] = m[model * a.width + part * FIELDS + TENTH] + (lean if part > 0 else 0)
    m[op * a.width + PARTS], m[op * a.width + AXIS] = count, g
    return True


@inlined_kernel
def _change_cut(a: Arrays, s: State, op: int, model: int, turn: int) -> bool:
    """Cut an op like the one before it in its chain, like a neighbour or at one of its best; lean, tie or untie it."""
    m, w = s.mode, a.ways
    action, lean = s.draws[8], 1 - 2 * int(s.draws[13] * 2)
    if action >= 0.88:
        m[op * a.width + CHAINED] = 1 - m[op * a.width + CHAINED]
        return bool(m[op * a.width + PARTS] > 1)
    source, made = op, False
    if action < 0.63:
        options = w.option_at[op + 1] - w.option_at[op]
        if model >= 0 and (turn > 0 or s.draws[9] < 0.5) and m[model * a.width + PARTS] > 1:
            source, lean = model, 0
        elif turn == 0 and options > 0:
            copy_mode(a, w.option, w.option_at[op] + int(s.draws[11] * options), m, op)
            made = True
        else:
            return False
    made = _cut(a, s, op, source, lean) or made
    if made and action < 0.63:
        m[op * a.width + CHAINED] = 1 if s.draws[14] >= 0.3 else 0
    return made


@inlined_kernel
def _settle(a: Arrays, s: State, low: int, number: int, changes: int) -> int:
    """Work out what parts compute now that some ops have changed; negative, less one, where that lies before ``low``.

    What chains add to a part goes backwards, from who reads to what it reads.
    """
    last = low
    for change in range(changes):
        last = max(last, s.position[s.changed[change]])
    for at in range(last, low - 1, -1):
        op = s.sequence[at]
        own, k = s.touched[op] == number, NONE
        # The op itself, then, if it has changed, what it reads from before the window, which must stay as it is.
        while k < (a.before_at[op + 1] - a.before_at[op] if own else 0):
            one = a.before[a.before_at[op] + k] if k >= 0 else op
            k += 1
            if s.mode[one * a.width + PARTS] == 1 or (one != op and s.position[one] >= low):
                continue
            noted = _note(a, s, one, number, changes)
            changed = find_regions(a, s, one)
            if changed and one != op:
                return -noted - 1
            if one == op and (changed or own):
                changes, own = noted, True
            elif noted > changes:
                s.touched[one] = 0
    return changes


@inlined_kernel
def shift(s: State, source: int, target: int) -> None:
    """Move the op at one position to another; those between move up by one."""
    op = s.sequence[source]
    step = 1 if target > source else -1
    for at in range(source, target, step):
        s.sequence[at] = s.sequence[at + step]
        s.position[s.sequence[at]] = at
    s.sequence[target] = op
    s.position[op] = target


@inlined_kernel
def _slot(a: Arrays, s: State, op: int, low: int, high: int) -> int:
    """A position of the window for an op, behind all it reads and before all that read it; its own if it tells nothing.

    Passing only ops that run beside it changes no time.
    """
    m, position = s.mode, s.position[op]
    floor, ceiling = low, high - 1
    for k in range(a.before_at[op], a.before_at[op + 1]):
        floor = max(floor, s.position[a.before[k]] + 1)
    for k in range(a.after_at[op], a.after_at[op + 1]):
        ceiling = min(ceiling, s.position[a.after[k]] - 1)
    target = floor + int(s.draws[6] * (ceiling - floor + 1))
    for at in range(min(position, target), max(position, target) + 1):
        other = s.sequence[at]
        for part in range(m[op * a.width + PARTS] if at != position else 0):
            for k in range(m[other * a.width + PARTS]):
                if a.rivals[m[op * a.width + part * FIELDS + HOME], m[other * a.width + k * FIELDS + HOME]]:
                    return target
    return int(position)


@inlined_kernel
def propose(a: Arrays, s: State, low: int, high: int, number: int) -> tuple[int, int, int]:
    """Make one random change inside the window: to an op (30 %), a stretch of a chain (20 %), the order (35 %), both.

    To change is to put it whole on another processor, or to cut it. Where ops may be cut stretches are more frequent.

    Returns:
        How many ops were changed (noted in ``undo``; negative: the change cannot be made, less one), and from which
        position to which one was moved (-1: none).
    """
    m = s.mode
    position = low + int(s.draws[0] * (high - low))
    op, kind = s.sequence[position], s.draws[1]
    changes = 0 * position
    if kind < 0.50 or kind >= 0.85:
        wanted = 1
        if (0.30 <= kind < 0.50) or (a.cuttable and s.draws[15] < 0.5):
            wanted = 2 + int(s.draws[2] * (LONGEST_STRETCH - 1))
        neighbour = _neighbour(a, op, s.draws[10])
        home, cutting = _another(a, s, op, neighbour), a.cuttable and s.draws[7] < CUTTING
        link, turn = op, 0
        while link >= 0 and turn < wanted and (cutting or home >= 0):
            known = changes
            changes = _note(a, s, link, number, changes)
            if cutting:
                made = _change_cut(a, s, link, neighbour if turn == 0 else op, turn)
            else:
                own = link * a.width
                made = (m[own + PARTS] > 1 or m[own + HOME] != home) and a.latency[link, home] < np.inf
                if made:
                    m[own + HOME], m[own + PARTS] = home, 1
            if made or cutting:
                turn += 1
            elif turn == 0:
                turn = wanted
            if not made:
                s.touched[link], changes = 0, known
            # On along the chain, to one of those that read what the op makes.
            successors = a.after_at[link + 1] - a.after_at[link]
            if successors > 0:
                link = a.after[a.after_at[link] + int(s.draws[LINKS + turn % (DRAWS - LINKS)] * successors)]
            if successors == 0 or s.position[link] >= high:
                link = NONE
        if a.cuttable:
            changes = _settle(a, s, low, number, changes)
    if kind >= 0.50 and changes >= 0:
        target = _slot(a, s, op, low, high)
        if target != position:
            shift(s, position, target)
            return changes, position, target
    return changes, NONE, NONE


@inlined_kernel
def take_back(a: Arrays, s: State, changes: int, source: int, target: int) -> None:
    """Undo what `propose` did."""
    if source >= 0:
        shift(s, target, source)
    for change in range(changes):
        copy_mode(a, s.undo, change, s.mode, s.changed[change])

"""Windowed simulated annealing over (assignment, sequence) with an incremental evaluator.

A window is a stretch of consecutive positions in start-time order. Inside it, ops change processor and order; what
lies before is frozen, and what lies after enters through exact tails (longest paths to the end of the accepted
schedule), so that one move costs about one window of work instead of one schedule.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from planner_api.planning.evaluator import Arrays, evaluate
from planner_api.planning.problem import FloatArray, IntArray

LONGEST_STRETCH = 8
"""Ops of a chain that one move may flip together."""


@njit(cache=True, nogil=True)
def _uniform(state: np.ndarray) -> float:
    """Next number of [0, 1) from a xorshift64* generator whose one-word state is advanced in place."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@njit(cache=True, nogil=True)
def _another(a: Arrays, op: int, here: int, state: np.ndarray) -> int:
    """A random other processor that supports the op, or the same one when there is none."""
    count = 0
    for p in range(a.latency.shape[1]):
        if p != here and a.latency[op, p] < np.inf:
            count += 1
    if count == 0:
        return here
    pick = int(_uniform(state) * count)
    for p in range(a.latency.shape[1]):
        if p != here and a.latency[op, p] < np.inf:
            if pick == 0:
                return p
            pick -= 1
    return here


@njit(cache=True, nogil=True)
def _shift(sequence: IntArray, place: IntArray, source: int, target: int) -> None:
    """Move the op at one position to another; those between move up by one."""
    op = sequence[source]
    step = 1 if target > source else -1
    for position in range(source, target, step):
        sequence[position] = sequence[position + step]
        place[sequence[position]] = position
    sequence[target] = op
    place[op] = target


@njit(cache=True, nogil=True)
def _propose(
    a: Arrays,
    assignment: IntArray,
    sequence: IntArray,
    place: IntArray,
    low: int,
    high: int,
    flipped: IntArray,
    flipped_from: IntArray,
    state: np.ndarray,
) -> tuple[int, int, int]:
    """Make one random change inside the window: flip an op (30 %), a stretch of a chain (20 %), move one (35 %), both.

    Returns:
        How many ops were flipped (listed in ``flipped``), and from which position to which one was moved (-1: none).
    """
    position = low + int(_uniform(state) * (high - low))
    op = sequence[position]
    kind = _uniform(state)
    flips = 0
    if kind < 0.50 or kind >= 0.85:
        other = _another(a, op, assignment[op], state)
        wanted = 1
        if 0.30 <= kind < 0.50:
            wanted = 2 + int(_uniform(state) * (LONGEST_STRETCH - 1))
        link = op
        while other != assignment[op] and flips < wanted:
            if assignment[link] != other and a.latency[link, other] < np.inf:
                flipped[flips] = link
                flips += 1
            successors = a.after_at[link + 1] - a.after_at[link]
            if successors == 0:
                break
            link = a.after[a.after_at[link] + int(_uniform(state) * successors)]
            if place[link] >= high:
                break
        for f in range(flips):
            flipped_from[f] = assignment[flipped[f]]
            assignment[flipped[f]] = other
    if kind >= 0.50:
        floor = low
        for k in range(a.before_at[op], a.before_at[op + 1]):
            floor = max(floor, place[a.before[k]] + 1)
        ceiling = high - 1
        for k in range(a.after_at[op], a.after_at[op + 1]):
            ceiling = min(ceiling, place[a.after[k]] - 1)
        target = floor + int(_uniform(state) * (ceiling - floor + 1))
        if target != position:
            _shift(sequence, place, position, target)
            return flips, position, target
    return flips, -1, -1


@njit(cache=True, nogil=True)
def _take_back(
    assignment: IntArray,
    sequence: IntArray,
    place: IntArray,
    flips: int,
    source: int,
    target: int,
    flipped: IntArray,
    flipped_from: IntArray,
) -> None:
    """Undo what `_propose` did."""
    if source >= 0:
        _shift(sequence, place, target, source)
    for f in range(flips):
        assignment[flipped[f]] = flipped_from[f]


@njit(cache=True, nogil=True)
def anneal_window(
    a: Arrays,
    assignment: IntArray,
    sequence: IntArray,
    finish: FloatArray,
    payer: IntArray,
    low: int,
    high: int,
    moves: int,
    hot: float,
    cold: float,
    state: np.ndarray,
) -> float:
    """Anneal positions ``low`` to ``high`` of a blocking schedule.

    Args:
        a: the problem.
        assignment: (n,) improved in place.
        sequence: (n,) improved in place.
        finish: (n,) as `evaluate` left it for this schedule; scratch afterwards.
        payer: (T, P) likewise.
        low: first position of the window.
        high: one past its last position.
        moves: how many to try.
        hot: first temperature in microseconds.
        cold: last temperature.
        state: one word of random state.

    Returns:
        The best makespan met, as the sum of tails sees it (equal to `evaluate` up to rounding).
    """
    n, host = a.latency.shape
    tensors = len(a.producer)
    width = high - low
    place = np.empty(n, dtype=np.int64)
    for position in range(n):
        place[sequence[position]] = position

    # How far a change of each window op can alter who pays for a tensor: by flipping it, by moving it in order.
    last_reader = np.zeros(tensors, dtype=np.int64)
    for tensor in range(tensors):
        for k in range(a.readers_at[tensor], a.readers_at[tensor + 1]):
            last_reader[tensor] = max(last_reader[tensor], place[a.readers[k]])
    reach_move = np.full(n, high, dtype=np.int64)
    reach_flip = np.full(n, high, dtype=np.int64)
    end = high
    for position in range(low, high):
        op = sequence[position]
        for k in range(a.reads_at[op], a.reads_at[op + 1]):
            reach_move[op] = max(reach_move[op], last_reader[a.reads[k]] + 1)
        reach_flip[op] = reach_move[op]
        for k in range(a.writes_at[op], a.writes_at[op + 1]):
            reach_flip[op] = max(reach_flip[op], last_reader[a.writes[k]] + 1)
        end = max(end, reach_flip[op])

    duration = np.zeros(n)
    for position in range(low, n):
        op = sequence[position]
        here = assignment[op]
        for k in range(a.reads_at[op], a.reads_at[op + 1]):
            tensor = a.reads[k]
            source = assignment[a.producer[tensor]] if a.producer[tensor] >= 0 else host
            if source != here and payer[tensor, here] == position:
                duration[op] += a.cost[tensor, source, here]
        duration[op] += a.latency[op, here]

    # through[op]: duration plus longest path from its finish to the end of the accepted schedule.
    through = np.zeros(n)
    upcoming = np.zeros(host)
    upcoming_at = np.zeros((end - high + 1, host))
    bypass_in = np.full(n, -np.inf)
    bypass_at = np.full(end - high + 1, -np.inf)
    for position in range(high, n):
        op = sequence[position]
        for k in range(a.before_at[op], a.before_at[op + 1]):
            earlier = a.before[k]
            if place[earlier] < low:
                bypass_in[op] = max(bypass_in[op], finish[earlier])
    bypass = -np.inf
    for position in range(n - 1, high - 1, -1):
        if position < end:
            upcoming_at[position + 1 - high] = upcoming
            bypass_at[position + 1 - high] = bypass
        op = sequence[position]
        here = assignment[op]
        tail = a.export_us[op, here]
        for k in range(a.after_at[op], a.after_at[op + 1]):
            tail = max(tail, through[a.after[k]])
        for rival in range(host):
            if a.rivals[here, rival]:
                tail = max(tail, upcoming[rival])
        through[op] = duration[op] + tail
        upcoming[here] = through[op]
        bypass = max(bypass, bypass_in[op] + through[op])
    upcoming_at[0] = upcoming
    bypass_at[0] = bypass

    # Ops of the window, or between it and ``end``, that someone past the window reads.
    crossing = np.empty(end - low, dtype=np.int64)
    crossings = 0
    far = np.zeros(n, dtype=np.int64)
    for position in range(low, end):
        op = sequence[position]
        for k in range(a.after_at[op], a.after_at[op + 1]):
            far[op] = max(far[op], place[a.after[k]])
        if far[op] >= high:
            crossing[crossings] = op
            crossings += 1

    # Accepted state before each position of the window, and the running maximum of finish plus export.
    free_at = np.zeros((width + 1, host))
    peak_at = np.zeros(width + 1)
    for position in range(high):
        if position >= low:
            free_at[position - low] = free_at[width]
            peak_at[position - low] = peak_at[width]
        op = sequence[position]
        here = assignment[op]
        for rival in range(host):
            if a.rivals[here, rival]:
                free_at[width, rival] = max(free_at[width, rival], finish[op])
        peak_at[width] = max(peak_at[width], finish[op] + a.export_us[op, here])

    current = max(peak_at[width], bypass_at[0])
    for c in range(crossings):
        op = crossing[c]
        if place[op] < high:
            for k in range(a.after_at[op], a.after_at[op + 1]):
                if place[a.after[k]] >= high:
                    current = max(current, finish[op] + through[a.after[k]])
    for p in range(host):
        current = max(current, free_at[width, p] + upcoming_at[0, p])

    best = current
    best_sequence = sequence[low:high].copy()
    best_assignment = assignment[sequence[low:high]].copy()

    stamp = np.zeros((tensors, host), dtype=np.int64)
    old_finish = np.zeros(end - low)
    new_duration = np.zeros(end - low)
    new_free = np.zeros((width + 1, host))
    new_peak = np.zeros(width + 1)
    free = np.zeros(host)
    paid = np.empty((a.reads_at[n], 3), dtype=np.int64)
    flipped = np.empty(LONGEST_STRETCH, dtype=np.int64)
    flipped_from = np.empty(LONGEST_STRETCH, dtype=np.int64)
    ratio = (cold / hot) ** (1.0 / max(1, moves - 1))
    temperature = hot / ratio

    for move in range(1, moves + 1):
        temperature *= ratio
        flips, source_position, target_position = _propose(
            a, assignment, sequence, place, low, high, flipped, flipped_from, state
        )
        if flips == 0 and source_position < 0:
            continue
        first, until = high, high
        for f in range(flips):
            first = min(first, place[flipped[f]])
            until = max(until, reach_flip[flipped[f]])
        if source_position >= 0:
            first = min(first, source_position, target_position)
            until = max(until, reach_move[sequence[target_position]])

        # --- evaluate from the first change to the last op whose transfers it can alter
        limit = current - temperature * np.log(max(_uniform(state), 1e-300))
        free[:] = free_at[first - low]
        peak = peak_at[first - low]
        payments = 0
        retimed = False
        rejected = False
        reached = first
        for at in range(first, until):
            step = sequence[at]
            here = assignment[step]
            if at <= high:
                new_free[at - low] = free
                new_peak[at - low] = peak
            begin = free[here]
            for k in range(a.before_at[step], a.before_at[step + 1]):
                begin = max(begin, finish[a.before[k]])
            spent = 0.0
            for k in range(a.reads_at[step], a.reads_at[step + 1]):
                tensor = a.reads[k]
                source = assignment[a.producer[tensor]] if a.producer[tensor] >= 0 else host
                if source != here and payer[tensor, here] >= first and stamp[tensor, here] != move:
                    stamp[tensor, here] = move
                    spent += a.cost[tensor, source, here]
                    paid[payments, 0] = tensor
                    paid[payments, 1] = here
                    paid[payments, 2] = at
                    payments += 1
            spent += a.latency[step, here]
            if at >= high and spent != duration[step]:
                retimed = True
            new_duration[at - low] = spent
            old_finish[at - low] = finish[step]
            now = begin + spent
            finish[step] = now
            reached = at + 1
            if now + a.tail_us[step] > limit:
                rejected = True
                break
            for rival in range(host):
                if a.rivals[here, rival]:
                    free[rival] = max(free[rival], now)
            peak = max(peak, now + a.export_us[step, here])
        makespan = peak
        if not rejected:
            if until == high:
                new_free[width] = free
                new_peak[width] = peak
            makespan = max(makespan, bypass_at[until - high])
            for p in range(host):
                makespan = max(makespan, free[p] + upcoming_at[until - high, p])
            if makespan <= limit:
                for c in range(crossings):
                    link = crossing[c]
                    if far[link] >= until and place[link] < until:
                        for k in range(a.after_at[link], a.after_at[link + 1]):
                            if place[a.after[k]] >= until:
                                makespan = max(makespan, finish[link] + through[a.after[k]])
            rejected = makespan > limit

        if rejected:
            for at in range(first, reached):
                finish[sequence[at]] = old_finish[at - low]
            _take_back(assignment, sequence, place, flips, source_position, target_position, flipped, flipped_from)
            continue

        # --- accept
        current = makespan
        for at in range(first, until):
            step = sequence[at]
            for k in range(a.reads_at[step], a.reads_at[step + 1]):
                tensor = a.reads[k]
                for p in range(host):
                    if first <= payer[tensor, p] < until:
                        payer[tensor, p] = n
        for k in range(payments):
            payer[paid[k, 0], paid[k, 1]] = paid[k, 2]
        for at in range(first, min(until, high) + 1):
            free_at[at - low] = new_free[at - low]
            peak_at[at - low] = new_peak[at - low]
        if retimed:
            for at in range(high, until):
                duration[sequence[at]] = new_duration[at - low]
            upcoming[:] = upcoming_at[until - high]
            bypass = bypass_at[until - high]
            for at in range(until - 1, high - 1, -1):
                step = sequence[at]
                here = assignment[step]
                tail = a.export_us[step, here]
                for k in range(a.after_at[step], a.after_at[step + 1]):
                    tail = max(tail, through[a.after[k]])
                for rival in range(host):
                    if a.rivals[here, rival]:
                        tail = max(tail, upcoming[rival])
                through[step] = duration[step] + tail
                upcoming[here] = through[step]
                bypass = max(bypass, bypass_in[step] + through[step])
                upcoming_at[at - high] = upcoming
                bypass_at[at - high] = bypass
        if current < best:
            best = current
            best_sequence[:] = sequence[low:high]
            for at in range(low, high):
                best_assignment[at - low] = assignment[sequence[at]]

    sequence[low:high] = best_sequence
    for at in range(low, high):
        assignment[sequence[at]] = best_assignment[at - low]
    return float(best)


@njit(cache=True, nogil=True)
def anneal_whole(
    a: Arrays,
    assignment: IntArray,
    sequence: IntArray,
    low: int,
    high: int,
    moves: int,
    hot: float,
    cold: float,
    state: np.ndarray,
) -> float:
    """`anneal_window` for either transfer mode, each move timed from the first op to the last.

    In ``overlap`` mode a flip changes what is sent when a tensor comes to be, long before the op that was flipped.
    """
    n, host = a.latency.shape
    start, finish = np.zeros(n), np.zeros(n)
    payer = np.zeros((len(a.producer), host), dtype=np.int64)
    place = np.empty(n, dtype=np.int64)
    for position in range(n):
        place[sequence[position]] = position
    flipped = np.empty(LONGEST_STRETCH, dtype=np.int64)
    flipped_from = np.empty(LONGEST_STRETCH, dtype=np.int64)
    current = evaluate(a, assignment, sequence, start, finish, payer)
    best = current
    best_sequence = sequence.copy()
    best_assignment = assignment.copy()
    ratio = (cold / hot) ** (1.0 / max(1, moves - 1))
    temperature = hot / ratio
    for _ in range(moves):
        temperature *= ratio
        flips, source, target = _propose(a, assignment, sequence, place, low, high, flipped, flipped_from, state)
        if flips == 0 and source < 0:
            continue
        makespan = evaluate(a, assignment, sequence, start, finish, payer)
        if makespan > current - temperature * np.log(max(_uniform(state), 1e-300)):
            _take_back(assignment, sequence, place, flips, source, target, flipped, flipped_from)
            continue
        current = makespan
        if current < best:
            best = current
            best_sequence[:] = sequence
            best_assignment[:] = assignment
    sequence[:] = best_sequence
    assignment[:] = best_assignment
    return float(best)

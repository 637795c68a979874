"""Windowed simulated annealing over (assignment, sequence) with an incremental evaluator.

A window is a stretch of consecutive positions in start-time order. Inside it, ops change processor and order; what
lies before is frozen, and what lies after enters through exact tails (longest paths to the end of the accepted
schedule), so that one move costs about one window of work instead of one schedule.
"""

from __future__ import annotations

import numpy as np

from planner_api.planning.judge.evaluator import Arrays, evaluate
from planner_api.planning.kernel import copy_into, kernel
from planner_api.planning.problem import FloatArray, IntArray
from planner_api.planning.search.moves import LONGEST_STRETCH, propose, take_back, uniform
from planner_api.planning.search.window import Window, cut_out


@kernel
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
        assignment: (n,) improved in place, at the window's ops only.
        sequence: (n,) improved in place, inside the window only.
        finish: (n,) as `evaluate` left it for this schedule.
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
    place = np.empty(len(sequence), dtype=np.int64)
    for position in range(len(sequence)):
        place[sequence[position]] = position
    w = cut_out(a, assignment, sequence, place, finish, payer, low, high)
    ops = np.empty(len(w.ready), dtype=np.int64)
    order, processor, times = np.empty_like(ops), np.empty_like(ops), np.empty(len(ops))
    for position in range(len(ops)):
        ops[position] = sequence[low + position]
        order[position] = position
        processor[position] = assignment[ops[position]]
        times[position] = finish[ops[position]]
    best = _anneal(w, processor, order, times, high - low, moves, hot, cold, state)
    for position in range(high - low):
        sequence[low + position] = ops[order[position]]
        assignment[ops[position]] = processor[position]
    return best


@kernel
def _retail(
    w: Window,
    assignment: IntArray,
    sequence: IntArray,
    duration: FloatArray,
    through: FloatArray,
    upcoming: FloatArray,
    width: int,
    until: int,
    upcoming_at: FloatArray,
    bypass_at: FloatArray,
) -> None:
    """Longest paths to the end of the ops from ``until`` back to the window's last position."""
    host = w.latency.shape[1]
    for p in range(host):
        upcoming[p] = upcoming_at[until - width, p]
    bypass = bypass_at[until - width]
    for position in range(until - 1, width - 1, -1):
        op = sequence[position]
        here = assignment[op]
        tail = max(w.export_us[op, here], w.beyond[op])
        for k in range(w.after_at[op], w.after_at[op + 1]):
            tail = max(tail, through[w.after[k]])
        for rival in range(host):
            if w.rivals[here, rival]:
                tail = max(tail, upcoming[rival])
        through[op] = duration[op] + tail
        upcoming[here] = through[op]
        if w.ready[op] > 0.0:
            bypass = max(bypass, w.ready[op] + through[op])
        for p in range(host):
            upcoming_at[position - width, p] = upcoming[p]
        bypass_at[position - width] = bypass


@kernel
def _anneal(
    w: Window,
    assignment: IntArray,
    sequence: IntArray,
    finish: FloatArray,
    width: int,
    moves: int,
    hot: float,
    cold: float,
    state: np.ndarray,
) -> float:
    """Anneal the first ``width`` positions of a window; leaves the best placement and order met."""
    count, host = w.latency.shape
    tensors = len(w.producer)
    place = sequence.copy()
    payer = w.payer.copy()
    duration = np.zeros(count)
    for position in range(count):
        op = sequence[position]
        here = assignment[op]
        for k in range(w.reads_at[op], w.reads_at[op + 1]):
            tensor = w.reads[k]
            source = assignment[w.producer[tensor]] if w.producer[tensor] >= 0 else w.source[tensor]
            if source != here and payer[tensor, here] == position:
                duration[op] += w.cost[tensor, source, here]
        duration[op] += w.latency[op, here]
    through = np.zeros(count)
    upcoming = np.zeros(host)
    upcoming_at = np.zeros((count - width + 1, host))
    bypass_at = np.zeros(count - width + 1)
    for p in range(host):
        upcoming_at[count - width, p] = w.upcoming[p]
    bypass_at[count - width] = w.bypass
    _retail(w, assignment, sequence, duration, through, upcoming, width, count, upcoming_at, bypass_at)

    # Ops that someone past the window reads, by position: those of the window may move inside it.
    far = np.full(count, -1, dtype=np.int64)
    crossing = np.empty(count, dtype=np.int64)
    crossings = 0
    for op in range(count):
        for k in range(w.after_at[op], w.after_at[op + 1]):
            far[op] = max(far[op], place[w.after[k]])
        if w.beyond[op] > -np.inf:
            far[op] = count
        if far[op] >= width:
            crossing[crossings] = op
            crossings += 1

    # Accepted state before each position of the window, and the running maximum of finish plus export.
    free_at = np.zeros((width + 1, host))
    peak_at = np.zeros(width + 1)
    for p in range(host):
        free_at[0, p] = w.free[p]
    peak_at[0] = w.peak
    for position in range(width):
        op = sequence[position]
        here = assignment[op]
        for p in range(host):
            free_at[position + 1, p] = free_at[position, p]
            if w.rivals[here, p]:
                free_at[position + 1, p] = max(free_at[position, p], finish[op])
        peak_at[position + 1] = max(peak_at[position], finish[op] + w.export_us[op, here])
    current = max(peak_at[width], bypass_at[0])
    for p in range(host):
        current = max(current, free_at[width, p] + upcoming_at[0, p])
    for c in range(crossings):
        op = crossing[c]
        if place[op] < width:
            current = max(current, finish[op] + w.beyond[op])
            for k in range(w.after_at[op], w.after_at[op + 1]):
                if place[w.after[k]] >= width:
                    current = max(current, finish[op] + through[w.after[k]])

    best = current
    best_sequence = sequence.copy()
    best_assignment = assignment.copy()
    stamp = np.zeros((tensors, host), dtype=np.int64)
    old_finish = np.zeros(count)
    new_duration = np.zeros(count)
    new_free = np.zeros((width + 1, host))
    new_peak = np.zeros(width + 1)
    free = np.zeros(host)
    paid = np.empty((len(w.reads), 3), dtype=np.int64)
    flipped = np.empty(LONGEST_STRETCH, dtype=np.int64)
    flipped_from = np.empty(LONGEST_STRETCH, dtype=np.int64)
    ratio = (cold / hot) ** (1.0 / max(1, moves - 1))
    temperature = hot / ratio

    for move in range(1, moves + 1):
        temperature *= ratio
        flips, source_position, target_position = propose(
            w.latency, w.rivals, w.before_at, w.before, w.after_at, w.after, assignment, sequence, place, 0, width,
            flipped, flipped_from, state,
        )  # fmt: skip
        if flips == 0 and source_position < 0:
            continue
        first, until = width, width
        hope = 0.0
        for f in range(flips):
            hope += w.saving[flipped[f]]
            first = min(first, place[flipped[f]])
            until = max(until, w.reach_flip[flipped[f]])
        if source_position >= 0:
            first = min(first, source_position, target_position)
            until = max(until, w.reach_move[sequence[target_position]])
            hope += w.saving[sequence[target_position]]

        # --- evaluate from the first change to the last op whose transfers it can alter
        limit = current - temperature * np.log(max(uniform(state), 1e-300))
        for p in range(host):
            free[p] = free_at[first, p]
        peak = peak_at[first]
        payments = 0
        retimed = False
        rejected = False
        reached = first
        for at in range(first, until):
            if at == width:
                # Past the window only the transfers paid for what was changed can become shorter; how much that can
                # be was counted when the window began, which is near enough to turn a move down.
                late = max(peak, bypass_at[0] - hope)
                for p in range(host):
                    late = max(late, free[p] + upcoming_at[0, p] - hope)
                if late > limit:
                    rejected = True
                    break
            if at <= width:
                for p in range(host):
                    new_free[at, p] = free[p]
                new_peak[at] = peak
            op = sequence[at]
            here = assignment[op]
            begin = max(free[here], w.ready[op])
            for k in range(w.before_at[op], w.before_at[op + 1]):
                begin = max(begin, finish[w.before[k]])
            spent = 0.0
            for k in range(w.reads_at[op], w.reads_at[op + 1]):
                tensor = w.reads[k]
                source = assignment[w.producer[tensor]] if w.producer[tensor] >= 0 else w.source[tensor]
                if source != here and payer[tensor, here] >= first and stamp[tensor, here] != move:
                    stamp[tensor, here] = move
                    spent += w.cost[tensor, source, here]
                    paid[payments, 0] = tensor
                    paid[payments, 1] = here
                    paid[payments, 2] = at
                    payments += 1
            spent += w.latency[op, here]
            if at >= width and spent != duration[op]:
                retimed = True
            new_duration[at] = spent
            old_finish[at] = finish[op]
            now = begin + spent
            finish[op] = now
            reached = at + 1
            if now + w.tail_us[op] > limit:
                rejected = True
                break
            for rival in range(host):
                if w.rivals[here, rival]:
                    free[rival] = max(free[rival], now)
            peak = max(peak, now + w.export_us[op, here])
        makespan = peak
        if not rejected:
            if until == width:
                for p in range(host):
                    new_free[width, p] = free[p]
                new_peak[width] = peak
            makespan = max(makespan, bypass_at[until - width])
            for p in range(host):
                makespan = max(makespan, free[p] + upcoming_at[until - width, p])
            if makespan <= limit:
                for c in range(crossings):
                    op = crossing[c]
                    if far[op] >= until and place[op] < until:
                        makespan = max(makespan, finish[op] + w.beyond[op])
                        for k in range(w.after_at[op], w.after_at[op + 1]):
                            if place[w.after[k]] >= until:
                                makespan = max(makespan, finish[op] + through[w.after[k]])
            rejected = makespan > limit

        if rejected:
            for at in range(first, reached):
                finish[sequence[at]] = old_finish[at]
            take_back(assignment, sequence, place, flips, source_position, target_position, flipped, flipped_from)
            continue

        # --- accept
        current = makespan
        for at in range(first, until):
            op = sequence[at]
            for k in range(w.reads_at[op], w.reads_at[op + 1]):
                tensor = w.reads[k]
                for p in range(host):
                    if first <= payer[tensor, p] < until:
                        payer[tensor, p] = count
        for k in range(payments):
            payer[paid[k, 0], paid[k, 1]] = paid[k, 2]
        for at in range(first, min(until, width) + 1):
            for p in range(host):
                free_at[at, p] = new_free[at, p]
            peak_at[at] = new_peak[at]
        if retimed:
            for at in range(width, until):
                duration[sequence[at]] = new_duration[at]
            _retail(w, assignment, sequence, duration, through, upcoming, width, until, upcoming_at, bypass_at)
        if current < best:
            best = current
            copy_into(best_sequence, sequence)
            copy_into(best_assignment, assignment)

    copy_into(sequence, best_sequence)
    copy_into(assignment, best_assignment)
    return float(best)


@kernel
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
        flips, source, target = propose(
            a.latency,
            a.rivals,
            a.before_at,
            a.before,
            a.after_at,
            a.after,
            assignment,
            sequence,
            place,
            low,
            high,
            flipped,
            flipped_from,
            state,
        )
        if flips == 0 and source < 0:
            continue
        makespan = evaluate(a, assignment, sequence, start, finish, payer)
        if makespan > current - temperature * np.log(max(uniform(state), 1e-300)):
            take_back(assignment, sequence, place, flips, source, target, flipped, flipped_from)
            continue
        current = makespan
        if current < best:
            best = current
            copy_into(best_sequence, sequence)
            copy_into(best_assignment, assignment)
    copy_into(sequence, best_sequence)
    copy_into(assignment, best_assignment)
    return float(best)

"""The random moves of annealing: change where ops run and in what order, and take it back."""

from __future__ import annotations

import numpy as np

from planner_api.planning.kernel import kernel
from planner_api.planning.problem import BoolArray, FloatArray, IntArray

LONGEST_STRETCH = 8
"""Ops of a chain that one move may flip together."""


@kernel
def uniform(state: np.ndarray) -> float:
    """Next number of [0, 1) from a xorshift64* generator whose one-word state is advanced in place."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@kernel
def _another(latency: FloatArray, op: int, here: int, state: np.ndarray) -> int:
    """A random other processor that supports the op, or the same one when there is none."""
    count = 0
    for p in range(latency.shape[1]):
        if p != here and latency[op, p] < np.inf:
            count += 1
    if count == 0:
        return here
    pick = int(uniform(state) * count)
    for p in range(latency.shape[1]):
        if p != here and latency[op, p] < np.inf:
            if pick == 0:
                return p
            pick -= 1
    return here


@kernel
def _shift(sequence: IntArray, place: IntArray, source: int, target: int) -> None:
    """Move the op at one position to another; those between move up by one."""
    op = sequence[source]
    step = 1 if target > source else -1
    for position in range(source, target, step):
        sequence[position] = sequence[position + step]
        place[sequence[position]] = position
    sequence[target] = op
    place[op] = target


@kernel
def propose(
    latency: FloatArray,
    rivals: BoolArray,
    before_at: IntArray,
    before: IntArray,
    after_at: IntArray,
    after: IntArray,
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
    position = low + int(uniform(state) * (high - low))
    op = sequence[position]
    kind = uniform(state)
    flips = 0
    if kind < 0.50 or kind >= 0.85:
        other = _another(latency, op, assignment[op], state)
        wanted = 1
        if 0.30 <= kind < 0.50:
            wanted = 2 + int(uniform(state) * (LONGEST_STRETCH - 1))
        link = op
        while other != assignment[op] and flips < wanted:
            if assignment[link] != other and latency[link, other] < np.inf:
                flipped[flips] = link
                flips += 1
            successors = after_at[link + 1] - after_at[link]
            if successors == 0:
                break
            link = after[after_at[link] + int(uniform(state) * successors)]
            if place[link] >= high:
                break
        for f in range(flips):
            flipped_from[f] = assignment[flipped[f]]
            assignment[flipped[f]] = other
    if kind >= 0.50:
        floor = low
        for k in range(before_at[op], before_at[op + 1]):
            floor = max(floor, place[before[k]] + 1)
        ceiling = high - 1
        for k in range(after_at[op], after_at[op + 1]):
            ceiling = min(ceiling, place[after[k]] - 1)
        target = floor + int(uniform(state) * (ceiling - floor + 1))
        # Passing only ops that run beside it changes no time.
        passes_rival = flips > 0 and target != position
        for passed in range(min(position, target), max(position, target) + 1):
            if passes_rival:
                break
            passes_rival = passed != position and rivals[assignment[op], assignment[sequence[passed]]]
        if passes_rival:
            _shift(sequence, place, position, target)
            return flips, position, target
    return flips, -1, -1


@kernel
def take_back(
    assignment: IntArray,
    sequence: IntArray,
    place: IntArray,
    flips: int,
    source: int,
    target: int,
    flipped: IntArray,
    flipped_from: IntArray,
) -> None:
    """Undo what `propose` did."""
    if source >= 0:
        _shift(sequence, place, target, source)
    for f in range(flips):
        assignment[flipped[f]] = flipped_from[f]

"""The random moves of annealing: change where ops run and in what order, and take it back."""

from __future__ import annotations

from typing import Any

import numpy as np

from planner_api.planning.judge.evaluator import Arrays, State
from planner_api.planning.kernel import inlined_kernel
from planner_api.planning.problem import IntArray

LONGEST_STRETCH = 8
"""Ops of a chain that one move may flip together."""


@inlined_kernel
def uniform(random: np.ndarray) -> float:
    """Next number of [0, 1) from a xorshift64* generator whose one-word state is advanced in place."""
    x = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@inlined_kernel
def _another(a: Arrays, s: State, op: int, random: np.ndarray) -> int:
    """A random other processor that supports the op, where there are many often a neighbour's; or the same one."""
    here = s.assignment[op]
    if a.latency.shape[1] > 2 and uniform(random) < 0.5:
        first, last = a.before_at[op], a.before_at[op + 1]
        neighbours = last - first + a.after_at[op + 1] - a.after_at[op]
        if neighbours > 0:
            pick = int(uniform(random) * neighbours)
            other = a.before[first + pick] if pick < last - first else a.after[a.after_at[op] + pick - (last - first)]
            there = s.assignment[other]
            if there != here and a.latency[op, there] < np.inf:
                return int(there)
    count = 0
    for p in range(a.latency.shape[1]):
        if p != here and a.latency[op, p] < np.inf:
            count += 1
    if count == 0:
        return int(here)
    pick = int(uniform(random) * count)
    for p in range(a.latency.shape[1]):
        if p != here and a.latency[op, p] < np.inf:
            if pick == 0:
                return p
            pick -= 1
    return int(here)


@inlined_kernel
def slot(a: Arrays, s: Any, op: int, low: int, high: int, random: np.ndarray) -> int:
    """A position of the window to which an op of a state may be moved: behind all it reads, before all that read it."""
    floor, ceiling = low, high - 1
    for k in range(a.before_at[op], a.before_at[op + 1]):
        floor = max(floor, s.position[a.before[k]] + 1)
    for k in range(a.after_at[op], a.after_at[op + 1]):
        ceiling = min(ceiling, s.position[a.after[k]] - 1)
    return floor + int(uniform(random) * (ceiling - floor + 1))


@inlined_kernel
def next_link(a: Arrays, s: Any, op: int, high: int, random: np.ndarray) -> int:
    """One of those that read what an op of a state makes, to go on along a chain; -1: none, or past the window."""
    successors = a.after_at[op + 1] - a.after_at[op]
    if successors == 0:
        return -1
    link = a.after[a.after_at[op] + int(uniform(random) * successors)]
    return link if s.position[link] < high else -1


@inlined_kernel
def shift(s: Any, source: int, target: int) -> None:
    """Move the op at one position of a state to another; those between move up by one."""
    op = s.sequence[source]
    step = 1 if target > source else -1
    for at in range(source, target, step):
        s.sequence[at] = s.sequence[at + step]
        s.position[s.sequence[at]] = at
    s.sequence[target] = op
    s.position[op] = target


@inlined_kernel
def propose(a: Arrays, s: State, low: int, high: int, flipped: IntArray, random: np.ndarray) -> tuple[int, int, int]:
    """Make one random change inside the window: flip an op (30 %), a stretch of a chain (20 %), move one (35 %), both.

    Args:
        a: the problem.
        s: the schedule, whose assignment, sequence and positions are changed.
        low: first position that may change.
        high: one past the last.
        flipped: (LONGEST_STRETCH, 2) filled with the ops flipped and where they were.
        random: state of the generator.

    Returns:
        How many ops were flipped, and from which position to which one was moved (-1: none).
    """
    position = low + int(uniform(random) * (high - low))
    op = s.sequence[position]
    kind = uniform(random)
    flips = 0
    if kind < 0.50 or kind >= 0.85:
        other = _another(a, s, op, random)
        wanted = 1
        if 0.30 <= kind < 0.50:
            wanted = 2 + int(uniform(random) * (LONGEST_STRETCH - 1))
        link = op
        while other != s.assignment[op] and flips < wanted:
            if s.assignment[link] != other and a.latency[link, other] < np.inf:
                flipped[flips, 0] = link
                flips += 1
            link = next_link(a, s, link, high, random)
            if link < 0:
                break
        for f in range(flips):
            flipped[f, 1] = s.assignment[flipped[f, 0]]
            s.assignment[flipped[f, 0]] = other
    if kind >= 0.50:
        target = slot(a, s, op, low, high, random)
        # Passing only ops that run beside it changes no time.
        passes_rival = flips > 0 and target != position
        for passed in range(min(position, target), max(position, target) + 1):
            if passes_rival:
                break
            passes_rival = passed != position and a.rivals[s.assignment[op], s.assignment[s.sequence[passed]]]
        if passes_rival:
            shift(s, position, target)
            return flips, position, target
    return flips, -1, -1


@inlined_kernel
def take_back(s: State, flips: int, source: int, target: int, flipped: IntArray) -> None:
    """Undo what `propose` did."""
    if source >= 0:
        shift(s, target, source)
    for f in range(flips):
        s.assignment[flipped[f, 0]] = flipped[f, 1]

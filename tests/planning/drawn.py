"""Random problems drawn from a seed, and the optimum of small ones by trying everything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from planner_api.planning.judge.simulator import simulate
from planner_api.planning.problem import Problem


def draw(
    seed: int, most_ops: int, *, most_processors: int = 4, mode: str | None = None, plain: bool = False
) -> Problem:
    """A problem with everything that can occur: several tensors an op, constants, zero and infinite costs, gangs.

    Args:
        seed: of the draw.
        most_ops: upper limit of the number of ops.
        most_processors: upper limit of the number of processors.
        mode: transfer mode; drawn when None.
        plain: every processor supports every op and every move exists.
    """
    random = np.random.default_rng(seed)
    n, p = int(random.integers(1, most_ops + 1)), int(random.integers(1, most_processors + 1))
    inputs = int(random.integers(0, 3))
    producer = [-1] * inputs + [op for op in range(n) for _ in range(1 + (random.random() < 0.2))]
    t = len(producer)
    near = int(random.integers(1, n + 1))
    reads = []
    for op in range(n):
        earlier = [tensor for tensor in range(t) if op - near <= producer[tensor] < op]
        count = min(len(earlier), int(random.integers(0 if random.random() < 0.3 else 1, 4)))
        reads.append(tuple(int(tensor) for tensor in random.permutation(earlier)[:count]))
    scale = random.choice([1.0, 100.0, 5000.0])
    latency = np.round(random.uniform(0, scale, (n, p)), 3) * random.choice([0.0, 1.0], (n, p), p=[0.1, 0.9])
    transfer = np.round(random.uniform(0, scale * random.choice([0.0, 0.2, 1.0]), (t, p + 1, p + 1)), 3)
    if not plain:
        latency[random.random((n, p)) < 0.15] = np.inf
        blocked = ~np.isfinite(latency).any(axis=1)
        latency[blocked, 0] = 1.0
        if random.random() < 0.2:
            transfer[random.random(transfer.shape) < 0.1] = np.inf
    transfer[:, np.arange(p + 1), np.arange(p + 1)] = 0.0
    conflicts = np.eye(p, dtype=bool)
    if random.random() < 0.3:
        conflicts |= random.random((p, p)) < 0.4
        conflicts |= conflicts.T
    read = {tensor for row in reads for tensor in row}
    is_output = np.array(
        [source >= 0 and (k not in read or random.random() < 0.1) for k, source in enumerate(producer)]
    )
    is_output &= bool(random.random() < 0.7)
    return Problem(
        ops=tuple(f"op{op}" for op in range(n)),
        processors=tuple(f"p{k}" for k in range(p)),
        latency_us=latency,
        conflicts=conflicts,
        producer=np.array(producer, dtype=np.int64),
        reads=tuple(reads),
        is_output=is_output.reshape(t),
        transfer_us=transfer,
        mode=mode or ("blocking" if random.random() < 0.6 else "overlap"),
        tensors=tuple(f"t{tensor}" for tensor in range(t)),
    )


def shuffled(problem: Problem, seed: int) -> tuple[list[int], list[int]]:
    """A random placement on supporting processors and a random topological order."""
    random = np.random.default_rng(seed)
    assignment = [int(random.choice(np.flatnonzero(np.isfinite(row)))) for row in problem.latency_us]
    left, sequence = set(range(len(problem.ops))), []
    while left:
        ready = [op for op in sorted(left) if not left.intersection(problem.lists.before[op])]
        sequence.append(ready[random.integers(len(ready))])
        left.remove(sequence[-1])
    return assignment, sequence


def orders(problem: Problem) -> Iterator[tuple[int, ...]]:
    """Every topological order."""
    before = [set(ops) for ops in problem.lists.before]

    def grow(order: tuple[int, ...], left: frozenset[int]) -> Iterator[tuple[int, ...]]:
        if not left:
            yield order
        for op in sorted(left):
            if not before[op] & left:
                yield from grow((*order, op), left - {op})

    yield from grow((), frozenset(range(len(problem.ops))))


def optimum(problem: Problem) -> float:
    """The shortest makespan of any placement in any order; ``inf`` when nothing is legal."""
    choices = [[p for p, us in enumerate(row) if us < math.inf] for row in problem.lists.latency]
    everything = list(orders(problem))
    return min(
        simulate(problem, placement, order).makespan_us
        for placement in itertools.product(*choices)
        for order in everything
    )

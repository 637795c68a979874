"""Random problems drawn from a seed, and the optimum of small ones by trying everything."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from planner_api.planning.judge.simulator import simulate
from planner_api.planning.problem import Job, Machine, Problem
from planner_api.planning.problem.machine import routes
from tests.planning.machines import apart


def draw(
    seed: int,
    most_ops: int,
    *,
    most_processors: int = 4,
    plain: bool = False,
    hope: bool = False,
    rich: bool = False,
    hosts: bool = False,
) -> Problem:
    """A problem with everything that can occur: several tensors an op, constants, zero and infinite costs, gangs.

    Args:
        seed: of the draw.
        most_ops: upper limit of the number of ops.
        most_processors: upper limit of the number of processors.
        plain: every processor supports every op, every move exists, and the machine is HOPE's but for gangs.
        hope: the machine is HOPE's but for gangs; else it may have shares, queues, places, launches, neighbours, jobs.
        rich: the machine has most of those, and there are at least half as many ops: what few draws should find.
        hosts: it is two or three of those, with links between them, some of which are queues.
    """
    random = np.random.default_rng(seed)
    fewest = most_ops // 2 if rich else 1
    n, p = int(random.integers(fewest, most_ops + 1)), int(random.integers(1 + rich, most_processors + 1))
    hope = hope or plain
    often = 0.8 if rich else 0.3
    rich = rich or hosts or (random.random() < 0.6 and not hope)
    inputs = int(random.integers(0, 3))
    producer = [-1] * inputs + [op for op in range(n) for _ in range(1 + (random.random() < 0.2))]
    t = len(producer)
    near = int(random.integers(1, n + 1))
    jobs = 2 if rich and n > 1 and random.random() < often else 1
    job = np.sort(random.integers(0, jobs, n))
    of_input = [int(random.integers(0, jobs)) for _ in range(inputs)]
    reads = []
    for op in range(n):
        earlier = [
            tensor
            for tensor in range(t)
            if op - near <= producer[tensor] < op
            and (of_input[tensor] if producer[tensor] < 0 else job[producer[tensor]]) == job[op]
        ]
        count = min(len(earlier), int(random.integers(0 if random.random() < 0.3 else 1, 4)))
        reads.append(tuple(int(tensor) for tensor in random.permutation(earlier)[:count]))
    scale = random.choice([1.0, 100.0, 5000.0])
    latency = np.round(random.uniform(0, scale, (n, p)), 3) * random.choice([0.0, 1.0], (n, p), p=[0.1, 0.9])
    machine = _rich(random, p, scale, often) if rich else _hope(random, p, hope)
    if hosts:
        machine = _linked(random, machine)
    places = len(machine.places)
    transfer = np.round(
        random.uniform(
            0, scale * random.choice([0.0, 0.2, 1.0], p=[0.1, 0.3, 0.6] if often > 0.5 else None), (t, places, places)
        ),
        3,
    )
    if not plain:
        latency[random.random((n, p)) < 0.15] = np.inf
        blocked = ~np.isfinite(latency).any(axis=1)
        latency[blocked, 0] = 1.0
        if random.random() < 0.2:
            transfer[random.random(transfer.shape) < 0.1] = np.inf
    transfer[:, np.arange(places), np.arange(places)] = 0.0
    transfer = machine.along(transfer)
    read = {tensor for row in reads for tensor in row}
    is_output = np.array(
        [source >= 0 and (k not in read or random.random() < 0.1) for k, source in enumerate(producer)]
    )
    is_output &= bool(random.random() < 0.7)
    release = np.round(random.uniform(0, scale, jobs) * (random.random() < 0.7), 3) if jobs > 1 else [0.0]
    return Problem(
        machine=machine,
        ops=tuple(f"op{op}" for op in range(n)),
        latency_us=latency,
        producer=np.array(producer, dtype=np.int64),
        reads=tuple(reads),
        is_output=is_output.reshape(t),
        transfer_us=transfer,
        tensors=tuple(f"t{tensor}" for tensor in range(t)),
        share=random.choice([1.0, 0.5, 1 / 3, 0.2, 0.07], (n, p)) if rich and random.random() < 0.6 else None,
        job=job if jobs > 1 else None,
        jobs=tuple(
            Job(float(us), float(us + scale) if random.random() < 0.6 else None, float(random.choice([1.0, 2.5])))
            for us in release
        ),
        objective="lateness" if jobs > 1 and random.random() < 0.6 else "makespan",
    )


def _hope(random: np.random.Generator, p: int, hope: bool) -> Machine:
    """HOPE's machine: a place for each processor, and resources that some share; perhaps with queues."""
    conflicts = np.eye(p, dtype=bool)
    if random.random() < 0.3:
        conflicts |= random.random((p, p)) < 0.4
        conflicts |= conflicts.T
    return apart([f"p{k}" for k in range(p)], conflicts, queued=not hope and random.random() < 0.3)


def _rich(random: np.random.Generator, p: int, scale: float, often: float) -> Machine:
    """Any machine, with queues as often as not, or more ``often``."""
    full = often > 0.5
    resources, places, queues = int(random.integers(1, p + 1)), int(random.integers(1 + full, p + 2)), 2 - full
    uses = random.random((p, resources)) < 0.4
    uses[np.arange(p), random.integers(0, resources, p)] = True
    queued = random.random() < max(often, 0.5)

    def figures(most: float) -> np.ndarray:
        return np.round(random.uniform(0, most, p) * (random.random() < 0.5), 3)

    return Machine(
        processors=tuple(f"p{k}" for k in range(p)),
        uses=uses,
        places=("host", *(f"l{k}" for k in range(1, places))),
        place=random.integers(0, places, p),
        busy=np.where(
            random.random((places, places)) < max(often, 0.5), random.integers(0, queues, (places, places)), -1
        )
        if queued
        else np.full((places, places), -1),
        queues=tuple(f"q{k}" for k in range(queues)) if queued else (),
        launch_us=figures(scale / 5),
        end_us=figures(scale / 10),
        slowdown=1.0 + figures(1.0),
        memory=random.integers(0, 2, p),
    )


def _linked(random: np.random.Generator, machine: Machine) -> Machine:
    """The same processors on two or three hosts: each with a plain memory, joined by links that are queues or not."""
    hosts, known = int(random.integers(2, 4)), len(machine.places)
    owner = np.array([0, *random.integers(0, hosts, known - 1), *range(1, hosts)])
    plain = [0, *range(known, known + hosts - 1)]
    n = known + hosts - 1
    links, random_queue = len(machine.queues), len(machine.queues) + 2
    busy = np.full((n, n), -1, dtype=np.int64)
    busy[:known, :known] = machine.busy
    direct = np.where(owner[:, None] == owner, random.uniform(1, 2, (n, n)), np.inf)
    for one in range(hosts):
        for other in range(hosts):
            joined = abs(one - other) == 1 or random.random() < 0.5
            if one != other and joined:
                direct[plain[one], plain[other]] = random.uniform(1, 5)
                busy[plain[one], plain[other]] = int(random.integers(links - 1, random_queue)) if links else -1
    np.fill_diagonal(direct, 0.0)
    busy[~np.isfinite(direct)] = -1
    memory = machine.memory + 2 * owner[machine.place]
    return replace(
        machine,
        places=(*machine.places, *(f"h{host}:host" for host in range(1, hosts))),
        busy=busy,
        queues=(*machine.queues, "l0", "l1") if links else (),
        memory=memory,
        hop=routes(direct, np.isfinite(direct) & (owner[:, None] == owner)),
        owner=owner,
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
    """The smallest value of any placement in any order; ``inf`` when nothing is legal."""
    choices = [[p for p, us in enumerate(row) if us < math.inf] for row in problem.lists.latency]
    everything = list(orders(problem))
    return min(
        simulate(problem, placement, order).value_us
        for placement in itertools.product(*choices)
        for order in everything
    )

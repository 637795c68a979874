"""The scheduling problem as validated plain data: what every solver reads and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError
from typing import NamedTuple

import numpy as np

from hope_schema import Cut, Objective
from planner_api.planning.problem.arrays import BoolArray, FloatArray, IntArray, PlanningError, check_shapes, wrong
from planner_api.planning.problem.choices import WHOLE, Choices, Cutter
from planner_api.planning.problem.machine import Machine
from planner_api.planning.problem.order import ordered

MOST_AT_ONCE = 64
"""Ops that may share one resource: smaller shares count as 1/64."""


@dataclass(frozen=True)
class Job:
    """One run of a network: when its inputs are there, when it is due, how much being late counts.

    Of a network that runs every ``period_us`` it is number ``run``.
    """

    release_us: float = 0.0
    deadline_us: float | None = None
    weight: float = 1.0
    period_us: float | None = None
    run: int = 0


class Recipe(NamedTuple):
    """A kernel for an op on a processor: its number (-1: the processor's own choice), what it takes, its share."""

    op: int
    processor: int
    number: int
    us: float
    share: float

    @property
    def taken(self) -> float:
        """The part of each of its resources that it takes, at least 1/``MOST_AT_ONCE``."""
        return max(self.share, 1.0 / MOST_AT_ONCE)


@dataclass(frozen=True)
class Earlier:
    """An earlier plan: its cuts, and of the ops that they make the processor of each, the order of all, those whose
    figures changed since, and the recipes of those that do not take their processor's own choice.
    """

    assignment: tuple[int, ...]
    sequence: tuple[int, ...]
    changed: frozenset[int]
    recipes: tuple[Recipe, ...] = ()
    cuts: tuple[Cut, ...] = ()


def called(name: str, job: int, jobs: int) -> str:
    """What an op or a tensor of a network is called in a problem of so many jobs."""
    return f"{job}:{name}" if jobs > 1 else name


@dataclass(frozen=True)
class Lists:
    """A problem as HOPE's eqs 1-6 see it, in nested Python lists (indexing into arrays makes pure Python slow).

    Every op takes its processor whole, every processor keeps what it read, and a crossing has one price
    (`Problem.crossing_us`). Constructive methods and the integer program read this; where the machine is richer they
    plan for a simpler one, and the simulator says what their plans take.

    Attributes:
        latency: [op][processor] microseconds, ``inf`` for unsupported.
        producer: [tensor] op, or -1 for a graph input.
        reads: [op] tensors it reads.
        writes: [op] tensors it writes, ascending.
        readers: [tensor] ops that read it, ascending.
        outputs: tensors that must end on the host, ascending.
        before: [op] its direct predecessors, each once, ascending.
        after: [op] its direct successors, each once, ascending.
        rivals: [processor] processors that share a resource with it, itself included.
        order: the ops in a topological order that depends on nothing but the graph (smallest index first).
    """

    latency: list[list[float]]
    producer: list[int]
    reads: list[list[int]]
    writes: list[list[int]]
    readers: list[list[int]]
    outputs: list[int]
    before: list[list[int]]
    after: list[list[int]]
    rivals: list[list[int]]
    order: list[int]

    def ways_on(self, ops: Sequence[int], us: Sequence[float], end: Sequence[float] | None = None) -> dict[int, float]:
        """The longest way on from the finish of each of some ops, in topological order, over others of them.

        Args:
            ops: whose ways.
            us: what any op takes.
            end: what follows any op at least; None: nothing.
        """
        way: dict[int, float] = {}
        for op in reversed(ops):
            least = 0.0 if end is None else end[op]
            way[op] = max([least, *(us[later] + way[later] for later in self.after[op] if later in way)])
        return way


@dataclass(frozen=True, eq=False)
class Problem:
    """n super-ops of one or more jobs, P ways to execute each, T tensors. Times in microseconds. Arrays are read-only.

    A column of ``latency_us`` is a way to execute an op: one processor of the machine each.

    Attributes:
        machine: what there is to plan for.
        ops: n names.
        latency_us: (n, P); ``inf`` says that the processor does not support the op.
        producer: (T,) op that writes each tensor; -1 for a graph input, which starts on the host.
        reads: for each op the tensors it reads, each once, in input order.
        is_output: (T,) True for tensors that must end on the host.
        transfer_us: (T, L, L) cost from place to place, over all channels on the way (`Machine.hop`); ``inf`` where no
            move exists. The diagonal is 0.
        tensors: T names.
        share: (n, P) in (0, 1], of each resource of the processor while the op runs; None: all of it.
        recipes: the kernels by which ops can be executed that have several, all of each (`problem.recipes`).
        recipe: (n, P) the number of that by which each is executed; None: each by its processor's own choice.
        job: (n,) job of each op; None: there is one.
        jobs: the jobs.
        objective: ``makespan`` and ``throughput`` (when the last job is done) or ``lateness`` (the largest
            weight * (finish - deadline), in microseconds of the job whose weight is largest; a job without a deadline
            is due at ``latest_us``).
        latest_us: when all work could end, one after the other; None: on the slowest processors. What is derived from
            a problem keeps it, so that values of both are comparable.
        in_parts: (n, P) True where the op's parts run one after the other because that is faster, or all there is.
        predicted_spread: (n, P) standard deviation of latencies that were predicted, relative to them; 0: measured.
        cutter: how ops can be cut into parts.
        earlier: what a search may begin with.
        filled: sentences on figures that were missing and filled by rule.

    Raises:
        PlanningError: for an empty graph, a cycle, an op that nobody supports, NaN, negative or misshapen figures.
    """

    machine: Machine
    ops: tuple[str, ...]
    latency_us: FloatArray
    producer: IntArray
    reads: tuple[tuple[int, ...], ...]
    is_output: BoolArray
    transfer_us: FloatArray
    tensors: tuple[str, ...]
    share: FloatArray | None = None
    recipes: tuple[Recipe, ...] = ()
    recipe: IntArray | None = None
    job: IntArray | None = None
    jobs: tuple[Job, ...] = (Job(),)
    objective: Objective = "makespan"
    latest_us: float | None = None
    in_parts: BoolArray | None = None
    predicted_spread: FloatArray | None = None
    cutter: Cutter = WHOLE
    earlier: Earlier | None = None
    filled: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n, p, t, places = len(self.ops), len(self.processors), len(self.tensors), len(self.machine.places)
        if n == 0:
            raise PlanningError("the graph has no ops")
        check_shapes(
            self,
            latency_us=(n, p),
            producer=(t,),
            is_output=(t,),
            transfer_us=(t, places, places),
            share=(n, p),
            recipe=(n, p),
            job=(n,),
            in_parts=(n, p),
        )
        if len(self.reads) != n:
            raise PlanningError(f"reads lists {len(self.reads)} ops, expected {n}")
        self._check_figures()
        self._check_jobs()
        self._check_graph()
        if self.latest_us is None:
            slowest = np.where(np.isfinite(self.latency_us), self.latency_us, 0.0).max(axis=1).sum()
            latest = float(slowest + max(job.release_us for job in self.jobs))
            object.__setattr__(self, "latest_us", latest)

    def _check_figures(self) -> None:
        ops, processors, places = self.ops, self.processors, self.machine.places
        for op, p in wrong(self.latency_us >= 0):
            raise PlanningError(f"latency of op '{ops[op]}' on '{processors[p]}' is {self.latency_us[op, p]}")
        for (op,) in wrong(self.latency_us.min(axis=1) < math.inf):
            raise PlanningError(f"no processor supports op '{ops[op]}'")
        for tensor, a, b in wrong(self.transfer_us >= 0):
            name, us = self.tensors[tensor], self.transfer_us[tensor, a, b]
            raise PlanningError(f"transfer of tensor '{name}' from '{places[a]}' to '{places[b]}' is {us}")
        if (np.einsum("tpp->tp", self.transfer_us) != 0).any():
            raise PlanningError("a transfer from a place to itself must cost nothing")
        total = self.machine.along(self.transfer_us)
        if total is not self.transfer_us and not np.allclose(total, self.transfer_us):
            raise PlanningError("a move over several channels must cost what these cost together")
        share = np.ones(1) if self.share is None else self.share
        for op, p in wrong((share > 0) & (share <= 1)):
            raise PlanningError(
                f"share of op '{ops[op]}' on '{processors[p]}' is {share[op, p]}: it must lie in (0, 1]"
            )

        for one in self.recipes:
            if not (0 <= one.us < math.inf and 0 < one.share <= 1) or self.share is None:
                raise PlanningError(f"recipe {one.number} of op '{ops[one.op]}' takes {one.us} µs, a share {one.share}")

    def _check_jobs(self) -> None:
        if not self.jobs or (self.job is not None and (self.job.min() < 0 or self.job.max() >= len(self.jobs))):
            raise PlanningError("an op belongs to a job that does not exist")
        for job in self.jobs:
            due = job.release_us if job.deadline_us is None else job.deadline_us
            if not (math.isfinite(job.release_us) and 0 <= job.release_us <= due < math.inf):
                raise PlanningError(f"a job released at {job.release_us} µs cannot be due at {job.deadline_us} µs")
            if not (0 < job.weight < math.inf):
                raise PlanningError(f"a job's weight must be positive and finite, not {job.weight}")

    def _check_graph(self) -> None:
        t, n = len(self.tensors), len(self.ops)
        if t and (self.producer.min() < -1 or self.producer.max() >= n):
            raise PlanningError("a tensor is produced by an op that does not exist")
        for op, tensors in enumerate(self.reads):
            if len(set(tensors)) != len(tensors) or any(not 0 <= tensor < t for tensor in tensors):
                raise PlanningError(f"op '{self.ops[op]}' reads a tensor twice or one that does not exist")
        _ = self.lists

    @property
    def processors(self) -> tuple[str, ...]:
        return self.machine.processors

    @property
    def host(self) -> int:
        """P: the host's index in ``crossing_us``."""
        return len(self.processors)

    @cached_property
    def shares(self) -> FloatArray:
        """(n, P) the part of each of its resources that an op takes, at least 1/``MOST_AT_ONCE``."""
        if self.share is None:
            return np.ones(self.latency_us.shape)
        return np.maximum(self.share, 1.0 / MOST_AT_ONCE)

    @cached_property
    def least_shares(self) -> FloatArray:
        """(n, P) the least of that by any of an op's recipes."""
        least = self.shares.copy()
        for one in self.recipes:
            least[one.op, one.processor] = min(least[one.op, one.processor], one.taken)
        return least

    @cached_property
    def most_at_once(self) -> int:
        """So many ops fill a resource, whichever they are, and whichever recipes they take."""
        return math.ceil(1.0 / float(self.least_shares.min()) - 1e-6)

    @cached_property
    def release_us(self) -> FloatArray:
        """(n,) when the graph inputs that each op reads are there."""
        return np.array([job.release_us for job in self.jobs])[self.job_of]

    @cached_property
    def job_of(self) -> IntArray:
        """(n,) job of each op."""
        return np.zeros(len(self.ops), dtype=np.int64) if self.job is None else self.job

    @cached_property
    def due_us(self) -> FloatArray:
        """(n,) from when on the finish of each op's job counts."""
        if self.objective != "lateness":
            return np.zeros(len(self.ops))
        due = [self.latest_us if job.deadline_us is None else job.deadline_us for job in self.jobs]
        return np.array(due, dtype=np.float64)[self.job_of]

    @cached_property
    def weight(self) -> FloatArray:
        """(n,) how much each microsecond after that counts, relative to the job of which it counts most."""
        if self.objective != "lateness":
            return np.ones(len(self.ops))
        weight = np.array([job.weight for job in self.jobs], dtype=np.float64)
        relative: FloatArray = (weight / weight.max())[self.job_of]
        return relative

    @cached_property
    def export_us(self) -> FloatArray:
        """(n, P) the longest way to the host of an output that each op writes there; 0 where it writes none."""
        export, machine = np.zeros(self.latency_us.shape), self.machine
        for tensor in np.flatnonzero(self.is_output & (self.producer >= 0)).tolist():
            row = export[self.producer[tensor]]
            np.maximum(row, self.transfer_us[tensor, machine.place, machine.host], out=row)
        return export

    @cached_property
    def choices(self) -> Choices:
        """What may be cut."""
        inputs = {self.tensors[tensor]: tensor for tensor in np.flatnonzero(self.producer < 0).tolist()}
        return Choices(self.cutter, self.latency_us, self.machine, self.transfer_us, inputs)

    @property
    def cuttable(self) -> bool:
        """Whether cutting any op may be worth it."""
        return bool(self.choices.axes) or self.choices.bands

    @property
    def whole(self) -> Problem:
        """The problem with no cuts."""
        return replace(self, cutter=WHOLE) if self.cutter.nodes else self

    @cached_property
    def lists(self) -> Lists:
        """The same problem as nested lists; read-only by convention. Raises PlanningError for a graph with a cycle."""
        n, t = len(self.ops), len(self.tensors)
        producer: list[int] = self.producer.tolist()
        writes: list[list[int]] = [[] for _ in range(n)]
        readers: list[list[int]] = [[] for _ in range(t)]
        for tensor, op in enumerate(producer):
            if op >= 0:
                writes[op].append(tensor)
        before: list[list[int]] = []
        after: list[list[int]] = [[] for _ in range(n)]
        for op, tensors in enumerate(self.reads):
            producers = {producer[tensor] for tensor in tensors}
            producers.discard(-1)
            before.append(sorted(producers))
            for earlier in producers:
                after[earlier].append(op)
            for tensor in tensors:
                readers[tensor].append(op)
        try:
            order = ordered(dict(enumerate(before)), key=lambda op: op)
        except CycleError as error:
            raise PlanningError(f"the graph has a cycle through op '{self.ops[error.args[1][0]]}'") from None
        return Lists(
            latency=self.latency_us.tolist(),
            producer=producer,
            reads=[list(tensors) for tensors in self.reads],
            writes=writes,
            readers=readers,
            outputs=np.flatnonzero(self.is_output).tolist(),
            before=before,
            after=after,
            rivals=[np.flatnonzero(row).tolist() for row in self.machine.conflicts],
            order=order,
        )

    def crossing_us(self, tensor: int) -> FloatArray:
        """(P + 1, P + 1) what a tensor takes between two processors; the host is the last.

        That is the move between their places, the launch, and how long after its producer's finish it can be taken in.
        """
        machine = self.machine
        places = np.append(machine.place, machine.host)
        cost: FloatArray = self.transfer_us[tensor][places[:, None], places] + np.append(machine.launch_us, 0.0)
        cost[:-1, :-1] += machine.end_us[:, None]
        return cost

    @property
    def between_us(self) -> tuple[FloatArray, IntArray]:
        """``crossing_us`` of all tensors: (T, K, K) from kind to kind, and (K, K) how many pairs pay that.

        Processors of one kind compute at one place and pay alike; a pair is two different processors in their order.
        """
        machine = self.machine
        paid = np.column_stack([machine.place, machine.launch_us, machine.end_us])
        _, first, many = np.unique(paid, axis=0, return_index=True, return_counts=True)
        place = machine.place[first]
        price = self.transfer_us[:, place[:, None], place] + machine.launch_us[first] + machine.end_us[first, None]
        return price, np.outer(many, many) - np.diag(many)

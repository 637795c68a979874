"""The plan: placement and order of every step, with its own proof."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from hope_schema.base import (
    MAX_OPS,
    MAX_TENSORS,
    PRINTABLE,
    Contract,
    Count,
    Digest,
    Fraction,
    Frequency,
    Label,
    Microseconds,
    Name,
    PositiveMicroseconds,
    Share,
)
from hope_schema.graph import DType
from hope_schema.hosts import MAX_HOSTS, MAX_LINKS, Link, PlannedHost
from hope_schema.periods import MAX_RUNS

SCHEMA_VERSION: Final = 4
"""Version of the plan's shape; a breaking change raises it."""

Objective = Literal["makespan", "lateness", "throughput"]
"""What is made small: the time at which all jobs are done, the largest weighted lateness of one, or the time in which
all runs of the jobs' periods are done where they need not wait for their releases."""
MAX_JOBS: Final = 64
"""Most networks that one plan may hold."""
StepId = Annotated[int, Field(ge=0)]
JobIndex = Annotated[int, Field(ge=0, lt=MAX_RUNS)]
"""Which of a plan's runs."""
Method = Literal["auto", "ilp", "greedy", "partitiontuner", "codl", "hpa", "vsm", "neurosurgeon", "dads"]
"""How a plan is found."""
FoundBy = Annotated[str, Field(min_length=1, max_length=128, pattern=PRINTABLE)]
"""What a plan was found by, in words: a method's name, or a way from one to another."""
CUTTING: Final[frozenset[Method]] = frozenset({"auto", "codl", "vsm"})
"""Methods that also compute ops in parts."""


class Cause(StrEnum):
    """Why a step is where it is."""

    ONLY_SUPPORTED = "only_supported"
    """No other candidate processor runs it."""
    FASTER = "faster"
    """It runs fastest there (ties included)."""
    AVOIDS_TRANSFER = "avoids_transfer"
    """Slower there, but the transfers it saves outweigh that."""
    PARALLEL_BRANCH = "parallel_branch"
    """Slower there, but it runs beside other work."""


Weight = Annotated[float, Field(gt=0.0, le=1e6, allow_inf_nan=False)]
"""How much a job's lateness counts."""


Lateness = Annotated[float, Field(ge=-1e21, le=1e21, allow_inf_nan=False)]
"""Microseconds after a deadline times a weight: what the largest of both come to; below zero where none is late."""


Recipe = Annotated[int, Field(ge=0, lt=1000)]
"""Which of the kernels that a kind of processor has for an op."""


MAX_PARTS = 64
"""Of an op."""
Borders = Annotated[
    tuple[Annotated[int, Field(ge=1, le=2**31 - 1)], ...], Field(min_length=1, max_length=MAX_PARTS - 1)
]
"""Between parts, along one axis."""


class Cut(Contract):
    """A super-op computed in parts of its only output, or an input taken in parts, see ``hope_schema.cutting``.

    ``op`` is the super-op's id, or the input's name. Along one axis its parts are intervals (CoDL), along several boxes
    (D3's tiles), of which the last axis changes first. ``at`` has the borders along each of the axes, which ascend.
    With ``chained``, part j reads what part j of the op before left, and what that lacks is computed twice instead of
    exchanged.
    """

    op: Name
    axes: Annotated[tuple[Annotated[int, Field(ge=0, le=15)], ...], Field(min_length=1, max_length=2)]
    at: Annotated[tuple[Borders, ...], Field(min_length=1, max_length=2)]
    chained: bool = False

    @model_validator(mode="after")
    def _has_parts(self) -> Cut:
        if len(self.axes) != len(self.at) or any(low >= high for low, high in pairwise(self.axes)):
            raise ValueError(f"op '{self.op}' is cut along axes {list(self.axes)} at {len(self.at)} lists of borders")
        for at in self.at:
            if any(low >= high for low, high in pairwise(at)):
                raise ValueError(f"op '{self.op}' is cut at {list(at)}: a part is empty")
        if prod(len(at) + 1 for at in self.at) > MAX_PARTS:
            raise ValueError(f"op '{self.op}' is cut into more than {MAX_PARTS} parts")
        return self


class Alternative(Contract):
    """Where else a step could run: the fastest processor of another kind, else an equal; ``us`` like ``alone_us``."""

    processor: Label
    us: Microseconds


class Step(Contract):
    """One way to execute one super-op, or one op of it, on one processor.

    ``ops`` are those of the graph that the job's cuts make of its network: a part of an op is an op of that graph.

    Times are predictions in microseconds from the start of the run. The interval includes the transfers that the step
    pays for (HOPE eq. 1), and the launch of the segment that it begins. ``alone_us`` is what the ops take without all
    that, and with nobody beside them. ``job`` is the index of its network. Where nobody measured its latency,
    ``predicted_spread`` is the standard deviation of the prediction, relative to it. ``recipe`` is the number of the
    kernel that computes it, where that is not its processor's own choice; ``share`` the part of each of the processor's
    resources that it takes meanwhile, where that is not all.
    """

    id: StepId
    job: JobIndex = 0
    ops: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_OPS)]
    dtype: DType
    processor: Label
    start_us: Microseconds
    finish_us: Microseconds
    alone_us: Microseconds | None = None
    next_best: Alternative | None = None
    cause: Cause
    predicted_spread: Fraction | None = None
    recipe: Recipe | None = None
    share: Share | None = None


class Transfer(Contract):
    """One tensor moved from a place to another.

    ``over`` names the resource that carries it. Where that is null it takes the time of the step ``reader``, or
    nobody's: an output that goes to the host after the last step, or what is sent on over a link behind it.
    ``dtype`` is the type in which it crosses, where that is not its own.
    """

    tensor: Name
    job: JobIndex = 0
    source: Label
    target: Label
    dtype: Literal["float16"] | None = None
    over: Label | None = None
    reader: StepId | None = None
    start_us: Microseconds
    finish_us: Microseconds


class PlannedJob(Contract):
    """One run of one network: from when its inputs are there, until when it should be done, and when it is.

    A network with a period has several: ``run`` counts them, and the first one's times are those of its request.
    ``cuts`` say which of its super-ops are computed in parts; ``model_hash`` is that of the network without them.
    """

    model_hash: Digest
    cuts: Annotated[tuple[Cut, ...], Field(max_length=MAX_OPS)] = ()
    run: Count = 0
    release_us: Microseconds = 0.0
    period_us: PositiveMicroseconds | None = None
    deadline_us: Microseconds | None = None
    weight: Weight = 1.0
    finish_us: Microseconds


class Plan(Contract):
    """Placement and order for one network, or several, on one SoC at one frequency, and on further ``hosts``.

    The body holds no clock reading: the same inputs, seed and rounds give the same bytes (promise 3).
    ``order`` lists step ids in start order, a topological order; per processor, and per resource that
    processors share, it is the execution order. ``makespan_us``, when jobs are done, and what single processors take
    are means where ops vary (``Overheads.spread``); steps and transfers are timed as if none did. ``gap`` is
    ``makespan_us / lower_bound_us - 1``; under ``lateness`` the bound is the makespan less what the job that is latest,
    by its weight, could end sooner at most. ``lateness_us`` is the largest of ``weight * (finish - deadline)`` over the
    jobs that have a deadline; null where none has.
    ``method`` is what found it; where that is not what was asked for it reads ``ilp→greedy`` or ``ilp→single``.
    """

    schema_version: Literal[4] = SCHEMA_VERSION
    jobs: Annotated[tuple[PlannedJob, ...], Field(min_length=1, max_length=MAX_RUNS)]
    soc: Label
    frequency: Frequency
    hosts: Annotated[tuple[PlannedHost, ...], Field(max_length=MAX_HOSTS)] = ()
    links: Annotated[tuple[Link, ...], Field(max_length=MAX_LINKS)] = ()
    objective: Objective = "makespan"
    processors: Annotated[tuple[Label, ...], Field(min_length=1, max_length=1024)]
    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=MAX_OPS)]
    order: Annotated[tuple[int, ...], Field(min_length=1, max_length=MAX_OPS)]
    transfers: Annotated[tuple[Transfer, ...], Field(max_length=8 * MAX_TENSORS)] = ()
    makespan_us: Microseconds
    lateness_us: Lateness | None = None
    lower_bound_us: Microseconds
    gap: Fraction
    method: FoundBy
    bound_method: Label
    single_processor_us: dict[Label, Microseconds] = {}
    profile_version: Count
    filled: Annotated[tuple[Annotated[str, Field(max_length=1024)], ...], Field(max_length=MAX_OPS)] = ()
    notes: Annotated[tuple[Annotated[str, Field(max_length=1024)], ...], Field(max_length=64)] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Plan:
        ids = [step.id for step in self.steps]
        if len(set(ids)) != len(ids):
            raise ValueError("a step id stands twice")
        if sorted(self.order) != sorted(ids):
            raise ValueError("order does not list every step exactly once")
        ops = [(step.job, op) for step in self.steps for op in step.ops]
        if len(set(ops)) != len(ops):
            raise ValueError("an op stands in two steps")
        for planned in self.jobs:
            if len({cut.op for cut in planned.cuts}) < len(planned.cuts):
                raise ValueError("an op is cut twice")
        processors = set(self.processors)
        for step in self.steps:
            if step.processor not in processors:
                raise ValueError(f"step {step.id} runs on '{step.processor}', which is not among the plan's processors")
            if step.finish_us < step.start_us:
                raise ValueError(f"step {step.id} finishes before it starts")
        for job in {*(step.job for step in self.steps), *(move.job for move in self.transfers)}:
            if job >= len(self.jobs):
                raise ValueError(f"job {job} is not among the plan's {len(self.jobs)}")
        known = set(ids)
        for move in self.transfers:
            if move.reader is not None and move.reader not in known:
                raise ValueError(f"'{move.tensor}' is moved for step {move.reader}, which the plan does not have")
            if move.over is not None and move.reader is not None:
                raise ValueError(f"'{move.tensor}' takes the time of '{move.over}' and of step {move.reader} at once")
        return self

    @property
    def model_hash(self) -> str:
        """The first job's network: the only one, unless several are planned together."""
        return self.jobs[0].model_hash

    @cached_property
    def step(self) -> dict[int, Step]:
        """Steps by id."""
        return {step.id: step for step in self.steps}

    @property
    def processors_used(self) -> tuple[str, ...]:
        """The processors that run at least one step, in the plan's order."""
        used = {step.processor for step in self.steps}
        return tuple(processor for processor in self.processors if processor in used)

    def __str__(self) -> str:
        steps = f"{len(self.steps)} steps on {', '.join(self.processors_used)}"
        proof = f"at most {self.gap:.1%} above the optimum" if self.lower_bound_us or not self.gap else "nothing proven"
        return f"{steps}: {self.makespan_us / 1e3:.3f} ms by {self.method}, {proof}"

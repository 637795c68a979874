"""The plan: placement and order of every step, with its own proof."""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from hope_schema.base import MAX_OPS, MAX_TENSORS, PRINTABLE, Contract, Digest, Fraction, Label, Microseconds, Name
from hope_schema.graph import DType
from hope_schema.profile import HOST

SCHEMA_VERSION: Final = 1
"""Version of the plan's shape; a breaking change raises it."""

Objective = Literal["latency"]
TransferMode = Literal["blocking", "overlap"]
Method = Literal["auto", "ilp", "greedy", "partitiontuner"]


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


class Part(Contract):
    """A slice of an op along one axis of its output (CoDL); steps are whole ops for now."""

    axis: Annotated[int, Field(ge=0, le=15)]
    start: Annotated[int, Field(ge=0)]
    stop: Annotated[int, Field(ge=1)]


class Step(Contract):
    """One super-op on one processor. Times are predictions in microseconds from the start of the run.

    The interval includes the transfers the step pays for (blocking mode, HOPE eq. 1).
    """

    id: Annotated[int, Field(ge=0)]
    ops: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_OPS)]
    part: Part | None = None
    dtype: DType
    processor: Label
    start_us: Microseconds
    finish_us: Microseconds
    cause: Cause


class Transfer(Contract):
    """One tensor moved between two processors (or ``host``); ``region`` is null: the whole tensor."""

    tensor: Name
    region: Part | None = None
    source: Label
    target: Label


class Plan(Contract):
    """Placement and order for one model on one SoC at one frequency.

    The body holds no clock reading: the same inputs, seed and rounds give the same bytes (promise 3).
    ``order`` lists step ids in start order, a topological order; per processor, and per resource that
    processors share, it is the execution order. ``gap`` is ``makespan_us / lower_bound_us - 1``.
    ``method`` is what found it; where that is not what was asked for it reads ``ilp→greedy`` or ``ilp→single``.
    """

    schema_version: Literal[1] = SCHEMA_VERSION
    model_hash: Digest
    soc: Label
    frequency: Label
    objective: Objective = "latency"
    transfer_mode: TransferMode = "blocking"
    processors: Annotated[tuple[Label, ...], Field(min_length=1, max_length=1024)]
    steps: Annotated[tuple[Step, ...], Field(min_length=1, max_length=MAX_OPS)]
    order: Annotated[tuple[int, ...], Field(min_length=1, max_length=MAX_OPS)]
    transfers: Annotated[tuple[Transfer, ...], Field(max_length=8 * MAX_TENSORS)] = ()
    makespan_us: Microseconds
    lower_bound_us: Microseconds
    gap: Fraction
    method: Annotated[str, Field(min_length=1, max_length=128, pattern=PRINTABLE)]
    bound_method: Label
    single_processor_us: dict[Label, Microseconds] = {}
    profile_version: Annotated[int, Field(ge=0)]
    filled: Annotated[tuple[Annotated[str, Field(max_length=1024)], ...], Field(max_length=MAX_OPS)] = ()
    notes: Annotated[tuple[Annotated[str, Field(max_length=1024)], ...], Field(max_length=64)] = ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Plan:
        ids = [step.id for step in self.steps]
        if len(set(ids)) != len(ids):
            raise ValueError("a step id stands twice")
        if sorted(self.order) != sorted(ids):
            raise ValueError("order does not list every step exactly once")
        ops = [op for step in self.steps if step.part is None for op in step.ops]
        if len(set(ops)) != len(ops):
            raise ValueError("an op stands in two steps")
        for step in self.steps:
            if step.processor not in self.processors:
                raise ValueError(f"step {step.id} runs on '{step.processor}', which is not among the plan's processors")
            if step.finish_us < step.start_us:
                raise ValueError(f"step {step.id} finishes before it starts")
        places = {*self.processors, HOST}
        for move in self.transfers:
            if not {move.source, move.target} <= places:
                raise ValueError(f"'{move.tensor}' is moved {move.source} -> {move.target}, not both of the plan")
        return self

    @cached_property
    def step(self) -> dict[int, Step]:
        """Steps by id."""
        return {step.id: step for step in self.steps}

    @property
    def processors_used(self) -> tuple[str, ...]:
        """The processors that run at least one step, in the plan's order."""
        used = {step.processor for step in self.steps}
        return tuple(processor for processor in self.processors if processor in used)

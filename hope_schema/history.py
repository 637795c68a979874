"""The versions of a plan: what each promised, what was measured of it, and what changed between two."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from hope_schema.base import (
    MAX_OPS,
    Contract,
    Count,
    Digest,
    Fraction,
    Frequency,
    Label,
    Microseconds,
    Name,
)
from hope_schema.plan import Cause, FoundBy, JobIndex


class Results(Contract):
    """What devices reported of one plan version, all together.

    ``measured_us`` is the geometric mean of the devices' medians; ``spread`` is their geometric standard deviation less
    one (0.1: most lie within 10 %); ``p99_us`` is the geometric mean of the devices' 99th percentiles. All are null
    before the first report that has them. ``failures`` and ``wrong`` count runs beside ``runs``; ``missed`` counts
    those of ``deadlines`` that were not kept.
    """

    reports: Count
    runs: Count
    failures: Count
    wrong: Count
    deadlines: Count
    missed: Count
    measured_us: Microseconds | None
    p99_us: Microseconds | None
    spread: Fraction | None


class PlanVersion(Contract):
    """One version of a plan. ``served``: what devices get, but for those that a release under way chose."""

    plan_id: Label
    version: Annotated[int, Field(ge=1)]
    model_hash: Digest
    soc: Label
    frequency: Frequency
    served: bool
    provisional: bool
    profile_version: Count
    makespan_us: Microseconds
    lower_bound_us: Microseconds
    gap: Fraction
    found_by: FoundBy
    solve_us: Microseconds
    created_at: AwareDatetime
    results: Results


class PlanHistory(Contract):
    """The versions of a plan that are kept, newest first."""

    plan_id: Label
    versions: tuple[PlanVersion, ...]


class MovedStep(Contract):
    """Ops that run elsewhere in the plan after than in the plan before, and how long they take in each, as planned."""

    job: JobIndex
    ops: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_OPS)]
    before: Label
    after: Label
    before_us: Microseconds
    after_us: Microseconds
    cause: Cause


class PlanDiff(Contract):
    """Two plans beside each other: what moved, what was promised, what was measured.

    ``predicted`` is after / before of the makespans, ``measured`` of the measured times (null where one has none).
    ``transfers`` are the numbers of tensors moved. Ops of which only one plan knows are listed by name.
    """

    before: PlanVersion
    after: PlanVersion
    predicted: Fraction | None
    measured: Fraction | None
    transfers: tuple[Count, Count]
    moved: Annotated[tuple[MovedStep, ...], Field(max_length=MAX_OPS)]
    unmoved: Count
    only_before: Annotated[tuple[Name, ...], Field(max_length=MAX_OPS)]
    only_after: Annotated[tuple[Name, ...], Field(max_length=MAX_OPS)]

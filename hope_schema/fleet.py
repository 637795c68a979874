"""Enrolment, what devices report about themselves, planning ahead, and the fleet as an admin sees it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, model_validator

from hope_schema.base import (
    Contract,
    Count,
    Digest,
    Fraction,
    Frequency,
    Label,
    Microseconds,
    PositiveMicroseconds,
    Rate,
    VersionNumber,
)
from hope_schema.plan import FoundBy, Method
from hope_schema.registry import Labels

Versions = Annotated[dict[Label, Label], Field(max_length=64, json_schema_extra={"additionalProperties": False})]
"""Component to version, e.g. ``{"hope-inference": "0.1.0", "onnxruntime": "1.23.0"}``."""
Runs = Annotated[int, Field(ge=0, le=1_000_000_000)]
PlanStatus = Literal["queued", "solving", "done", "failed"]


class Enrolment(Contract):
    """``POST /devices``, with a claim token as the bearer: a device asks for a token of its own."""

    device_id: Label
    soc: Label | None = None
    frequency: Frequency | None = None
    versions: Versions = {}


class EnrolmentReceipt(Contract):
    """Reply to an enrolment. ``token`` is shown this once and kept by the planner only as a hash."""

    device_id: Label
    token: Annotated[str, Field(min_length=32, max_length=128)]


class MeasuredRun(Contract):
    """How a plan did on the reporting device since its report before: ``measured_us`` is the median of ``runs`` runs.

    ``failures`` are runs that it could not answer, ``wrong`` those whose answer was wrong; neither is among ``runs``.
    Of the runs that were asked for with a deadline (``deadlines``), ``missed`` ended after it or were dropped.
    """

    plan_id: Label
    plan_version: VersionNumber
    measured_us: PositiveMicroseconds | None
    p99_us: PositiveMicroseconds | None = None
    runs: Runs
    failures: Runs = 0
    wrong: Runs = 0
    deadlines: Runs = 0
    missed: Runs = 0

    @model_validator(mode="after")
    def _has_runs_where_it_has_a_time(self) -> MeasuredRun:
        if (self.measured_us is None) != (self.runs == 0):
            raise ValueError("measured_us is the median of runs: neither stands without the other")
        if self.p99_us is not None and (self.measured_us is None or self.p99_us < self.measured_us):
            raise ValueError("p99_us is of the same runs as measured_us, and no less")
        if self.missed > self.deadlines:
            raise ValueError("more runs missed their deadline than had one")
        if not self.runs + self.failures + self.wrong + self.deadlines:
            raise ValueError("there is nothing to report of this plan")
        return self


class DeviceReport(Contract):
    """``PUT /devices/{device_id}/report``: versions, and measured against predicted; the newest report stands.

    ``sent_at`` is the device's own clock. It is compared with the planner's to show the skew, and trusted for
    nothing.
    """

    soc: Label
    frequency: Frequency
    versions: Versions = {}
    sent_at: AwareDatetime | None = None
    measured: Annotated[tuple[MeasuredRun, ...], Field(max_length=256)] = ()


class Device(Contract):
    """A device of the fleet. ``drift`` is the median of measured / predicted - 1 over its newest reports, ``missed``
    the share of missed deadlines in these.

    ``unused`` says what of its newest uploads was not used, and why; null: everything was.
    """

    device_id: Label
    name: str | None
    labels: Labels
    soc: Label | None
    frequency: Frequency | None
    versions: Versions
    enrolled_at: AwareDatetime
    last_seen_at: AwareDatetime | None
    clock_skew_s: float | None
    revoked: bool
    drift: float | None
    missed: Rate | None
    unused: str | None = None


class DevicePage(Contract):
    """Devices in the order of their ids; ``next`` is the ``after`` of the following page, null on the last."""

    devices: tuple[Device, ...]
    next: Label | None = None


class FleetSummary(Contract):
    """The fleet in numbers. ``plans`` counts plans per status; ``hit_rate`` is null before the first request.

    ``median_drift`` is the drift of the plan that the middle one of all reports is about. ``socs`` are those that
    planning ahead counts; ``socs_unconfirmed`` those that have a profile but too few devices uploaded for, and no
    admin vouched for.
    """

    socs: Count
    socs_unconfirmed: Count = 0
    profiles: Count
    models: Count
    devices: Count
    devices_seen_today: Count
    plans: dict[PlanStatus, Count]
    provisional: Count
    hits: Count
    misses: Count
    hit_rate: Rate | None
    median_drift: float | None
    missed: Rate | None


class FleetProfile(Contract):
    """What is known of one SoC at one frequency.

    ``established``: enough devices uploaded for the SoC, or an admin vouched for it, so planning ahead counts it.
    """

    soc: Label
    frequency: Frequency
    version: Count
    latencies: Count
    transfers: Count
    devices: Count
    uploads: Count
    rejected: Count
    established: bool
    updated_at: AwareDatetime


class FleetProfilePage(Contract):
    """Profiles in the order of SoC and frequency; ``next`` is the ``offset`` of the following page."""

    profiles: tuple[FleetProfile, ...]
    next: Count | None = None


class FleetModel(Contract):
    """One model. ``coverage``: the share of the (SoC, frequency) pairs that the fleet counts with a finished plan.

    ``missed``: the share of deadlines missed by the plans that serve it.
    """

    model_hash: Digest
    name: Annotated[str, Field(max_length=256)]
    ops: Count
    super_ops: Count
    created_at: AwareDatetime
    plans: Count
    coverage: Rate
    worst_gap: Fraction | None
    hits: Count
    misses: Count
    hit_rate: Rate | None
    missed: Rate | None


class FleetModelPage(Contract):
    """Models in the order of their hashes; ``next`` is the ``offset`` of the following page."""

    models: tuple[FleetModel, ...]
    next: Count | None = None


class FleetPlan(Contract):
    """One plan, with the figures of the version that devices get: ``version``, 0 while there is none.

    ``name`` says which networks it serves, ``model_hash`` is the first of them. ``newest`` is greater than ``version``
    where a newer one is held back. ``drift``: measured / predicted - 1, the geometric mean over the reports on it.
    """

    plan_id: Label
    name: str
    model_hash: Digest
    soc: Label
    frequency: Frequency
    status: PlanStatus
    version: Count
    newest: Count
    provisional: bool
    makespan_us: Microseconds | None
    gap: Fraction | None
    found_by: FoundBy | None
    profile_version: Count | None
    age_s: Annotated[float, Field(ge=0.0)] | None
    hits: Count
    misses: Count
    hit_rate: Rate | None
    drift: float | None
    p99_us: Microseconds | None
    missed: Rate | None
    error: str | None


class FleetPlanPage(Contract):
    """Plans in the order of their ids; ``next`` is the ``after`` of the following page, null on the last."""

    plans: tuple[FleetPlan, ...]
    next: Label | None = None


class Contribution(Contract):
    """What one device said in one profile.

    ``figures`` counts those its vote is kept of, ``alone`` those that nobody else says; ``unused`` says what of its
    newest upload was not used, and why.
    """

    device_id: Label
    uploads: Count
    figures: Count
    alone: Count
    unused: str | None
    last_at: AwareDatetime


class ContributionPage(Contract):
    """Contributions in the order of device ids; ``next`` is the ``after`` of the following page, null on the last."""

    contributions: tuple[Contribution, ...]
    next: Label | None = None


class Vote(Contract):
    """What one device said of one figure: ``us`` is null where it said *unsupported*.

    ``figure`` is a latency's signature and kind, a transfer's type and ends, or an overhead's kind.
    """

    figure: tuple[str, ...]
    device_id: Label | None
    us: Microseconds | None


class VotePage(Contract):
    """Votes, latencies first; ``next`` is the ``offset`` of the following page, null on the last."""

    votes: tuple[Vote, ...]
    next: Count | None = None


class FanoutRequest(Contract):
    """``POST /models/{model_hash}/plans``: plan a model for every SoC and frequency known, before it is released."""

    method: Method = "auto"


class Fanout(Contract):
    """A planning ahead and its progress; ``finished`` when nothing is queued or being solved any more."""

    fanout_id: Label
    model_hash: Digest
    created_at: AwareDatetime
    total: Count
    queued: Count
    solving: Count
    done: Count
    failed: Count
    finished: bool

"""Requests and replies between agent and planner that are not themselves a graph, a profile or a plan."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field, model_validator

from hope_schema.base import MAX_ROWS, Contract, Count, Digest, Frequency, Label, Microseconds, PositiveMicroseconds
from hope_schema.graph import TensorType
from hope_schema.hosts import MAX_HOSTS, MAX_LINKS, Host, Link, check_hosts
from hope_schema.periods import runs
from hope_schema.plan import MAX_JOBS, Method, Objective, Plan, Weight
from hope_schema.profile import Kind, Processor, Signature


class ModelReceipt(Contract):
    """Reply to ``POST /models``: the hash under which the graph is kept."""

    model_hash: Digest
    ops: int
    super_ops: int
    created: bool


class MissingRequest(Contract):
    """``POST /profiles/missing``: what does the planner not know yet, or not surely, about this model on this device?

    ``max_items`` is how many figures the device is willing to measure now (null: all of them). The planner
    spreads the unknown over the devices that ask.
    """

    model_hash: Digest
    soc: Label
    frequency: Frequency
    device_id: Label
    processors: Annotated[tuple[Processor, ...], Field(min_length=1, max_length=1024)]
    max_items: Annotated[int, Field(ge=0, le=MAX_ROWS)] | None = None


class MissingLatency(Contract):
    """A latency to measure: this signature on this kind of processor."""

    signature: Signature
    kind: Kind


class MissingTransfer(Contract):
    """A transfer to measure: this tensor type from one place to another (or to another processor of the same one)."""

    tensor: TensorType
    source: Label
    target: Label


class Missing(Contract):
    """Reply to ``POST /profiles/missing``.

    ``elsewhere`` counts figures that are unknown too but that other devices were asked for just now.
    """

    profile_version: Count
    latencies: tuple[MissingLatency, ...] = ()
    transfers: tuple[MissingTransfer, ...] = ()
    elsewhere: Count = 0


class UploadReceipt(Contract):
    """Reply to ``POST /profiles``: accepted into the inbox. ``duplicate``: this upload id was seen before.

    ``unused`` says what of this device's newest folded upload was not used, and why: figures beyond its share, or that
    it alone says and that the agreed ones of its SoC do not bear out. Of this very upload where it is a duplicate.
    Null: everything was used, as far as it was folded.
    """

    upload_id: Label
    rows: int
    duplicate: bool
    unused: str | None = None


class Job(Contract):
    """One network of a plan request.

    Its inputs are there at ``release_us``, counted from the start of the run, and again every ``period_us``.
    ``deadline_us`` and ``weight`` belong to the objective ``lateness``.
    """

    model_hash: Digest
    release_us: Microseconds = 0.0
    period_us: PositiveMicroseconds | None = None
    deadline_us: Microseconds | None = None
    weight: Weight = 1.0

    @model_validator(mode="after")
    def _can_be_done(self) -> Job:
        if self.deadline_us is not None and self.deadline_us < self.release_us:
            raise ValueError("deadline_us lies before release_us")
        return self


class PlanRequest(Contract):
    """``POST /plans``: the key of a plan, and how it may be found.

    ``jobs`` are the networks that run together; usually one. ``processors`` restricts the candidates of the device to
    these ids (null: all that the profile knows). ``hosts`` are the machines that it may use beside itself, over
    ``links``. In which order jobs, hosts and links stand makes no difference: the plan's jobs say which is which.
    """

    # NOTE: lists pass as tuples here because a stored request is read back from JSON columns.
    jobs: Annotated[tuple[Job, ...], Field(min_length=1, max_length=MAX_JOBS, strict=False)]
    soc: Label
    frequency: Frequency
    processors: Annotated[tuple[Label, ...], Field(min_length=1, max_length=1024, strict=False)] | None = None
    hosts: Annotated[tuple[Host, ...], Field(max_length=MAX_HOSTS, strict=False)] = ()
    links: Annotated[tuple[Link, ...], Field(max_length=MAX_LINKS, strict=False)] = ()
    method: Method = "auto"
    objective: Objective = "makespan"

    @model_validator(mode="after")
    def _can_be_planned(self) -> PlanRequest:
        if self.objective == "lateness" and all(job.deadline_us is None for job in self.jobs):
            raise ValueError("objective 'lateness' needs a job with deadline_us")
        runs([job.period_us for job in self.jobs])
        check_hosts([host.name for host in self.hosts], self.links)
        return self

    @property
    def model_hash(self) -> str:
        """The first job's network: the only one, unless several are planned together."""
        return self.jobs[0].model_hash

    @property
    def profiles(self) -> tuple[tuple[str, str], ...]:
        """SoC and frequency of the device and of each further host: what a plan rests on, each once."""
        return tuple(dict.fromkeys([(self.soc, self.frequency), *((host.soc, host.frequency) for host in self.hosts)]))


class PlanReply(Contract):
    """A plan as it is served: the deterministic body, and beside it what a clock had a part in.

    ``plan_id`` belongs to the key and outlives improvements; ``version`` counts them. ``provisional`` says that a
    better plan is being looked for (promise 4). Whether the reply came from the cache stands in the
    ``Hope-Plan-Cache`` header (``hit`` or ``miss``), because the stored bytes are the same for everybody.
    """

    plan_id: Label
    version: Annotated[int, Field(ge=1)]
    provisional: bool
    created_at: AwareDatetime
    solve_us: Microseconds
    plan: Plan


class ProblemDetails(Contract):
    """An error as RFC 9457 puts it (``application/problem+json``), with the id that the logs know it by."""

    type: str
    title: str
    status: Annotated[int, Field(ge=400, le=599)]
    detail: str
    instance: str | None = None
    request_id: str | None = None
    errors: tuple[str, ...] = ()

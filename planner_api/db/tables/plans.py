"""Tables of plans and their versions, and of planning ahead."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, func
from sqlalchemy.orm import Mapped, mapped_column

from planner_api.db.tables.base import Base
from planner_api.db.types import utc_now


class PlanRow(Base):
    """A plan under its key. ``id`` is derived from the key (``plans/key.py``).

    ``version`` 0 with no body: nothing has been solved yet. Whether it waits or is being solved stands in ``jobs``;
    ``error`` says why it failed.
    """

    __tablename__ = "plans"
    __table_args__ = (Index(None, "model_hash", "soc", "frequency"), Index(None, "soc", "frequency"))

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    model_hash: Mapped[str] = mapped_column(ForeignKey("models.hash", ondelete="CASCADE"))
    """The first job's."""
    jobs: Mapped[list[Any]]
    """The networks that the plan runs together, as ``hope_schema.Job``."""
    soc: Mapped[str] = mapped_column(String(128))
    frequency: Mapped[str] = mapped_column(String(128))
    processors: Mapped[list[Any] | None]
    hosts: Mapped[list[Any]] = mapped_column(default=list)
    """The machines that it may use beside the device, as ``hope_schema.Host``."""
    links: Mapped[list[Any]] = mapped_column(default=list)
    """The ways between them, as ``hope_schema.Link``."""
    method: Mapped[str] = mapped_column(String(32))
    objective: Mapped[str] = mapped_column(String(32))

    version: Mapped[int] = mapped_column(default=0)
    """The newest; ``plan_versions`` holds it and those before it."""
    served_version: Mapped[int | None]
    """The version that devices get; null: the newest."""
    refused_version: Mapped[int | None]
    """The newest version that a release took back."""
    release_id: Mapped[str | None] = mapped_column(String(64), index=True)
    """The release under way, if there is one: never two."""
    provisional: Mapped[bool] = mapped_column(default=True)
    """Whether the newest version is a first one, which a better one follows."""
    hits: Mapped[int] = mapped_column(BigInteger, default=0)
    misses: Mapped[int] = mapped_column(BigInteger, default=0)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    solved_at: Mapped[datetime | None]
    """When the newest version was stored."""

    solves: Mapped[int] = mapped_column(default=0)
    """Plans stored so far that are not provisional; a burst of identical requests must raise it by one."""
    error: Mapped[str | None] = mapped_column(Text)
    """Why it could not be planned the last time; null: it could."""
    retry_at: Mapped[datetime | None]
    """From when on that may have passed; null: it holds until a profile changes."""
    figures_zstd: Mapped[bytes | None] = mapped_column(deferred=True)
    """``Figures`` of the networks as the newest version cuts them, compressed; null: it cuts none."""


SERVED_VERSION = func.coalesce(PlanRow.served_version, PlanRow.version)
"""The version of a plan that devices get."""


class PlanJobRow(Base):
    """A model that a plan serves, by its position among the plan's jobs: the plan is found under each of them."""

    __tablename__ = "plan_jobs"

    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    model_hash: Mapped[str] = mapped_column(ForeignKey("models.hash", ondelete="CASCADE"), index=True)


class PlanRestsOnRow(Base):
    """A profile that the newest version of a plan rests on."""

    __tablename__ = "plan_rests_on"
    __table_args__ = (Index(None, "soc", "frequency"),)

    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True)
    soc: Mapped[str] = mapped_column(String(128), primary_key=True)
    frequency: Mapped[str] = mapped_column(String(128), primary_key=True)
    profile_version: Mapped[int | None]
    """Null before the first version of the plan."""
    checked_version: Mapped[int | None]
    """Newest version of the profile that was found to be close enough to ``profile_version``."""


class PlanVersionRow(Base):
    """A version of a plan as it was stored, and what devices measured of it; the newest ones of a plan are kept."""

    __tablename__ = "plan_versions"

    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    provisional: Mapped[bool]
    etag: Mapped[str] = mapped_column(String(80))
    """Weak ETag of the reply, with its quotes."""
    body_zstd: Mapped[bytes]
    """The ``PlanReply`` as JSON, compressed with zstd."""
    profile_version: Mapped[int]
    makespan_us: Mapped[float]
    lower_bound_us: Mapped[float]
    gap: Mapped[float]
    found_by: Mapped[str] = mapped_column(String(128))
    solve_us: Mapped[float]
    created_at: Mapped[datetime]
    reports: Mapped[int] = mapped_column(BigInteger, default=0)
    timed: Mapped[int] = mapped_column(BigInteger, default=0)
    """Reports with a time; the sums below are of the logarithm of it (in microseconds), and of its square."""
    log_sum: Mapped[float] = mapped_column(default=0.0)
    log_squares: Mapped[float] = mapped_column(default=0.0)
    tails: Mapped[int] = mapped_column(BigInteger, default=0)
    """Reports with a 99th percentile; the sum below is of the logarithm of it (in microseconds)."""
    tail_log_sum: Mapped[float] = mapped_column(default=0.0)
    runs: Mapped[int] = mapped_column(BigInteger, default=0)
    failures: Mapped[int] = mapped_column(BigInteger, default=0)
    wrong: Mapped[int] = mapped_column(BigInteger, default=0)
    deadlines: Mapped[int] = mapped_column(BigInteger, default=0)
    missed: Mapped[int] = mapped_column(BigInteger, default=0)


class FanoutRow(Base):
    """One planning ahead: the planning of one model over every SoC and frequency known when it was asked for."""

    __tablename__ = "fanouts"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    model_hash: Mapped[str] = mapped_column(ForeignKey("models.hash", ondelete="CASCADE"), index=True)
    request: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class FanoutPlanRow(Base):
    """A plan that a planning ahead waits for."""

    __tablename__ = "fanout_plans"

    fanout_id: Mapped[str] = mapped_column(ForeignKey("fanouts.id", ondelete="CASCADE"), primary_key=True)
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True, index=True)

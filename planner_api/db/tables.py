"""Every table of the planner, for SQLite and PostgreSQL alike.

Large documents (graphs, profiles, plans) are kept as the compressed bytes that are served or loaded as a
whole; what is searched by stands in columns beside them. Times are UTC; durations are microseconds.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from planner_api.db.types import BigKey, JsonDocument, UtcDateTime

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base of all tables; names every constraint, so that a migration can drop it on either database."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map = {
        datetime: UtcDateTime(),
        dict[str, Any]: JsonDocument,
        list[Any]: JsonDocument,
        bytes: LargeBinary(),
        float: Float(53),
    }


class ModelRow(Base):
    """A model graph under its hash; never weights."""

    __tablename__ = "models"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(256))
    ops: Mapped[int]
    super_ops: Mapped[int]
    graph_zstd: Mapped[bytes]
    """The ``ModelGraph`` as JSON, compressed with zstd."""
    graph_digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of its content, whatever the order it is listed in: another graph under the same hash is a conflict."""
    figures_zstd: Mapped[bytes]
    """The figures a plan of it needs (``models/figures.py``), worked out once when the graph arrives."""
    rollout: Mapped[str] = mapped_column(String(16), default="at_once", server_default="at_once")
    """``hope_schema.Rollout``: how new versions of its plans reach devices."""
    created_at: Mapped[datetime]


class SignatureRow(Base):
    """What is known of an op by its signature: what predictors are trained on."""

    __tablename__ = "signatures"

    signature: Mapped[str] = mapped_column(String(160), primary_key=True)
    features: Mapped[bytes]
    """``prediction.features.Features`` as JSON."""


class SocRow(Base):
    """A hardware identity that profiles belong to."""

    __tablename__ = "socs"

    id: Mapped[int] = mapped_column(BigKey, primary_key=True)
    name: Mapped[str] = mapped_column(String(128), unique=True)
    created_at: Mapped[datetime]
    established_at: Mapped[datetime | None]
    """Since when the fleet counts it: enough devices uploaded figures of it, or someone who may do everything did or
    said so. Until then it is a name that its reporters use among themselves."""


class ProfileRow(Base):
    """What is known of one SoC at one frequency (operating point). Only the folder of this row writes it."""

    __tablename__ = "profiles"
    __table_args__ = (UniqueConstraint("soc_id", "frequency"),)

    id: Mapped[int] = mapped_column(BigKey, primary_key=True)
    soc_id: Mapped[int] = mapped_column(ForeignKey("socs.id", ondelete="CASCADE"))
    frequency: Mapped[str] = mapped_column(String(128))
    version: Mapped[int] = mapped_column(default=0)
    """Raised when a figure appears or moves materially; plans name the version they rest on."""
    statistics: Mapped[bytes | None]
    """The folded statistics of every figure (``profiles/statistics.py``), compressed."""
    latencies: Mapped[int] = mapped_column(default=0)
    transfers: Mapped[int] = mapped_column(default=0)
    devices: Mapped[int] = mapped_column(default=0)
    """Devices behind the most listed processor, counted up to the ``VOTES`` that are remembered of each."""
    uploads: Mapped[int] = mapped_column(BigInteger, default=0)
    rejected: Mapped[int] = mapped_column(BigInteger, default=0)
    """Votes that outlier rejection refused so far."""
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class ProfileVersionRow(Base):
    """The profile as one version of it stood; kept while it is current or a plan rests on it."""

    __tablename__ = "profile_versions"

    profile_id: Mapped[int] = mapped_column(ForeignKey("profiles.id", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    body_zstd: Mapped[bytes]
    """A ``hope_schema.Profile`` as JSON, compressed with zstd."""
    created_at: Mapped[datetime]


class InboxRow(Base):
    """One upload as it came, waiting to be folded; unique per device and upload id, so a replay counts once.

    After folding ``body`` is emptied and the row stays as the memory of the upload id until it is pruned.
    """

    __tablename__ = "inbox"
    __table_args__ = (
        UniqueConstraint("device_id", "upload_id"),
        Index(None, "soc", "frequency", "folded_at", "id"),
        Index(None, "folded_at", "id"),
    )

    id: Mapped[int] = mapped_column(BigKey, primary_key=True)
    device_id: Mapped[str] = mapped_column(String(128))
    upload_id: Mapped[str] = mapped_column(String(128))
    soc: Mapped[str] = mapped_column(String(128))
    frequency: Mapped[str] = mapped_column(String(128))
    rows: Mapped[int]
    encoding: Mapped[str] = mapped_column(String(8))
    """How ``body`` is compressed: ``zstd`` or ``gzip``."""
    body: Mapped[bytes | None]
    received_at: Mapped[datetime]
    folded_at: Mapped[datetime | None]
    error: Mapped[str | None] = mapped_column(Text)


class ContributionRow(Base):
    """What one device had to do with one profile: it asked what is missing (no upload yet), or said something."""

    __tablename__ = "contributions"

    profile_id: Mapped[int] = mapped_column(ForeignKey("profiles.id", ondelete="CASCADE"), primary_key=True)
    device_id: Mapped[str] = mapped_column(String(128), primary_key=True, index=True)
    uploads: Mapped[int] = mapped_column(BigInteger, default=0)
    """Uploads folded so far."""
    unused: Mapped[str | None] = mapped_column(Text)
    """What of its newest upload was not used, and why; null: nothing."""
    since: Mapped[datetime]
    last_at: Mapped[datetime]


class UsageRow(Base):
    """What one caller used of one quota on one day (UTC)."""

    __tablename__ = "usage"

    owner: Mapped[str] = mapped_column(String(160), primary_key=True)
    """``Principal.name``."""
    quota: Mapped[str] = mapped_column(String(32), primary_key=True)
    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    used: Mapped[int] = mapped_column(BigInteger)


class AssignmentRow(Base):
    """The missing figures one device was asked to measure, until it uploads them or the lease runs out."""

    __tablename__ = "assignments"

    profile_id: Mapped[int] = mapped_column(ForeignKey("profiles.id", ondelete="CASCADE"), primary_key=True)
    device_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    figures: Mapped[bytes]
    """64-bit figure hashes, little-endian, one after the other."""
    expires_at: Mapped[datetime] = mapped_column(index=True)


class PlanRow(Base):
    """A plan under its key. The row is also the lock and, on SQLite, the lease of its solve.

    ``id`` is derived from the key (``plans/key.py``), so inserting it ``ON CONFLICT DO NOTHING`` decides who
    enqueues. ``version`` 0 with no body: nothing has been solved yet. ``status`` tells what the queue does
    with it: ``queued``, ``solving`` (leased), ``done``, ``failed`` (``error`` says why).
    """

    __tablename__ = "plans"
    __table_args__ = (
        CheckConstraint("status IN ('queued', 'solving', 'done', 'failed')", name="status_known"),
        Index(None, "model_hash", "soc", "frequency"),
        Index(None, "soc", "frequency"),
        Index(None, "status", "priority", "queued_at"),
        Index(None, "solved_at"),
    )

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    model_hash: Mapped[str] = mapped_column(ForeignKey("models.hash", ondelete="CASCADE"))
    """The first job's."""
    jobs: Mapped[list[Any]]
    """The networks that the plan runs together, as ``hope_schema.Job``."""
    soc: Mapped[str] = mapped_column(String(128))
    frequency: Mapped[str] = mapped_column(String(128))
    processors: Mapped[list[Any] | None]
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
    created_at: Mapped[datetime]
    solved_at: Mapped[datetime | None]
    """When the newest version was stored."""

    status: Mapped[str] = mapped_column(String(16), default="queued")
    priority: Mapped[int] = mapped_column(Integer, default=0)
    """Higher first: a device waiting comes before planning ahead."""
    queued_at: Mapped[datetime | None]
    attempt: Mapped[int] = mapped_column(default=0)
    """Fencing token: raised by every lease; only the holder of the newest may finish the solve."""
    lease_owner: Mapped[str | None] = mapped_column(String(128))
    lease_until: Mapped[datetime | None]
    failures: Mapped[int] = mapped_column(default=0)
    solves: Mapped[int] = mapped_column(default=0)
    """Optimised plans stored so far; a burst of identical requests must raise it by one."""
    error: Mapped[str | None] = mapped_column(Text)
    asked_by: Mapped[str | None] = mapped_column(String(160))
    """``Principal.name`` of who asked for it first; its queued solves are counted together."""


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
    runs: Mapped[int] = mapped_column(BigInteger, default=0)
    failures: Mapped[int] = mapped_column(BigInteger, default=0)
    wrong: Mapped[int] = mapped_column(BigInteger, default=0)


class NamedModelRow(Base):
    """A model as people know it, under a name."""

    __tablename__ = "model_names"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    newest: Mapped[int] = mapped_column(default=0)
    """Its newest version; raised with the row locked, so that no number is given twice."""
    created_at: Mapped[datetime]


class ModelVersionRow(Base):
    """What one version of a named model is."""

    __tablename__ = "model_versions"

    name: Mapped[str] = mapped_column(ForeignKey("model_names.name", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    model_hash: Mapped[str] = mapped_column(ForeignKey("models.hash", ondelete="CASCADE"), index=True)
    labels: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class ModelAliasRow(Base):
    """A name for a version that may come to stand for another one."""

    __tablename__ = "model_aliases"
    __table_args__ = (
        ForeignKeyConstraint(
            ["name", "version"], ["model_versions.name", "model_versions.version"], ondelete="CASCADE"
        ),
    )

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    alias: Mapped[str] = mapped_column(String(100), primary_key=True)
    version: Mapped[int]
    release_id: Mapped[str | None] = mapped_column(String(64))
    """The release under way, if there is one: never two."""


class GroupRow(Base):
    """A group of devices, by what chooses them (``hope_schema.GroupSelector``)."""

    __tablename__ = "groups"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    socs: Mapped[list[Any]]
    labels: Mapped[dict[str, Any]]
    share: Mapped[float]
    created_at: Mapped[datetime]


class ReleaseRow(Base):
    """A release: what goes out, to whom, how, and how far it is."""

    __tablename__ = "releases"
    __table_args__ = (Index(None, "state"), Index(None, "created_at", "id"))

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    model: Mapped[str] = mapped_column(String(201))
    """As it was asked for."""
    model_hash: Mapped[str] = mapped_column(ForeignKey("models.hash", ondelete="CASCADE"))
    name: Mapped[str | None] = mapped_column(String(100))
    alias: Mapped[str | None] = mapped_column(String(100))
    """Set where an alias of the name goes from one version to another; null: plans go out."""
    before: Mapped[int | None]
    after: Mapped[int | None]
    before_hash: Mapped[str | None] = mapped_column(String(64))
    group: Mapped[str | None] = mapped_column(String(100))
    selector: Mapped[dict[str, Any]]
    """The group as it was when the release began."""
    stages: Mapped[list[Any]]
    reported: Mapped[float]
    hold_s: Mapped[float]
    approval: Mapped[bool]
    tolerance: Mapped[float]
    error_rate: Mapped[float]
    devices: Mapped[int]
    stage: Mapped[int] = mapped_column(default=0)
    state: Mapped[str] = mapped_column(String(16), default="running")
    reason: Mapped[str] = mapped_column(String(500), default="")
    created_at: Mapped[datetime]
    stage_since: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    revision: Mapped[int] = mapped_column(BigInteger, default=0)
    """Raised by every change, so that a process sees what it does not know yet."""


class ReleasePartRow(Base):
    """One stratum of a release: a plan from one version to another, or, of an alias, a SoC."""

    __tablename__ = "release_parts"

    release_id: Mapped[str] = mapped_column(ForeignKey("releases.id", ondelete="CASCADE"), primary_key=True)
    part: Mapped[str] = mapped_column(String(128), primary_key=True)
    """The plan's id, or the SoC."""
    soc: Mapped[str] = mapped_column(String(128))
    plan_id: Mapped[str | None] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), index=True)
    before: Mapped[int]
    after: Mapped[int]
    reported: Mapped[int] = mapped_column(default=0)
    slower: Mapped[int] = mapped_column(default=0)
    faster: Mapped[int] = mapped_column(default=0)
    failing: Mapped[int] = mapped_column(default=0)
    mended: Mapped[int] = mapped_column(default=0)
    wrong: Mapped[int] = mapped_column(default=0)
    righted: Mapped[int] = mapped_column(default=0)


class ReleaseDeviceRow(Base):
    """A device that reported about a release under way, so that it counts once; gone when the release has ended."""

    __tablename__ = "release_devices"

    release_id: Mapped[str] = mapped_column(ForeignKey("releases.id", ondelete="CASCADE"), primary_key=True)
    device_id: Mapped[str] = mapped_column(String(128), primary_key=True)


class AuditRow(Base):
    """One action; written with the transaction that it tells of, never changed, and kept for ``AuditRetentionRow.days``
    (triggers see to both).
    """

    __tablename__ = "audit"
    __table_args__ = (Index(None, "subject", "id"), Index(None, "actor", "id"), Index(None, "at"))

    id: Mapped[int] = mapped_column(BigKey, primary_key=True)
    at: Mapped[datetime]
    actor: Mapped[str] = mapped_column(String(160))
    action: Mapped[str] = mapped_column(String(64))
    subject: Mapped[str] = mapped_column(String(256))
    detail: Mapped[dict[str, Any]]
    request_id: Mapped[str | None] = mapped_column(String(128))


class AuditRetentionRow(Base):
    """The retention setting, for the trigger that refuses to delete what is younger; one row, 1, or none yet."""

    __tablename__ = "audit_retention"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    days: Mapped[int]


class FanoutRow(Base):
    """One planning ahead: the planning of one model over every SoC and frequency known when it was asked for."""

    __tablename__ = "fanouts"

    id: Mapped[str] = mapped_column(String(64), primary_key=True)
    model_hash: Mapped[str] = mapped_column(ForeignKey("models.hash", ondelete="CASCADE"), index=True)
    request: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime]


class FanoutPlanRow(Base):
    """A plan that a planning ahead waits for."""

    __tablename__ = "fanout_plans"

    fanout_id: Mapped[str] = mapped_column(ForeignKey("fanouts.id", ondelete="CASCADE"), primary_key=True)
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True, index=True)


class DeviceRow(Base):
    """A device of the fleet as it last reported itself."""

    __tablename__ = "devices"

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str | None] = mapped_column(String(200))
    """What people call it."""
    labels: Mapped[dict[str, Any] | None]
    """What groups choose by; only admins write them."""
    soc: Mapped[str | None] = mapped_column(String(128), index=True)
    frequency: Mapped[str | None] = mapped_column(String(128))
    versions: Mapped[dict[str, Any] | None]
    """Agent and runtime versions, as reported."""
    claim_id: Mapped[int | None] = mapped_column(ForeignKey("claims.id", ondelete="SET NULL"))
    revoked_at: Mapped[datetime | None]
    clock_skew_s: Mapped[float | None]
    enrolled_at: Mapped[datetime]
    last_seen_at: Mapped[datetime | None]
    """Not in any index, so that a call or a report rewrites one page of the table and nothing else."""


class TokenRow(Base):
    """A bearer token, hashed at rest. ``device_id`` is null for an admin's and a viewer's."""

    __tablename__ = "tokens"
    __table_args__ = (CheckConstraint("scope IN ('device', 'admin', 'viewer')", name="scope_known"),)

    id: Mapped[int] = mapped_column(BigKey, primary_key=True)
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    """SHA-256 of the token in hexadecimal; the tokens carry 256 bits of entropy, so no slow hash is needed."""
    scope: Mapped[str] = mapped_column(String(16))
    device_id: Mapped[str | None] = mapped_column(ForeignKey("devices.id", ondelete="CASCADE"), index=True)
    label: Mapped[str] = mapped_column(String(128), default="")
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class ConsoleSessionRow(Base):
    """Somebody signed in to the console: with a token, with which it ends, or vouched for by a provider."""

    __tablename__ = "console_sessions"
    __table_args__ = (CheckConstraint("(token_id IS NULL) != (person IS NULL)", name="one_who"),)

    session_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    """SHA-256 of the cookie in hexadecimal."""
    token_id: Mapped[int | None] = mapped_column(ForeignKey("tokens.id", ondelete="CASCADE"), index=True)
    person: Mapped[str | None] = mapped_column(String(160))
    """``Principal.name`` of whom a provider vouches for."""
    scope: Mapped[str] = mapped_column(String(16))
    """The token's or the person's, or ``viewer`` for an admin who signed in to look only."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class ClaimRow(Base):
    """A claim token that devices exchange for their own token when they enrol."""

    __tablename__ = "claims"

    id: Mapped[int] = mapped_column(BigKey, primary_key=True)
    claim_hash: Mapped[str] = mapped_column(String(64), unique=True)
    label: Mapped[str] = mapped_column(String(128), default="")
    uses_left: Mapped[int | None]
    """How many more devices may enrol with it; null: any number."""
    created_at: Mapped[datetime]
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class DriftRow(Base):
    """Measured against predicted, per device and plan: the newest report stands."""

    __tablename__ = "drift_reports"

    device_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    plan_id: Mapped[str] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), primary_key=True, index=True)
    plan_version: Mapped[int]
    predicted_us: Mapped[float]
    measured_us: Mapped[float | None]
    """Null where no run succeeded."""
    runs: Mapped[int]
    failures: Mapped[int] = mapped_column(default=0, server_default="0")
    wrong: Mapped[int] = mapped_column(default=0, server_default="0")
    reported_at: Mapped[datetime]

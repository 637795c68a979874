"""Tables of devices and groups, of whoever holds a token, of what they used, reported and did."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from planner_api.db.tables.base import Base
from planner_api.db.types import BigKey, utc_now


class UsageRow(Base):
    """What one caller used of one quota on one day (UTC)."""

    __tablename__ = "usage"

    owner: Mapped[str] = mapped_column(String(160), primary_key=True)
    """``Principal.name``."""
    quota: Mapped[str] = mapped_column(String(32), primary_key=True)
    day: Mapped[str] = mapped_column(String(10), primary_key=True)
    used: Mapped[int] = mapped_column(BigInteger)


class GroupRow(Base):
    """A group of devices, by what chooses them (``hope_schema.GroupSelector``)."""

    __tablename__ = "groups"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    socs: Mapped[list[Any]]
    labels: Mapped[dict[str, Any]]
    share: Mapped[float]
    created_at: Mapped[datetime]


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
    request_id: Mapped[str | None] = mapped_column(String(160))
    """Ours, and behind a slash the caller's, where it sent one."""
    previous: Mapped[str] = mapped_column(String(64), default="")
    """The ``hash`` of the entry before; of the first one empty."""
    hash: Mapped[str] = mapped_column(String(64), default="")
    """SHA-256 of the entry and ``previous``."""


class AuditHeadRow(Base):
    """The newest entry's hash, 1; locked while the next one is written."""

    __tablename__ = "audit_head"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    hash: Mapped[str] = mapped_column(String(64))


class AuditRetentionRow(Base):
    """The retention setting, for the trigger that refuses to delete what is younger; one row, 1, or none yet."""

    __tablename__ = "audit_retention"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    days: Mapped[int]


class DeviceRow(Base):
    """A device of the fleet as it last reported itself."""

    __tablename__ = "devices"

    id: Mapped[str] = mapped_column(String(128), primary_key=True)
    name: Mapped[str | None] = mapped_column(String(200))
    """What people call it."""
    labels: Mapped[dict[str, Any] | None]
    """What groups choose by; only admins write them."""
    soc: Mapped[str | None] = mapped_column(String(128), index=True)
    soc_since: Mapped[datetime | None]
    """Since when it says so, where it said something else since it enrolled."""
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
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
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
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
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
    p99_us: Mapped[float | None]
    runs: Mapped[int]
    failures: Mapped[int] = mapped_column(default=0, server_default="0")
    wrong: Mapped[int] = mapped_column(default=0, server_default="0")
    deadlines: Mapped[int] = mapped_column(default=0, server_default="0")
    missed: Mapped[int] = mapped_column(default=0, server_default="0")
    reported_at: Mapped[datetime]

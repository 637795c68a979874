"""Tables of releases."""

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, ForeignKey, Index, String
from sqlalchemy.orm import Mapped, mapped_column

from planner_api.db.tables.base import Base


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
    left: Mapped[int] = mapped_column(default=0)
    """Those of the devices that have become another SoC since."""
    staged: Mapped[list[Any]]
    """How many of the devices each stage takes."""
    claims: Mapped[dict[str, Any]]
    """The same by the claim that devices enrolled with, where that has fewer than half of them."""
    stage: Mapped[int] = mapped_column(default=0)
    state: Mapped[str] = mapped_column(String(16), default="running")
    reason: Mapped[str] = mapped_column(String(500), default="")
    created_at: Mapped[datetime]
    stage_since: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    revision: Mapped[int] = mapped_column(BigInteger, default=0)
    """Raised by every change, so that a process sees what it does not know yet."""


class Counts:
    """Devices that reported about a new version, and in what they are worse or better than before."""

    reported: Mapped[int] = mapped_column(default=0)
    slower: Mapped[int] = mapped_column(default=0)
    faster: Mapped[int] = mapped_column(default=0)
    failing: Mapped[int] = mapped_column(default=0)
    mended: Mapped[int] = mapped_column(default=0)
    wrong: Mapped[int] = mapped_column(default=0)
    righted: Mapped[int] = mapped_column(default=0)
    missing: Mapped[int] = mapped_column(default=0)
    keeping: Mapped[int] = mapped_column(default=0)


class ReleasePartRow(Counts, Base):
    """One stratum of a release: a plan from one version to another, or, of an alias, a SoC."""

    __tablename__ = "release_parts"

    release_id: Mapped[str] = mapped_column(ForeignKey("releases.id", ondelete="CASCADE"), primary_key=True)
    part: Mapped[str] = mapped_column(String(128), primary_key=True)
    """The plan's id, or the SoC."""
    soc: Mapped[str] = mapped_column(String(128))
    plan_id: Mapped[str | None] = mapped_column(ForeignKey("plans.id", ondelete="CASCADE"), index=True)
    before: Mapped[int]
    after: Mapped[int]


class ReleaseClaimRow(Counts, Base):
    """What the devices of one claim say of a part, where it has fewer than half of them; gone when the release ends."""

    __tablename__ = "release_claims"

    release_id: Mapped[str] = mapped_column(ForeignKey("releases.id", ondelete="CASCADE"), primary_key=True)
    part: Mapped[str] = mapped_column(String(128), primary_key=True)
    claim_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)


class ReleaseDeviceRow(Base):
    """A device that reported about a release under way, or left it, so that it counts once; gone when that ends."""

    __tablename__ = "release_devices"

    release_id: Mapped[str] = mapped_column(ForeignKey("releases.id", ondelete="CASCADE"), primary_key=True)
    device_id: Mapped[str] = mapped_column(String(128), primary_key=True)

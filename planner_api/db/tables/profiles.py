"""Tables of profiles, and of the uploads that they are made of."""

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, String, Text, UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from planner_api.db.tables.base import Base
from planner_api.db.types import BigKey, utc_now


class SocRow(Base):
    """A hardware identity that profiles belong to."""

    __tablename__ = "socs"

    id: Mapped[int] = mapped_column(BigKey, primary_key=True)
    name: Mapped[str] = mapped_column(String(128), unique=True)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
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
    statistics: Mapped[bytes | None] = mapped_column(deferred=True)
    """The folded statistics of every figure (``profiles/statistics.py``), compressed; read by who asks for them."""
    latencies: Mapped[int] = mapped_column(default=0)
    transfers: Mapped[int] = mapped_column(default=0)
    devices: Mapped[int] = mapped_column(default=0)
    """Devices whose uploads were folded into it."""
    uploads: Mapped[int] = mapped_column(BigInteger, default=0)
    rejected: Mapped[int] = mapped_column(BigInteger, default=0)
    """Votes that outlier rejection refused so far."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    updated_at: Mapped[datetime] = mapped_column(default=utc_now)


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
    trusted: Mapped[bool]
    """Whether its figures are believed and counted against no share: nobody was asked for a device's token."""
    encoding: Mapped[str] = mapped_column(String(8))
    """How ``body`` is compressed: ``zstd`` or ``gzip``."""
    body: Mapped[bytes | None]
    received_at: Mapped[datetime]
    folded_at: Mapped[datetime | None]
    error: Mapped[str | None] = mapped_column(Text)


class ContributionRow(Base):
    """What one device had to do with one profile: it asked what is missing (no upload yet), or said something."""

    __tablename__ = "contributions"
    __table_args__ = (
        Index(
            "ix_contributions_taken_back",
            "profile_id",
            sqlite_where=text("taken_back_at IS NOT NULL"),
            postgresql_where=text("taken_back_at IS NOT NULL"),
        ),
    )

    profile_id: Mapped[int] = mapped_column(ForeignKey("profiles.id", ondelete="CASCADE"), primary_key=True)
    device_id: Mapped[str] = mapped_column(String(128), primary_key=True, index=True)
    uploads: Mapped[int] = mapped_column(BigInteger, default=0)
    """Uploads folded so far."""
    unused: Mapped[str | None] = mapped_column(Text)
    """What of its newest upload was not used, and why; null: nothing."""
    taken_back_at: Mapped[datetime | None]
    """Since when the next fold is to forget what it said; null: what it said counts."""
    since: Mapped[datetime] = mapped_column(default=utc_now)
    last_at: Mapped[datetime] = mapped_column(default=utc_now)


class AssignmentRow(Base):
    """The missing figures one device was asked to measure, until it uploads them or the lease runs out."""

    __tablename__ = "assignments"

    profile_id: Mapped[int] = mapped_column(ForeignKey("profiles.id", ondelete="CASCADE"), primary_key=True)
    device_id: Mapped[str] = mapped_column(String(128), primary_key=True)
    figures: Mapped[bytes]
    """64-bit figure hashes, little-endian, one after the other; empty: it uploaded what it has of them."""
    undelivered: Mapped[int] = mapped_column(default=0)
    """Assignments before this one, in a row, of which it did not upload half."""
    expires_at: Mapped[datetime] = mapped_column(index=True)

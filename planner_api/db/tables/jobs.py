"""Tables of work that takes a processor, and of the news of it."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from planner_api.db.tables.base import Base
from planner_api.db.types import BigKey


class JobRow(Base):
    """A job that waits or is under way, and its lock: one per kind and key. It is gone when it has ended."""

    __tablename__ = "jobs"
    __table_args__ = (UniqueConstraint("kind", "key"), Index(None, "kind", "rank"), {"sqlite_autoincrement": True})

    id: Mapped[int] = mapped_column(BigKey, primary_key=True)
    """Given once, so that a lease of a job that has ended fits no other."""
    kind: Mapped[str] = mapped_column(String(32))
    key: Mapped[str] = mapped_column(String(600), index=True)
    priority: Mapped[int] = mapped_column(default=0)
    """Seconds by which it comes before a job of priority 0 that was queued at the same time."""
    rank: Mapped[datetime]
    """The queue's order: ``queued_at`` less the priority."""
    queued_at: Mapped[datetime]
    not_before: Mapped[datetime]
    after: Mapped[int | None] = mapped_column(ForeignKey("jobs.id", ondelete="SET NULL"), index=True)
    """The job that has to end first."""
    again: Mapped[bool] = mapped_column(default=False)
    """It was asked for while it was under way, and follows itself."""
    attempt: Mapped[int] = mapped_column(default=0)
    """Fencing token: raised by every lease; only the holder of the newest may end the job."""
    failures: Mapped[int] = mapped_column(default=0)
    error: Mapped[str | None] = mapped_column(Text)
    """Of the last try."""
    lease_owner: Mapped[str | None] = mapped_column(String(128))
    """Who is at it; null: it waits."""
    lease_until: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    asked_by: Mapped[str | None] = mapped_column(String(160), index=True)
    """``Principal.name`` of who asked for it; one's jobs are counted together."""


class WorkerRow(Base):
    """A worker, and when it last looked for work."""

    __tablename__ = "workers"

    owner: Mapped[str] = mapped_column(String(128), primary_key=True)
    """As in ``JobRow.lease_owner``."""
    slots: Mapped[int]
    started_at: Mapped[datetime]
    looked_at: Mapped[datetime]


class NewsRow(Base):
    """What one process tells others, on SQLite; PostgreSQL has ``NOTIFY``. The newest rows are kept."""

    __tablename__ = "news"
    __table_args__ = ({"sqlite_autoincrement": True},)

    id: Mapped[int] = mapped_column(BigKey, primary_key=True)
    topic: Mapped[str] = mapped_column(String(32))
    about: Mapped[str] = mapped_column(String(600))

"""Tables of models and of their names."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, ForeignKeyConstraint, String
from sqlalchemy.orm import Mapped, mapped_column

from planner_api.db.tables.base import Base
from planner_api.db.types import utc_now


class ModelRow(Base):
    """A model graph under its hash; never weights."""

    __tablename__ = "models"

    hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(256))
    ops: Mapped[int]
    super_ops: Mapped[int]
    graph_zstd: Mapped[bytes] = mapped_column(deferred=True)
    """The ``ModelGraph`` as JSON, compressed with zstd."""
    graph_digest: Mapped[str] = mapped_column(String(64))
    """SHA-256 of its content, whatever the order it is listed in: another graph under the same hash is a conflict."""
    figures_zstd: Mapped[bytes] = mapped_column(deferred=True)
    """The figures a plan of it needs (``models/figures.py``), worked out once when the graph arrives."""
    rollout: Mapped[str] = mapped_column(String(16), default="at_once", server_default="at_once")
    """``hope_schema.Rollout``: how new versions of its plans reach devices."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class SignatureRow(Base):
    """What is known of an op by its signature: what predictors are trained on."""

    __tablename__ = "signatures"

    signature: Mapped[str] = mapped_column(String(160), primary_key=True)
    features: Mapped[bytes]
    """``prediction.features.Features`` as JSON."""


class NamedModelRow(Base):
    """A model as people know it, under a name."""

    __tablename__ = "model_names"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    newest: Mapped[int] = mapped_column(default=0)
    """Its newest version; raised with the row locked, so that no number is given twice."""
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class ModelVersionRow(Base):
    """What one version of a named model is."""

    __tablename__ = "model_versions"

    name: Mapped[str] = mapped_column(ForeignKey("model_names.name", ondelete="CASCADE"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    model_hash: Mapped[str] = mapped_column(ForeignKey("models.hash", ondelete="CASCADE"), index=True)
    labels: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


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

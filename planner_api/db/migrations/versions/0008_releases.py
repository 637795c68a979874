"""Releases in stages, what devices reported of them, and plans that wait for one

Revision ID: 0008
Revises: 0007
"""

import sqlalchemy as sa
from alembic import op

from planner_api.db import types

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade schema."""
    op.create_table(
        "releases",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("model", sa.String(length=201), nullable=False),
        sa.Column("model_hash", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=True),
        sa.Column("alias", sa.String(length=100), nullable=True),
        sa.Column("before", sa.Integer(), nullable=True),
        sa.Column("after", sa.Integer(), nullable=True),
        sa.Column("before_hash", sa.String(length=64), nullable=True),
        sa.Column("group", sa.String(length=100), nullable=True),
        sa.Column("selector", types.JsonDocument, nullable=False),
        sa.Column("stages", types.JsonDocument, nullable=False),
        sa.Column("reported", sa.Float(precision=53), nullable=False),
        sa.Column("hold_s", sa.Float(precision=53), nullable=False),
        sa.Column("approval", sa.Boolean(), nullable=False),
        sa.Column("tolerance", sa.Float(precision=53), nullable=False),
        sa.Column("error_rate", sa.Float(precision=53), nullable=False),
        sa.Column("devices", sa.Integer(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=500), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("stage_since", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("ended_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["model_hash"], ["models.hash"], name=op.f("fk_releases_model_hash_models"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_releases")),
    )
    with op.batch_alter_table("releases", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_releases_created_at_id"), ["created_at", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_releases_state"), ["state"], unique=False)

    op.create_table(
        "release_devices",
        sa.Column("release_id", sa.String(length=64), nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.ForeignKeyConstraint(
            ["release_id"], ["releases.id"], name=op.f("fk_release_devices_release_id_releases"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("release_id", "device_id", name=op.f("pk_release_devices")),
    )
    op.create_table(
        "release_parts",
        sa.Column("release_id", sa.String(length=64), nullable=False),
        sa.Column("part", sa.String(length=128), nullable=False),
        sa.Column("soc", sa.String(length=128), nullable=False),
        sa.Column("plan_id", sa.String(length=64), nullable=True),
        sa.Column("before", sa.Integer(), nullable=False),
        sa.Column("after", sa.Integer(), nullable=False),
        sa.Column("reported", sa.Integer(), nullable=False),
        sa.Column("slower", sa.Integer(), nullable=False),
        sa.Column("faster", sa.Integer(), nullable=False),
        sa.Column("failing", sa.Integer(), nullable=False),
        sa.Column("mended", sa.Integer(), nullable=False),
        sa.Column("wrong", sa.Integer(), nullable=False),
        sa.Column("righted", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["plan_id"], ["plans.id"], name=op.f("fk_release_parts_plan_id_plans"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["release_id"], ["releases.id"], name=op.f("fk_release_parts_release_id_releases"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("release_id", "part", name=op.f("pk_release_parts")),
    )
    with op.batch_alter_table("release_parts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_release_parts_plan_id"), ["plan_id"], unique=False)

    with op.batch_alter_table("drift_reports", schema=None) as batch_op:
        batch_op.add_column(sa.Column("failures", sa.Integer(), server_default="0", nullable=False))
        batch_op.add_column(sa.Column("wrong", sa.Integer(), server_default="0", nullable=False))
        batch_op.alter_column("measured_us", existing_type=sa.FLOAT(), nullable=True)

    op.add_column("model_aliases", sa.Column("release_id", sa.String(length=64), nullable=True))
    op.add_column("models", sa.Column("rollout", sa.String(length=16), server_default="at_once", nullable=False))
    op.add_column("plans", sa.Column("refused_version", sa.Integer(), nullable=True))
    op.add_column("plans", sa.Column("release_id", sa.String(length=64), nullable=True))
    op.create_index(op.f("ix_plans_release_id"), "plans", ["release_id"])


def downgrade() -> None:
    """Downgrade schema."""
    op.drop_index(op.f("ix_plans_release_id"), "plans")
    op.drop_column("plans", "release_id")
    op.drop_column("plans", "refused_version")
    op.drop_column("models", "rollout")
    op.drop_column("model_aliases", "release_id")
    op.execute("DELETE FROM drift_reports WHERE measured_us IS NULL")
    with op.batch_alter_table("drift_reports", schema=None) as batch_op:
        batch_op.alter_column("measured_us", existing_type=sa.FLOAT(), nullable=False)
        batch_op.drop_column("wrong")
        batch_op.drop_column("failures")

    with op.batch_alter_table("release_parts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_release_parts_plan_id"))

    op.drop_table("release_parts")
    op.drop_table("release_devices")
    with op.batch_alter_table("releases", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_releases_state"))
        batch_op.drop_index(batch_op.f("ix_releases_created_at_id"))

    op.drop_table("releases")

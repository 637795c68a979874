"""Every table of the planner

Revision ID: 0001
Revises: none
"""

import sqlalchemy as sa
from alembic import op

from planner_api.db import types

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade schema."""
    op.create_table(
        "claims",
        sa.Column("id", types.BigKey, nullable=False),
        sa.Column("claim_hash", sa.String(length=64), nullable=False),
        sa.Column("label", sa.String(length=128), nullable=False),
        sa.Column("uses_left", sa.Integer(), nullable=True),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("expires_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_claims")),
        sa.UniqueConstraint("claim_hash", name=op.f("uq_claims_claim_hash")),
    )
    op.create_table(
        "devices",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("soc", sa.String(length=128), nullable=True),
        sa.Column("frequency", sa.String(length=128), nullable=True),
        sa.Column("versions", types.JsonDocument, nullable=True),
        sa.Column("clock_skew_s", sa.Float(precision=53), nullable=True),
        sa.Column("claim_id", types.BigKey, nullable=True),
        sa.Column("revoked_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("enrolled_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("last_seen_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["claim_id"], ["claims.id"], name=op.f("fk_devices_claim_id_claims"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_devices")),
    )
    with op.batch_alter_table("devices", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_devices_last_seen_at"), ["last_seen_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_devices_soc"), ["soc"], unique=False)

    op.create_table(
        "inbox",
        sa.Column("id", types.BigKey, nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("upload_id", sa.String(length=128), nullable=False),
        sa.Column("soc", sa.String(length=128), nullable=False),
        sa.Column("frequency", sa.String(length=128), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("encoding", sa.String(length=8), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("received_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("folded_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_inbox")),
        sa.UniqueConstraint("device_id", "upload_id", name=op.f("uq_inbox_device_id_upload_id")),
    )
    with op.batch_alter_table("inbox", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_inbox_folded_at_id"), ["folded_at", "id"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_inbox_soc_frequency_folded_at_id"), ["soc", "frequency", "folded_at", "id"], unique=False
        )

    op.create_table(
        "models",
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=256), nullable=False),
        sa.Column("ops", sa.Integer(), nullable=False),
        sa.Column("super_ops", sa.Integer(), nullable=False),
        sa.Column("graph_zstd", sa.LargeBinary(), nullable=False),
        sa.Column("graph_digest", sa.String(length=64), nullable=False),
        sa.Column("figures_zstd", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_models")),
    )
    op.create_table(
        "socs",
        sa.Column("id", types.BigKey, nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_socs")),
        sa.UniqueConstraint("name", name=op.f("uq_socs_name")),
    )
    op.create_table(
        "plans",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("model_hash", sa.String(length=64), nullable=False),
        sa.Column("soc", sa.String(length=128), nullable=False),
        sa.Column("frequency", sa.String(length=128), nullable=False),
        sa.Column("processors", types.JsonDocument, nullable=True),
        sa.Column("method", sa.String(length=32), nullable=False),
        sa.Column("objective", sa.String(length=32), nullable=False),
        sa.Column("transfer_mode", sa.String(length=32), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("provisional", sa.Boolean(), nullable=False),
        sa.Column("etag", sa.String(length=80), nullable=True),
        sa.Column("body_zstd", sa.LargeBinary(), nullable=True),
        sa.Column("body_gzip", sa.LargeBinary(), nullable=True),
        sa.Column("profile_version", sa.Integer(), nullable=True),
        sa.Column("checked_version", sa.Integer(), nullable=True),
        sa.Column("makespan_us", sa.Float(precision=53), nullable=True),
        sa.Column("lower_bound_us", sa.Float(precision=53), nullable=True),
        sa.Column("gap", sa.Float(precision=53), nullable=True),
        sa.Column("found_by", sa.String(length=128), nullable=True),
        sa.Column("solve_us", sa.Float(precision=53), nullable=True),
        sa.Column("hits", sa.BigInteger(), nullable=False),
        sa.Column("misses", sa.BigInteger(), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("solved_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("queued_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("lease_owner", sa.String(length=128), nullable=True),
        sa.Column("lease_until", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("solves", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.CheckConstraint("status IN ('queued', 'solving', 'done', 'failed')", name=op.f("ck_plans_status_known")),
        sa.ForeignKeyConstraint(
            ["model_hash"], ["models.hash"], name=op.f("fk_plans_model_hash_models"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plans")),
    )
    with op.batch_alter_table("plans", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_plans_model_hash_soc_frequency"), ["model_hash", "soc", "frequency"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_plans_soc_frequency"), ["soc", "frequency"], unique=False)
        batch_op.create_index(batch_op.f("ix_plans_solved_at"), ["solved_at"], unique=False)
        batch_op.create_index(
            batch_op.f("ix_plans_status_priority_queued_at"), ["status", "priority", "queued_at"], unique=False
        )

    op.create_table(
        "profiles",
        sa.Column("id", types.BigKey, nullable=False),
        sa.Column("soc_id", types.BigKey, nullable=False),
        sa.Column("frequency", sa.String(length=128), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("statistics", sa.LargeBinary(), nullable=True),
        sa.Column("latencies", sa.Integer(), nullable=False),
        sa.Column("transfers", sa.Integer(), nullable=False),
        sa.Column("devices", sa.Integer(), nullable=False),
        sa.Column("uploads", sa.BigInteger(), nullable=False),
        sa.Column("rejected", sa.BigInteger(), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("updated_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["soc_id"], ["socs.id"], name=op.f("fk_profiles_soc_id_socs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_profiles")),
        sa.UniqueConstraint("soc_id", "frequency", name=op.f("uq_profiles_soc_id_frequency")),
    )
    op.create_table(
        "tokens",
        sa.Column("id", types.BigKey, nullable=False),
        sa.Column("token_hash", sa.String(length=64), nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=True),
        sa.Column("label", sa.String(length=128), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("expires_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.CheckConstraint("scope IN ('device', 'operator')", name=op.f("ck_tokens_scope_known")),
        sa.ForeignKeyConstraint(
            ["device_id"], ["devices.id"], name=op.f("fk_tokens_device_id_devices"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_tokens_token_hash")),
    )
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tokens_device_id"), ["device_id"], unique=False)

    op.create_table(
        "assignments",
        sa.Column("profile_id", types.BigKey, nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("figures", sa.LargeBinary(), nullable=False),
        sa.Column("expires_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["profile_id"], ["profiles.id"], name=op.f("fk_assignments_profile_id_profiles"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("profile_id", "device_id", name=op.f("pk_assignments")),
    )
    with op.batch_alter_table("assignments", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_assignments_expires_at"), ["expires_at"], unique=False)

    op.create_table(
        "drift_reports",
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("plan_id", sa.String(length=64), nullable=False),
        sa.Column("plan_version", sa.Integer(), nullable=False),
        sa.Column("predicted_us", sa.Float(precision=53), nullable=False),
        sa.Column("measured_us", sa.Float(precision=53), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("reported_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["plan_id"], ["plans.id"], name=op.f("fk_drift_reports_plan_id_plans"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("device_id", "plan_id", name=op.f("pk_drift_reports")),
    )
    with op.batch_alter_table("drift_reports", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_drift_reports_plan_id"), ["plan_id"], unique=False)

    op.create_table(
        "profile_versions",
        sa.Column("profile_id", types.BigKey, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("body_zstd", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["profile_id"], ["profiles.id"], name=op.f("fk_profile_versions_profile_id_profiles"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("profile_id", "version", name=op.f("pk_profile_versions")),
    )
    op.create_table(
        "fanouts",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("model_hash", sa.String(length=64), nullable=False),
        sa.Column("request", types.JsonDocument, nullable=True),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["model_hash"], ["models.hash"], name=op.f("fk_fanouts_model_hash_models"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_fanouts")),
    )
    with op.batch_alter_table("fanouts", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_fanouts_model_hash"), ["model_hash"], unique=False)

    op.create_table(
        "fanout_plans",
        sa.Column("fanout_id", sa.String(length=64), nullable=False),
        sa.Column("plan_id", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["fanout_id"], ["fanouts.id"], name=op.f("fk_fanout_plans_fanout_id_fanouts"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["plan_id"], ["plans.id"], name=op.f("fk_fanout_plans_plan_id_plans"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("fanout_id", "plan_id", name=op.f("pk_fanout_plans")),
    )
    with op.batch_alter_table("fanout_plans", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_fanout_plans_plan_id"), ["plan_id"], unique=False)


def downgrade() -> None:
    """Downgrade schema."""
    with op.batch_alter_table("fanout_plans", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_fanout_plans_plan_id"))

    op.drop_table("fanout_plans")
    with op.batch_alter_table("fanouts", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_fanouts_model_hash"))

    op.drop_table("fanouts")
    op.drop_table("profile_versions")
    with op.batch_alter_table("drift_reports", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_drift_reports_plan_id"))

    op.drop_table("drift_reports")
    with op.batch_alter_table("assignments", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_assignments_expires_at"))

    op.drop_table("assignments")
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_tokens_device_id"))

    op.drop_table("tokens")
    op.drop_table("profiles")
    with op.batch_alter_table("plans", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_plans_solved_at"))
        batch_op.drop_index(batch_op.f("ix_plans_status_priority_queued_at"))
        batch_op.drop_index(batch_op.f("ix_plans_soc_frequency"))
        batch_op.drop_index(batch_op.f("ix_plans_model_hash_soc_frequency"))

    op.drop_table("plans")
    op.drop_table("socs")
    op.drop_table("models")
    with op.batch_alter_table("inbox", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_inbox_soc_frequency_folded_at_id"))
        batch_op.drop_index(batch_op.f("ix_inbox_folded_at_id"))

    op.drop_table("inbox")
    with op.batch_alter_table("devices", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_devices_soc"))
        batch_op.drop_index(batch_op.f("ix_devices_last_seen_at"))

    op.drop_table("devices")
    op.drop_table("claims")

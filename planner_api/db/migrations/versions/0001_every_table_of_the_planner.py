"""Every table of the planner

Revision ID: 3.0001
Revises: none
"""

import sqlalchemy as sa
from alembic import op

from planner_api.db import types

revision = "3.0001"
down_revision = None
branch_labels = None
depends_on = None

APPEND_ONLY = "the audit log is append-only"
REFUSED = "the audit log keeps its entries for HOPE_AUDIT_DAYS"
AUDIT = {
    "sqlite": (
        f"CREATE TRIGGER audit_append_only BEFORE UPDATE ON audit BEGIN SELECT RAISE(ABORT, '{APPEND_ONLY}'); END",
        # REPLACE takes an entry away without a word to the triggers on UPDATE and DELETE.
        "CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit "
        "WHEN EXISTS (SELECT 1 FROM audit WHERE id = NEW.id) "
        f"BEGIN SELECT RAISE(ABORT, '{APPEND_ONLY}'); END",
        "CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit "
        "WHEN OLD.at > strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 hour', "
        "(SELECT '-' || coalesce(max(days), 1) || ' days' FROM audit_retention)) "
        f"BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{APPEND_ONLY}'; END $$",
        "CREATE TRIGGER audit_append_only BEFORE UPDATE ON audit FOR EACH ROW EXECUTE FUNCTION audit_is_append_only()",
        "CREATE TRIGGER audit_is_not_emptied BEFORE TRUNCATE ON audit EXECUTE FUNCTION audit_is_append_only()",
        "CREATE FUNCTION audit_is_kept() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF OLD.at > now() + interval '1 hour' - make_interval(days => "
        "(SELECT coalesce(max(days), 1) FROM audit_retention)) "
        f"THEN RAISE EXCEPTION '{REFUSED}'; END IF; RETURN OLD; END $$",
        "CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_is_kept()",
    ),
}
"""The triggers of the audit log. They keep entries an hour less than the setting, for clocks that differ, and as
short as a setting may be until a planner has said its own."""


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", types.BigKey, nullable=False),
        sa.Column("at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=160), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=256), nullable=False),
        sa.Column("detail", types.JsonDocument, nullable=False),
        sa.Column("request_id", sa.String(length=160), nullable=True),
        sa.Column("previous", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_audit_actor_id"), ["actor", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_at"), ["at"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_subject_id"), ["subject", "id"], unique=False)

    op.create_table(
        "audit_head",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_head")),
    )
    op.create_table(
        "audit_retention",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("days", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_retention")),
    )
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
        "groups",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("socs", types.JsonDocument, nullable=False),
        sa.Column("labels", types.JsonDocument, nullable=False),
        sa.Column("share", sa.Float(precision=53), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_groups")),
    )
    op.create_table(
        "inbox",
        sa.Column("id", types.BigKey, nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("upload_id", sa.String(length=128), nullable=False),
        sa.Column("soc", sa.String(length=128), nullable=False),
        sa.Column("frequency", sa.String(length=128), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("trusted", sa.Boolean(), nullable=False),
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
        "jobs",
        sa.Column("id", types.BigKey, nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("key", sa.String(length=600), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("rank", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("queued_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("not_before", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("after", types.BigKey, nullable=True),
        sa.Column("again", sa.Boolean(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("lease_owner", sa.String(length=128), nullable=True),
        sa.Column("lease_until", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("started_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("asked_by", sa.String(length=160), nullable=True),
        sa.ForeignKeyConstraint(["after"], ["jobs.id"], name=op.f("fk_jobs_after_jobs"), ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
        sa.UniqueConstraint("kind", "key", name=op.f("uq_jobs_kind_key")),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_jobs_after"), ["after"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_asked_by"), ["asked_by"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_key"), ["key"], unique=False)
        batch_op.create_index(batch_op.f("ix_jobs_kind_rank"), ["kind", "rank"], unique=False)

    op.create_table(
        "model_names",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("newest", sa.Integer(), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_model_names")),
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
        sa.Column("rollout", sa.String(length=16), server_default="at_once", nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("hash", name=op.f("pk_models")),
    )
    op.create_table(
        "news",
        sa.Column("id", types.BigKey, nullable=False),
        sa.Column("topic", sa.String(length=32), nullable=False),
        sa.Column("about", sa.String(length=600), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_news")),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "signatures",
        sa.Column("signature", sa.String(length=160), nullable=False),
        sa.Column("features", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("signature", name=op.f("pk_signatures")),
    )
    op.create_table(
        "socs",
        sa.Column("id", types.BigKey, nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("established_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_socs")),
        sa.UniqueConstraint("name", name=op.f("uq_socs_name")),
    )
    op.create_table(
        "usage",
        sa.Column("owner", sa.String(length=160), nullable=False),
        sa.Column("quota", sa.String(length=32), nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "quota", "day", name=op.f("pk_usage")),
    )
    op.create_table(
        "workers",
        sa.Column("owner", sa.String(length=128), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("started_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("looked_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("owner", name=op.f("pk_workers")),
    )
    op.create_table(
        "devices",
        sa.Column("id", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=True),
        sa.Column("labels", types.JsonDocument, nullable=True),
        sa.Column("soc", sa.String(length=128), nullable=True),
        sa.Column("soc_since", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("frequency", sa.String(length=128), nullable=True),
        sa.Column("versions", types.JsonDocument, nullable=True),
        sa.Column("claim_id", types.BigKey, nullable=True),
        sa.Column("revoked_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("clock_skew_s", sa.Float(precision=53), nullable=True),
        sa.Column("enrolled_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("last_seen_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["claim_id"], ["claims.id"], name=op.f("fk_devices_claim_id_claims"), ondelete="SET NULL"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_devices")),
    )
    with op.batch_alter_table("devices", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_devices_soc"), ["soc"], unique=False)

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
        "model_versions",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("model_hash", sa.String(length=64), nullable=False),
        sa.Column("labels", types.JsonDocument, nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["model_hash"], ["models.hash"], name=op.f("fk_model_versions_model_hash_models"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(
            ["name"], ["model_names.name"], name=op.f("fk_model_versions_name_model_names"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("name", "version", name=op.f("pk_model_versions")),
    )
    with op.batch_alter_table("model_versions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_model_versions_model_hash"), ["model_hash"], unique=False)

    op.create_table(
        "plans",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("model_hash", sa.String(length=64), nullable=False),
        sa.Column("jobs", types.JsonDocument, nullable=False),
        sa.Column("soc", sa.String(length=128), nullable=False),
        sa.Column("frequency", sa.String(length=128), nullable=False),
        sa.Column("processors", types.JsonDocument, nullable=True),
        sa.Column("hosts", types.JsonDocument, nullable=False),
        sa.Column("links", types.JsonDocument, nullable=False),
        sa.Column("method", sa.String(length=32), nullable=False),
        sa.Column("objective", sa.String(length=32), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("served_version", sa.Integer(), nullable=True),
        sa.Column("refused_version", sa.Integer(), nullable=True),
        sa.Column("release_id", sa.String(length=64), nullable=True),
        sa.Column("provisional", sa.Boolean(), nullable=False),
        sa.Column("hits", sa.BigInteger(), nullable=False),
        sa.Column("misses", sa.BigInteger(), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("solved_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("solves", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("retry_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("figures_zstd", sa.LargeBinary(), nullable=True),
        sa.ForeignKeyConstraint(
            ["model_hash"], ["models.hash"], name=op.f("fk_plans_model_hash_models"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plans")),
    )
    with op.batch_alter_table("plans", schema=None) as batch_op:
        batch_op.create_index(
            batch_op.f("ix_plans_model_hash_soc_frequency"), ["model_hash", "soc", "frequency"], unique=False
        )
        batch_op.create_index(batch_op.f("ix_plans_release_id"), ["release_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_plans_soc_frequency"), ["soc", "frequency"], unique=False)

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
        sa.Column("left", sa.Integer(), nullable=False),
        sa.Column("staged", types.JsonDocument, nullable=False),
        sa.Column("claims", types.JsonDocument, nullable=False),
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
        "assignments",
        sa.Column("profile_id", types.BigKey, nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("figures", sa.LargeBinary(), nullable=False),
        sa.Column("undelivered", sa.Integer(), nullable=False),
        sa.Column("expires_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["profile_id"], ["profiles.id"], name=op.f("fk_assignments_profile_id_profiles"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("profile_id", "device_id", name=op.f("pk_assignments")),
    )
    with op.batch_alter_table("assignments", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_assignments_expires_at"), ["expires_at"], unique=False)

    op.create_table(
        "contributions",
        sa.Column("profile_id", types.BigKey, nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("uploads", sa.BigInteger(), nullable=False),
        sa.Column("unused", sa.Text(), nullable=True),
        sa.Column("taken_back_at", types.UtcDateTime(timezone=True), nullable=True),
        sa.Column("since", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("last_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["profile_id"], ["profiles.id"], name=op.f("fk_contributions_profile_id_profiles"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("profile_id", "device_id", name=op.f("pk_contributions")),
    )
    with op.batch_alter_table("contributions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_contributions_device_id"), ["device_id"], unique=False)
        batch_op.create_index(
            "ix_contributions_taken_back",
            ["profile_id"],
            unique=False,
            sqlite_where=sa.text("taken_back_at IS NOT NULL"),
            postgresql_where=sa.text("taken_back_at IS NOT NULL"),
        )

    op.create_table(
        "drift_reports",
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("plan_id", sa.String(length=64), nullable=False),
        sa.Column("plan_version", sa.Integer(), nullable=False),
        sa.Column("predicted_us", sa.Float(precision=53), nullable=False),
        sa.Column("measured_us", sa.Float(precision=53), nullable=True),
        sa.Column("p99_us", sa.Float(precision=53), nullable=True),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("wrong", sa.Integer(), server_default="0", nullable=False),
        sa.Column("deadlines", sa.Integer(), server_default="0", nullable=False),
        sa.Column("missed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("reported_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["plan_id"], ["plans.id"], name=op.f("fk_drift_reports_plan_id_plans"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("device_id", "plan_id", name=op.f("pk_drift_reports")),
    )
    with op.batch_alter_table("drift_reports", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_drift_reports_plan_id"), ["plan_id"], unique=False)

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

    op.create_table(
        "model_aliases",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("alias", sa.String(length=100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("release_id", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(
            ["name", "version"],
            ["model_versions.name", "model_versions.version"],
            name=op.f("fk_model_aliases_name_model_versions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("name", "alias", name=op.f("pk_model_aliases")),
    )
    op.create_table(
        "plan_jobs",
        sa.Column("plan_id", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("model_hash", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["model_hash"], ["models.hash"], name=op.f("fk_plan_jobs_model_hash_models"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["plan_id"], ["plans.id"], name=op.f("fk_plan_jobs_plan_id_plans"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("plan_id", "position", name=op.f("pk_plan_jobs")),
    )
    with op.batch_alter_table("plan_jobs", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_plan_jobs_model_hash"), ["model_hash"], unique=False)

    op.create_table(
        "plan_rests_on",
        sa.Column("plan_id", sa.String(length=64), nullable=False),
        sa.Column("soc", sa.String(length=128), nullable=False),
        sa.Column("frequency", sa.String(length=128), nullable=False),
        sa.Column("profile_version", sa.Integer(), nullable=True),
        sa.Column("checked_version", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(
            ["plan_id"], ["plans.id"], name=op.f("fk_plan_rests_on_plan_id_plans"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("plan_id", "soc", "frequency", name=op.f("pk_plan_rests_on")),
    )
    with op.batch_alter_table("plan_rests_on", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_plan_rests_on_soc_frequency"), ["soc", "frequency"], unique=False)

    op.create_table(
        "plan_versions",
        sa.Column("plan_id", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("provisional", sa.Boolean(), nullable=False),
        sa.Column("etag", sa.String(length=80), nullable=False),
        sa.Column("body_zstd", sa.LargeBinary(), nullable=False),
        sa.Column("profile_version", sa.Integer(), nullable=False),
        sa.Column("makespan_us", sa.Float(precision=53), nullable=False),
        sa.Column("lower_bound_us", sa.Float(precision=53), nullable=False),
        sa.Column("gap", sa.Float(precision=53), nullable=False),
        sa.Column("found_by", sa.String(length=128), nullable=False),
        sa.Column("solve_us", sa.Float(precision=53), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("reports", sa.BigInteger(), nullable=False),
        sa.Column("timed", sa.BigInteger(), nullable=False),
        sa.Column("log_sum", sa.Float(precision=53), nullable=False),
        sa.Column("log_squares", sa.Float(precision=53), nullable=False),
        sa.Column("tails", sa.BigInteger(), nullable=False),
        sa.Column("tail_log_sum", sa.Float(precision=53), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("wrong", sa.BigInteger(), nullable=False),
        sa.Column("deadlines", sa.BigInteger(), nullable=False),
        sa.Column("missed", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["plan_id"], ["plans.id"], name=op.f("fk_plan_versions_plan_id_plans"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("plan_id", "version", name=op.f("pk_plan_versions")),
    )
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
        "release_claims",
        sa.Column("release_id", sa.String(length=64), nullable=False),
        sa.Column("part", sa.String(length=128), nullable=False),
        sa.Column("claim_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("reported", sa.Integer(), nullable=False),
        sa.Column("slower", sa.Integer(), nullable=False),
        sa.Column("faster", sa.Integer(), nullable=False),
        sa.Column("failing", sa.Integer(), nullable=False),
        sa.Column("mended", sa.Integer(), nullable=False),
        sa.Column("wrong", sa.Integer(), nullable=False),
        sa.Column("righted", sa.Integer(), nullable=False),
        sa.Column("missing", sa.Integer(), nullable=False),
        sa.Column("keeping", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["release_id"], ["releases.id"], name=op.f("fk_release_claims_release_id_releases"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("release_id", "part", "claim_id", name=op.f("pk_release_claims")),
    )
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
        sa.Column("missing", sa.Integer(), nullable=False),
        sa.Column("keeping", sa.Integer(), nullable=False),
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
        sa.CheckConstraint("scope IN ('device', 'admin', 'viewer')", name=op.f("ck_tokens_scope_known")),
        sa.ForeignKeyConstraint(
            ["device_id"], ["devices.id"], name=op.f("fk_tokens_device_id_devices"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tokens")),
        sa.UniqueConstraint("token_hash", name=op.f("uq_tokens_token_hash")),
    )
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_tokens_device_id"), ["device_id"], unique=False)

    op.create_table(
        "console_sessions",
        sa.Column("session_hash", sa.String(length=64), nullable=False),
        sa.Column("token_id", types.BigKey, nullable=True),
        sa.Column("person", sa.String(length=160), nullable=True),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("expires_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.CheckConstraint("(token_id IS NULL) != (person IS NULL)", name=op.f("ck_console_sessions_one_who")),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name=op.f("fk_console_sessions_token_id_tokens"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_hash", name=op.f("pk_console_sessions")),
    )
    with op.batch_alter_table("console_sessions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_console_sessions_expires_at"), ["expires_at"], unique=False)
        batch_op.create_index(batch_op.f("ix_console_sessions_token_id"), ["token_id"], unique=False)
    for statement in AUDIT[op.get_bind().dialect.name]:
        op.execute(sa.text(statement.replace(":", r"\:")))


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_is_kept CASCADE")
        op.execute("DROP FUNCTION audit_is_append_only CASCADE")
    op.drop_table("console_sessions")
    op.drop_table("tokens")
    op.drop_table("release_parts")
    op.drop_table("release_devices")
    op.drop_table("release_claims")
    op.drop_table("profile_versions")
    op.drop_table("plan_versions")
    op.drop_table("plan_rests_on")
    op.drop_table("plan_jobs")
    op.drop_table("model_aliases")
    op.drop_table("fanout_plans")
    op.drop_table("drift_reports")
    op.drop_table("contributions")
    op.drop_table("assignments")
    op.drop_table("releases")
    op.drop_table("profiles")
    op.drop_table("plans")
    op.drop_table("model_versions")
    op.drop_table("fanouts")
    op.drop_table("devices")
    op.drop_table("workers")
    op.drop_table("usage")
    op.drop_table("socs")
    op.drop_table("signatures")
    op.drop_table("news")
    op.drop_table("models")
    op.drop_table("model_names")
    op.drop_table("jobs")
    op.drop_table("inbox")
    op.drop_table("groups")
    op.drop_table("claims")
    op.drop_table("audit_retention")
    op.drop_table("audit_head")
    op.drop_table("audit")

"""Names, versions and aliases of models, names and groups of devices, every version of a plan, the audit log

Revision ID: 0005
Revises: 0004
"""

import sqlalchemy as sa
from alembic import op

from planner_api.db import types

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

APPEND_ONLY = {
    "sqlite": (
        "CREATE TRIGGER audit_append_only BEFORE UPDATE ON audit "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$",
        "CREATE TRIGGER audit_append_only BEFORE UPDATE ON audit FOR EACH ROW EXECUTE FUNCTION audit_is_append_only()",
    ),
}
"""Entries are added, and deleted once they are older than the retention setting; nobody changes one."""


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", types.BigKey, nullable=False),
        sa.Column("at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("actor", sa.String(length=160), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=256), nullable=False),
        sa.Column("detail", types.JsonDocument, nullable=False),
        sa.Column("request_id", sa.String(length=128), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_audit_actor_id"), ["actor", "id"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_at"), ["at"], unique=False)
        batch_op.create_index(batch_op.f("ix_audit_subject_id"), ["subject", "id"], unique=False)

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
        "model_names",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("newest", sa.Integer(), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_model_names")),
    )
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
        "model_aliases",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("alias", sa.String(length=100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["name", "version"],
            ["model_versions.name", "model_versions.version"],
            name=op.f("fk_model_aliases_name_model_versions"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("name", "alias", name=op.f("pk_model_aliases")),
    )
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
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.BigInteger(), nullable=False),
        sa.Column("wrong", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["plan_id"], ["plans.id"], name=op.f("fk_plan_versions_plan_id_plans"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("plan_id", "version", name=op.f("pk_plan_versions")),
    )
    op.add_column("devices", sa.Column("name", sa.String(length=200), nullable=True))
    op.add_column("devices", sa.Column("labels", types.JsonDocument, nullable=True))
    op.add_column("plans", sa.Column("served_version", sa.Integer(), nullable=True))
    # What is served today is the first version that is kept.
    op.execute(
        "INSERT INTO plan_versions (plan_id, version, provisional, etag, body_zstd, profile_version, makespan_us, "
        "lower_bound_us, gap, found_by, solve_us, created_at, "
        "reports, timed, log_sum, log_squares, runs, failures, wrong) "
        "SELECT id, version, provisional, etag, body_zstd, profile_version, makespan_us, "
        "lower_bound_us, gap, found_by, solve_us, solved_at, "
        "0, 0, 0, 0, 0, 0, 0 FROM plans WHERE body_zstd IS NOT NULL"
    )
    for statement in APPEND_ONLY[op.get_bind().dialect.name]:
        op.execute(statement)


def downgrade() -> None:
    op.drop_column("plans", "served_version")
    op.drop_column("devices", "labels")
    op.drop_column("devices", "name")
    op.drop_table("plan_versions")
    op.drop_table("model_aliases")
    with op.batch_alter_table("model_versions", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_model_versions_model_hash"))

    op.drop_table("model_versions")
    op.drop_table("model_names")
    op.drop_table("groups")
    with op.batch_alter_table("audit", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_audit_subject_id"))
        batch_op.drop_index(batch_op.f("ix_audit_at"))
        batch_op.drop_index(batch_op.f("ix_audit_actor_id"))

    op.drop_table("audit")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION audit_is_append_only")

"""Entries of the audit log are kept for as long as the retention setting says, whoever asks to delete them

Revision ID: 0011
Revises: 0010
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

REFUSED = "the audit log keeps its entries for HOPE_AUDIT_DAYS"
KEPT = {
    "sqlite": (
        "CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit "
        "WHEN OLD.at > strftime('%Y-%m-%d %H:%M:%f', 'now', '+1 hour', "
        "(SELECT '-' || coalesce(max(days), 1) || ' days' FROM audit_retention)) "
        f"BEGIN SELECT RAISE(ABORT, '{REFUSED}'); END",
        # REPLACE takes an entry away without a word to the trigger above.
        "CREATE TRIGGER audit_is_not_replaced BEFORE INSERT ON audit "
        "WHEN EXISTS (SELECT 1 FROM audit WHERE id = NEW.id) "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION audit_is_kept() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF OLD.at > now() + interval '1 hour' - make_interval(days => "
        "(SELECT coalesce(max(days), 1) FROM audit_retention)) "
        f"THEN RAISE EXCEPTION '{REFUSED}'; END IF; RETURN OLD; END $$",
        "CREATE TRIGGER audit_is_kept BEFORE DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_is_kept()",
        "CREATE TRIGGER audit_is_not_emptied BEFORE TRUNCATE ON audit EXECUTE FUNCTION audit_is_append_only()",
    ),
}
"""An hour less than the setting, for clocks that differ. Until a planner says its setting it is the shortest there is,
so that those of the revision before can delete what is old for them."""


def upgrade() -> None:
    """Upgrade schema."""
    op.create_table(
        "audit_retention",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("days", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit_retention")),
    )
    for statement in KEPT[op.get_bind().dialect.name]:
        op.execute(sa.text(statement.replace(":", r"\:")))


def downgrade() -> None:
    """Downgrade schema."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP TRIGGER audit_is_not_emptied ON audit")
        op.execute("DROP TRIGGER audit_is_kept ON audit")
        op.execute("DROP FUNCTION audit_is_kept")
    else:
        op.execute("DROP TRIGGER audit_is_not_replaced")
        op.execute("DROP TRIGGER audit_is_kept")
    op.drop_table("audit_retention")

"""The console: its sessions, and tokens that only look

Revision ID: 0007
Revises: 0006
"""

import sqlalchemy as sa
from alembic import op

from planner_api.db import types

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade schema."""
    _allow_scopes("'device', 'operator', 'viewer'")
    op.create_table(
        "console_sessions",
        sa.Column("session_hash", sa.String(length=64), nullable=False),
        sa.Column("token_id", types.BigKey, nullable=False),
        sa.Column("scope", sa.String(length=16), nullable=False),
        sa.Column("created_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("expires_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["token_id"], ["tokens.id"], name=op.f("fk_console_sessions_token_id_tokens"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("session_hash", name=op.f("pk_console_sessions")),
    )
    with op.batch_alter_table("console_sessions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_console_sessions_token_id"), ["token_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_console_sessions_expires_at"), ["expires_at"], unique=False)


def downgrade() -> None:
    """Downgrade schema."""
    op.drop_table("console_sessions")
    op.execute("DELETE FROM tokens WHERE scope = 'viewer'")
    _allow_scopes("'device', 'operator'")


def _allow_scopes(scopes: str) -> None:
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.drop_constraint(op.f("ck_tokens_scope_known"), type_="check")
        batch_op.create_check_constraint(op.f("ck_tokens_scope_known"), f"scope IN ({scopes})")

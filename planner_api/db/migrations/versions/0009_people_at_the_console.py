"""People whom a provider vouches for sign in to the console

Revision ID: 0009
Revises: 0008
"""

import sqlalchemy as sa
from alembic import op

from planner_api.db import types

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade schema."""
    with op.batch_alter_table("console_sessions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("person", sa.String(length=160), nullable=True))
        batch_op.alter_column("token_id", existing_type=types.BigKey, nullable=True)
        batch_op.create_check_constraint(op.f("ck_console_sessions_one_who"), "(token_id IS NULL) != (person IS NULL)")


def downgrade() -> None:
    """Downgrade schema."""
    op.execute("DELETE FROM console_sessions WHERE token_id IS NULL")
    with op.batch_alter_table("console_sessions", schema=None) as batch_op:
        batch_op.drop_constraint(op.f("ck_console_sessions_one_who"), type_="check")
        batch_op.alter_column("token_id", existing_type=types.BigKey, nullable=False)
        batch_op.drop_column("person")

"""When a plan that could not be made may be tried again

Revision ID: 2.0003
Revises: 2.0002
"""

import sqlalchemy as sa
from alembic import op

from planner_api.db import types

revision = "2.0003"
down_revision = "2.0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("plans", sa.Column("retry_at", types.UtcDateTime(), nullable=True))


def downgrade() -> None:
    op.drop_column("plans", "retry_at")

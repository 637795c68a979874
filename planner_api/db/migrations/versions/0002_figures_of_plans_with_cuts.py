"""The figures that a plan rests on where it cuts ops

Revision ID: 2.0002
Revises: 2.0001
"""

import sqlalchemy as sa
from alembic import op

revision = "2.0002"
down_revision = "2.0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("plans", sa.Column("figures_zstd", sa.LargeBinary(), nullable=True))


def downgrade() -> None:
    op.drop_column("plans", "figures_zstd")

"""What is known of an op by its signature, for predicting what nobody measured

Revision ID: 0006
Revises: 0005
"""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade schema. What is known of the ops of a model that is stored already comes when it is sent again."""
    op.create_table(
        "signatures",
        sa.Column("signature", sa.String(length=160), nullable=False),
        sa.Column("features", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("signature", name=op.f("pk_signatures")),
    )


def downgrade() -> None:
    """Downgrade schema."""
    op.drop_table("signatures")

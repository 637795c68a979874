"""Plans are found anew: their steps have no parts and their transfers no regions any more, their jobs have cuts

Revision ID: 0004
Revises: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

NO_BODY = (
    "UPDATE plans SET version = 0, provisional = TRUE, etag = NULL, body_zstd = NULL, body_gzip = NULL, "
    "profile_version = NULL, checked_version = NULL, makespan_us = NULL, lower_bound_us = NULL, gap = NULL, "
    "found_by = NULL, solve_us = NULL, solved_at = NULL, status = 'failed', queued_at = NULL, lease_owner = NULL, "
    "lease_until = NULL, error = 'made in another shape of plans; asking for it makes it anew'"
)


def upgrade() -> None:
    """Upgrade schema."""
    op.execute(sa.text(NO_BODY))


def downgrade() -> None:
    """Downgrade schema."""
    op.execute(sa.text(NO_BODY))

"""Devices are rewritten where they stand: no index on when they were last seen, and room in their pages

Revision ID: 0010
Revises: 0009
"""

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Upgrade schema."""
    op.drop_index("ix_devices_last_seen_at", table_name="devices")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE devices SET (fillfactor = 85)")


def downgrade() -> None:
    """Downgrade schema."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("ALTER TABLE devices RESET (fillfactor)")
    op.create_index("ix_devices_last_seen_at", "devices", ["last_seen_at"])

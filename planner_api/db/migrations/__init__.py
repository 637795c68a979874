"""The Alembic tree: one history for SQLite and PostgreSQL; run it with ``hope-planner migrate``."""

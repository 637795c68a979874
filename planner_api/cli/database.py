"""The commands that work on the planner's database itself: serve, worker, migrate, backup, restore, admin-token."""

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from hope_schema.wording import plural
from planner_api.cli.client import PLANNER_VARIABLE, CallError
from planner_api.cli.show import working
from planner_api.db import backup as backups
from planner_api.db.engine import Database, parse_url, shown
from planner_api.db.migrate import SchemaError, current_revision, upgrade
from planner_api.devices import service
from planner_api.devices.audit import local_actor
from planner_api.errors import DatabaseAwayError, UsageError
from planner_api.settings import Settings, is_loopback, mistyped

VARIABLE = "HOPE_DATABASE_URL"
Command = Callable[..., Any]


def on_database(*, makes: bool) -> Callable[[Command], Command]:
    """Give a command ``--database``, and the settings with what that says as its first argument.

    Args:
        makes: whether it may begin a new SQLite file.
    """

    def decorate(command: Command) -> Command:
        @click.option(
            "--database",
            metavar="URL",
            help=f"sqlite:///file.sqlite or postgresql://host/database (default: ${VARIABLE}, "
            "else sqlite:///hope-planner.sqlite)",
        )
        @wraps(command)
        def run(*, database: str | None, **given: Any) -> int:
            name = click.get_current_context().info_name
            named = database or os.environ.get(VARIABLE)
            if not named and os.environ.get(PLANNER_VARIABLE) and name != "serve":
                raise UsageError(
                    f"`hope-planner {name}` works on the planner's database, which {PLANNER_VARIABLE} does not reach: "
                    f"run it where the planner runs, with --database or {VARIABLE}"
                )
            settings = settings_of(database)
            url = parse_url(settings.database_url)
            if not makes and url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
                raise CallError(f"there is no database {shown(url)}: `hope-planner migrate` or `serve` makes one")
            with _told(shown(url)):
                return int(command(settings, **given) or 0)

        return run

    return decorate


def settings_of(database: str | None = None) -> Settings:
    """Return the settings of the environment, on the database that is named if one is.

    Never embedded, whatever the environment says: an embedded planner asks nobody for a token.

    Raises:
        UsageError: a setting that is not valid.
    """
    if (problem := mistyped(os.environ)) is not None:
        raise UsageError(problem)
    more: dict[str, Any] = {"database_url": database} if database else {}
    try:
        settings = Settings(**more, embedded=False)
        parse_url(settings.database_url)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise UsageError(f"setting HOPE_{'.'.join(map(str, first['loc'])).upper()}: {first['msg']}") from None
    return settings


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Say of what a database refuses which one it is, and what helps. Raises CallError."""
    try:
        yield
    except (SQLAlchemyError, DatabaseAwayError) as error:
        cause = " ".join(str(getattr(error, "reason", None) or getattr(error, "orig", None) or error).split())
        cure = "is it running, and is that its address?"
        if where.startswith("sqlite"):
            cure = "is that its file, may it be written, and has its disk room?"
        if re.search(r"no such table|relation .* does not exist", cause):
            cure = "a new one wants `hope-planner migrate` first"
        if getattr(error, "cure", None) is None:
            cause = f"{cause}; {cure}"
        raise CallError(f"the database {where} refuses: {cause}") from error
    except SchemaError as error:
        raise CallError(str(error)) from error


PORT = click.IntRange(0, 65535)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="address to listen on")
@click.option("--port", type=PORT, default=8000, show_default=True, help="port to listen on; 0 picks one")
@click.option("--tls-cert", type=click.Path(path_type=Path), metavar="FILE", help="answer https: certificate, in PEM")
@click.option("--tls-key", type=click.Path(path_type=Path), metavar="FILE", help="the certificate's key, in PEM")
@on_database(makes=True)
def serve(settings: Settings, host: str, port: int, tls_cert: Path | None, tls_key: Path | None) -> int:
    """Serve the planner over HTTP. On loopback it is open; on any other address every call needs a token."""
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together")
    if not is_loopback(host):
        settings = settings.model_copy(update={"tokens_required": True})
    from planner_api.cli import serve as serving  # seconds, which no other command waits for
    from planner_api.runtime import prepare

    prepare(settings.database_url)
    return serving.serve(settings, host, port, (tls_cert, tls_key) if tls_cert and tls_key else None)


@click.command()
@click.option("--slots", type=click.IntRange(1, 64), help="solves at once (default: $HOPE_WORKER_SLOTS, else 1)")
@click.option("--probe-port", type=PORT, help="also answer /healthz, /readyz and /metrics on this port")
@click.option("--probe-host", default="127.0.0.1", show_default=True, help="address of the probes")
@on_database(makes=True)
def worker(settings: Settings, slots: int | None, probe_port: int | None, probe_host: str) -> int:
    """Solve what is queued, until SIGTERM or Ctrl-C. What runs then is finished or handed back."""
    from planner_api.cli.worker import work  # seconds, which no other command waits for

    if slots is not None:
        settings = settings.model_copy(update={"worker_slots": slots})
    return work(settings, probe_host=probe_host, probe_port=probe_port)


@click.command()
@on_database(makes=True)
def migrate(settings: Settings) -> None:
    """Bring the database to the newest schema.

    Doing it again changes nothing.
    """
    url = settings.database_url
    with working("migrating"):
        changed = upgrade(url)
    done = "migrated to" if changed else "already at"
    click.echo(f"{done} revision {current_revision(url)}: {shown(parse_url(url))}")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@on_database(makes=False)
def backup(settings: Settings, file: Path) -> None:
    """Write every row into a FILE, while served. It holds JSON lines under gzip, as of one moment."""
    url = settings.database_url
    with working(f"writing {file}"):
        rows = backups.write(url, file)
    click.echo(f"{plural(rows, 'row')} of {shown(parse_url(url))} written to {file}")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@on_database(makes=True)
def restore(settings: Settings, file: Path) -> None:
    """Fill an empty database from a FILE of `backup`.

    Either may be SQLite or PostgreSQL.
    """
    url = settings.database_url
    with working(f"reading {file}"):
        rows = backups.read(url, file, local_actor().name)
    click.echo(f"{plural(rows, 'row')} of {file} restored into {shown(parse_url(url))}")


@click.command("admin-token")
@click.option("--label", default="", help="a note to know it by")
@on_database(makes=False)
def admin_token(settings: Settings, label: str) -> None:
    """Make the first admin's token, or one where all are lost. `tokens create` makes others over HTTP."""
    if len(label) > 128 or not label.isprintable():
        raise UsageError("--label may have 128 printable characters")
    current_revision(settings.database_url)  # an earlier planner's is refused as such
    click.echo(f"hope-planner: a token of {shown(parse_url(settings.database_url))}", err=True)

    async def make() -> str:
        database = Database(settings.database_url)
        try:
            return (await service.issue(database, "admin", local_actor(), label=label)).token
        finally:
            await database.close()

    click.echo(asyncio.run(make()))


COMMANDS: dict[str, click.Command] = {
    found.name or "": found for found in (serve, worker, migrate, backup, restore, admin_token)
}

"""``hope-planner``: serve the planner, solve for it, keep its database, hand out tokens, move profiles, operate."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from planner_api.cli.commands import add_calls
from planner_api.cli.commands import add_commands as add_admin_commands
from planner_api.cli.profiles import add_commands as add_profile_commands
from planner_api.cli.profiles import run as run_profiles
from planner_api.cli.tokens import add_commands as add_token_commands
from planner_api.cli.tokens import run as run_tokens
from planner_api.db.engine import DatabaseUrlError, parse_url, shown
from planner_api.db.migrate import SchemaError
from planner_api.errors import DatabaseAwayError, PlannerError, UsageError
from planner_api.settings import Settings, is_loopback, mistyped

EXAMPLES = """examples:
  hope-planner serve                                      a planner on this machine, on a SQLite file
  hope-planner migrate --database postgresql://db/hope    bring a PostgreSQL database to the newest schema
  hope-planner worker --database postgresql://db/hope     solve for the planners on that database
  hope-planner tokens create --claim                      a token that devices enrol with
  hope-planner serve --host 0.0.0.0 --database postgresql://db/hope    for a fleet: every call needs a token
  hope-planner serve --host 0.0.0.0 --tls-cert chain.pem --tls-key key.pem    the same over https
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return 0 when it worked, 2 for bad input, 1 when it failed, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # nobody reads any more, nor what Python flushes at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (SQLAlchemyError, DatabaseAwayError) as error:
        where = shown(parse_url(settings_of(options).database_url))
        cause = _one_line(getattr(error, "reason", None) or getattr(error, "orig", None) or error)
        cure = "is it running, and is that its address?"
        if re.search(r"no such table|relation .* does not exist", cause):
            cure = "a new one wants `hope-planner migrate` first"
        print(f"hope-planner: the database {where} refuses: {cause}; {cure}", file=sys.stderr)
        return 1
    except (UsageError, DatabaseUrlError, PlannerError) as error:
        print(f"hope-planner: {_one_line(error)}", file=sys.stderr)
        return 2
    except (OSError, SchemaError) as error:
        print(f"hope-planner: {_one_line(error)}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hope-planner",
        description="Plans how neural networks run across the processors of a fleet's devices.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    serve = commands.add_parser("serve", help="serve the planner over HTTP", description=_serve.__doc__)
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    serve.add_argument("--port", type=int, default=8000, help="port to listen on; 0 picks one (default: %(default)s)")
    serve.add_argument("--tls-cert", type=Path, metavar="FILE", help="answer https: certificate and chain, in PEM")
    serve.add_argument("--tls-key", type=Path, metavar="FILE", help="the certificate's key, in PEM")
    _database_option(serve)
    serve.set_defaults(run=_serve)

    migrate = commands.add_parser(
        "migrate", help="bring the database to the newest schema", description=_migrate.__doc__
    )
    _database_option(migrate)
    migrate.add_argument("--revision", default="head", help="revision to upgrade to (default: the newest)")
    migrate.set_defaults(run=_migrate)

    for name, words in (("backup", "write everything into one file"), ("restore", "fill an empty database from one")):
        command = commands.add_parser(
            name, help=words, description=f"{words.capitalize()}, on either kind of database."
        )
        command.add_argument("file", type=Path, help="lines of JSON under gzip")
        _database_option(command)
        command.set_defaults(run=_backup if name == "backup" else _restore)

    worker = commands.add_parser(
        "worker", help="solve what is queued, as a process of its own", description=_worker.__doc__
    )
    worker.add_argument("--slots", type=int, help="solves at once (default: $HOPE_WORKER_SLOTS, else 1)")
    worker.add_argument("--probe-port", type=int, help="also answer /healthz, /readyz and /metrics on this port")
    worker.add_argument("--probe-host", default="127.0.0.1", help="address of the probes (default: %(default)s)")
    _database_option(worker)
    worker.set_defaults(run=_worker)

    tokens = commands.add_parser("tokens", help="make, list and revoke tokens")
    add_token_commands(tokens, _database_option)
    tokens.set_defaults(run=lambda options: run_tokens(settings_of(options), options))

    profiles = commands.add_parser("profiles", help="list, export, import and correct profiles")
    add_calls(add_profile_commands(profiles, _database_option), "profiles")
    profiles.set_defaults(run=lambda options: run_profiles(settings_of(options), options))

    add_admin_commands(commands)

    return parser


def _database_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--database",
        metavar="URL",
        help="sqlite:///file.sqlite or postgresql://host/database (default: $HOPE_DATABASE_URL, "
        "else sqlite:///hope-planner.sqlite)",
    )


def settings_of(options: argparse.Namespace, **more: Any) -> Settings:
    """Return the settings of the environment with what the command line says on top.

    Never embedded, whatever the environment says: an embedded planner asks nobody for a token.

    Raises:
        UsageError: a setting that is not valid.
    """
    from pydantic import ValidationError

    if (problem := mistyped(os.environ)) is not None:
        raise UsageError(problem)
    if options.database:
        more["database_url"] = options.database
    try:
        settings = Settings(**more, embedded=False)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise UsageError(f"setting HOPE_{'.'.join(map(str, first['loc'])).upper()}: {first['msg']}") from None
    parse_url(settings.database_url)
    return settings


def _serve(options: argparse.Namespace) -> int:
    """Serve the planner. On loopback it is open; on any other address every call needs a token."""
    _check_port(options.port)
    if (options.tls_cert is None) != (options.tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together")
    settings = settings_of(options)
    if not is_loopback(options.host):
        settings = settings.model_copy(update={"tokens_required": True})
    if settings.oidc_issuer is not None and find_spec("joserfc") is None:
        raise UsageError("HOPE_OIDC_ISSUER takes more than is installed: pip install 'hope-inference[oidc]'")
    from planner_api.cli.serve import Tls, serve
    from planner_api.runtime import prepare

    prepare(settings.database_url)
    tls = Tls(options.tls_cert, options.tls_key) if options.tls_cert else None
    return serve(settings, options.host, options.port, tls)


def _migrate(options: argparse.Namespace) -> int:
    """Bring the database to the newest schema; doing it again changes nothing."""
    settings = settings_of(options)
    from alembic.util import CommandError

    from planner_api.db.migrate import current_revision, upgrade

    try:
        changed = upgrade(settings.database_url, options.revision)
        revision = current_revision(settings.database_url)
    except CommandError as error:
        raise UsageError(_one_line(error)) from None
    print(
        f"{'migrated to' if changed else 'already at'} revision {revision}: {shown(parse_url(settings.database_url))}"
    )
    return 0


def _backup(options: argparse.Namespace) -> int:
    """Write every row into one file, as the database stands at one moment, while it is served."""
    from planner_api.db import backup

    url = settings_of(options).database_url
    print(f"{backup.write(url, options.file)} rows of {shown(parse_url(url))} written to {options.file}")
    return 0


def _restore(options: argparse.Namespace) -> int:
    """Fill an empty database from a file that ``backup`` wrote."""
    from planner_api.db import backup
    from planner_api.devices.audit.service import local_actor

    url = settings_of(options).database_url
    rows = backup.read(url, options.file, local_actor().name)
    print(f"{rows} rows of {options.file} restored into {shown(parse_url(url))}")
    return 0


def _worker(options: argparse.Namespace) -> int:
    """Solve what is queued until SIGTERM or Ctrl-C, then finish or hand back what runs."""
    if options.probe_port is not None:
        _check_port(options.probe_port)
    more = {} if options.slots is None else {"worker_slots": options.slots}
    settings = settings_of(options, **more)
    from planner_api.cli.worker import work

    return work(settings, probe_host=options.probe_host, probe_port=options.probe_port)


def _check_port(port: int) -> None:
    if not 0 <= port <= 65535:
        raise UsageError(f"port {port} is not between 0 and 65535")


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__

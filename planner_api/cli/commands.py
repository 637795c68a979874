"""``hope-planner``: calls on a running planner, and the few commands that work on its database."""

import importlib
import os
import sys
from collections.abc import Sequence

import click

from planner_api.cli.asking import groups
from planner_api.cli.client import CallError
from planner_api.cli.importing import import_profile
from planner_api.errors import PlannerError, UsageError

OK, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
EPILOG = """\b
examples:
  hope-planner serve                                      a planner on this machine, on a SQLite file
  hope-planner fleet show                                 how it does; every command but the six above asks over HTTP
  hope-planner fleet show --planner https://planner.example --token $ADMIN
  hope-planner migrate --database postgresql://db/hope    bring a PostgreSQL database to the newest schema
  hope-planner admin-token --database postgresql://db/hope
  hope-planner serve --host 0.0.0.0 --database postgresql://db/hope    for a fleet: every call needs a token
  hope-planner worker --database postgresql://db/hope     solve for the planners on that database

\b
environment:
  HOPE_PLANNER_URL   the planner that is asked (default: http://127.0.0.1:8000)
  HOPE_ADMIN_TOKEN   as whom: an admin's token, or a viewer's
  HOPE_DATABASE_URL  the database of serve, worker, migrate, backup, restore and admin-token

\b
exit codes:
  0    done
  1    the planner or its database refused or is away, or a watched release was taken back
  2    bad input
  130  Ctrl-C
"""
ON_DATABASE = ("serve", "worker", "migrate", "backup", "restore", "admin-token")


class Commands(click.Group):
    """Those on the database, whose imports take seconds, are loaded when they are asked for."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*ON_DATABASE, *super().list_commands(context)]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in ON_DATABASE:
            found: click.Command = importlib.import_module("planner_api.cli.database").COMMANDS[name]
            return found
        return super().get_command(context, name)


_versioned = click.version_option(
    package_name="hope-inference", message="hope-planner %(version)s", help="show it and exit"
)
hope_planner = _versioned(
    Commands(
        "hope-planner",
        groups({"profiles": [import_profile]}),
        help="Plan how neural networks run across the processors of a fleet's devices.",
        epilog=EPILOG,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    )
)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        given = None if arguments is None else list(arguments)
        status = int(hope_planner.main(given, prog_name="hope-planner", standalone_mode=False) or OK)
        print(end="", flush=True)  # where there is no standard output either
        return status
    except click.ClickException as error:
        error.show()
        return BAD_INPUT
    except click.Abort:
        return INTERRUPTED
    except BrokenPipeError:  # nobody reads any more, nor what Python flushes at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (UsageError, PlannerError) as error:
        return _complain(error, BAD_INPUT)
    except (OSError, CallError) as error:
        return _complain(error, FAILED)


def _complain(error: Exception, code: int) -> int:
    click.echo(f"hope-planner: {' '.join(str(error).split())[:500] or type(error).__name__}", err=True)
    return code

"""``hope-planner profiles``: take a profile out of one planner and into another."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from hope_schema import Observations, Profile
from planner_api.compression import unzstd
from planner_api.db.engine import Database
from planner_api.errors import DatabaseAwayError, PlannerError
from planner_api.http.body import Body
from planner_api.profiles.reading import head_of
from planner_api.profiles.service import Profiles
from planner_api.settings import Settings
from planner_api.usage import UsageError

EXAMPLES = """examples:
  hope-planner profiles export "$SOC" max > profile.json
  hope-planner profiles import profile.json --database postgresql://db/hope
"""
DEVICE = "operator"
"""In whose name an imported profile stands: one voice among those of the devices."""


def add_commands(parser: argparse.ArgumentParser, shared: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add ``export`` and ``import``; ``shared`` adds what every command has (``--database``)."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    export = commands.add_parser("export", help="print a profile as JSON, as GET /profiles/{soc}/{frequency} does")
    export.add_argument("soc")
    export.add_argument("frequency")
    export.set_defaults(act=_export)
    importing = commands.add_parser("import", help="take in the figures of an exported profile")
    importing.add_argument("file", type=Path)
    importing.set_defaults(act=_import)
    for command in (export, importing):
        shared(command)


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Run the chosen command on the database.

    Raises:
        UsageError: a file that is no profile, or a profile that is not there.
    """

    async def main() -> None:
        database = Database(settings.database_url)
        try:
            await options.act(Profiles(database, settings), options)
        finally:
            await database.close()

    try:
        asyncio.run(main())
    except DatabaseAwayError as error:
        print(f"hope-planner: {error.reason}; was the database migrated? hope-planner migrate", file=sys.stderr)
        return 1
    except PlannerError as error:
        raise UsageError(error.detail) from None
    return 0


async def _export(profiles: Profiles, options: argparse.Namespace) -> None:
    print(unzstd(await profiles.read(options.soc, options.frequency)).decode())


async def _import(profiles: Profiles, options: argparse.Namespace) -> None:
    text = options.file.read_bytes()
    try:
        profile = Profile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{options.file} is not a profile: {where}: {first['msg']}") from None
    measured = {name: getattr(profile, name) for name in Profile.model_fields if name in Observations.model_fields}
    upload_id = f"import-{hashlib.sha256(text).hexdigest()[:32]}"
    upload = Observations(**measured, device_id=DEVICE, upload_id=upload_id)
    receipt = await profiles.accept(head_of(upload), Body(upload.model_dump_json().encode(), "identity"))
    await profiles.fold(profile.soc, profile.frequency)
    done = "known already" if receipt.duplicate else f"imported {receipt.rows} figures"
    print(f"{done}: SoC '{profile.soc}' at frequency '{profile.frequency}'")

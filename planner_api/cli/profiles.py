"""``hope-planner profiles``: move a profile between planners, see who said what, and take it back."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hope_schema import Observations, Profile
from planner_api.cli.local import on_database
from planner_api.compression import unzstd
from planner_api.db.engine import Database
from planner_api.devices.audit.service import local_actor
from planner_api.errors import UsageError
from planner_api.profiles.reading import head_of
from planner_api.profiles.service import Profiles
from planner_api.settings import Settings
from planner_api.web.body import Body

EXAMPLES = """examples:
  hope-planner profiles list                                 of a running planner, in --planner and --token
  hope-planner profiles export "$SOC" max > profile.json
  hope-planner profiles import profile.json --database postgresql://db/hope
  hope-planner profiles who "$SOC" max                       who had a part in it, and how much nobody else says
  hope-planner profiles forget "$SOC" max --device phone-7   take back what a device said
  hope-planner profiles rebuild "$SOC" max                   make it anew of what devices in good standing say
  hope-planner profiles establish "$SOC"                     plan ahead for it however few uploaded
"""
DEVICE = "admin"
"""In whose name an imported profile stands: one voice among those of the devices."""


def add_commands(parser: argparse.ArgumentParser, shared: Callable[[argparse.ArgumentParser], None]) -> Any:
    """Add every command on profiles, and return where more go; ``shared`` adds what each has (``--database``)."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, act, arguments, words in (
        ("export", _export, ("soc", "frequency"), "print a profile as JSON, as GET /profiles/{soc}/{frequency} does"),
        ("import", _import, ("file",), "take in the figures of an exported profile"),
        ("who", _who, ("soc", "frequency"), "list who had a part in a profile"),
        ("forget", _forget, ("soc", "frequency"), "take back what a device, or everybody, said in a profile"),
        ("rebuild", _rebuild, ("soc", "frequency"), "make a profile anew, without what revoked devices said"),
        ("establish", _establish, ("soc",), "vouch for a SoC, so that planning ahead counts it"),
    ):
        command = commands.add_parser(name, help=words)
        for argument in arguments:
            command.add_argument(argument)
        if act is _forget:
            command.add_argument("--device", help="this device alone")
        command.set_defaults(act=act)
        shared(command)
    return commands


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Run the chosen command on the database.

    Raises:
        UsageError: a file that is no profile, or a profile that is not there.
    """
    by_itself = options.act in (_export, _import)
    return on_database(
        settings, lambda database: options.act(Profiles(database, settings) if by_itself else database, options)
    )


async def _export(profiles: Profiles, options: argparse.Namespace) -> None:
    print(unzstd(await profiles.read(options.soc, options.frequency)).decode())


async def _import(profiles: Profiles, options: argparse.Namespace) -> None:
    try:
        text = Path(options.file).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {options.file}: {error.strerror}") from None
    try:
        profile = Profile.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        said = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise UsageError(f"{options.file} is not a profile: {said}") from None
    measured = {name: getattr(profile, name) for name in Profile.model_fields if name in Observations.model_fields}
    upload_id = f"import-{hashlib.sha256(text).hexdigest()[:32]}"
    upload = Observations(**measured, device_id=DEVICE, upload_id=upload_id)
    receipt = await profiles.accept(head_of(upload), Body(upload.model_dump_json().encode(), "identity"))
    await profiles.fold(profile.soc, profile.frequency)
    done = "known already" if receipt.duplicate else f"imported {receipt.rows} figures"
    print(f"{done}: SoC '{profile.soc}' at frequency '{profile.frequency}'")


async def _who(database: Database, options: argparse.Namespace) -> None:
    from planner_api.profiles import oversight

    print(f"{'figures':>8}  {'alone':>8}  {'uploads':>8}  device")
    after: str | None = ""
    while after is not None:
        page = await oversight.contributions(database, options.soc, options.frequency, after=after, limit=1000)
        for row in page.contributions:
            unused = f"  ({row.unused})" if row.unused else ""
            print(f"{row.figures:>8}  {row.alone:>8}  {row.uploads:>8}  {row.device_id}{unused}")
        after = page.next


async def _forget(database: Database, options: argparse.Namespace) -> None:
    from planner_api.profiles import oversight

    devices = None if options.device is None else [options.device]
    changed = await oversight.forget(database, options.soc, options.frequency, devices, actor=local_actor())
    print("forgotten; the profile has a new version" if changed else "forgotten; no figure changed")


async def _rebuild(database: Database, options: argparse.Namespace) -> None:
    from planner_api.profiles import oversight

    changed = await oversight.rebuild(database, options.soc, options.frequency, local_actor())
    print("made anew; the profile has a new version" if changed else "made anew; no figure changed")


async def _establish(database: Database, options: argparse.Namespace) -> None:
    from planner_api.profiles import oversight

    await oversight.establish(database, options.soc, local_actor())
    print(f"SoC '{options.soc}' counts")

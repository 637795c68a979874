"""``hope-planner tokens``: make, list and revoke the tokens of admins, devices and enrolments."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Literal

from planner_api.cli.local import on_database
from planner_api.db.engine import Database, parse_url, shown
from planner_api.db.tables import ClaimRow, TokenRow
from planner_api.devices import repository, service
from planner_api.devices.audit.service import local_actor
from planner_api.errors import UsageError
from planner_api.jobs.events import build_events
from planner_api.profiles import oversight
from planner_api.settings import Settings

EXAMPLES = """examples:
  hope-planner tokens create                                    an admin's token
  hope-planner tokens create --read-only                        one that may look at everything and change nothing
  hope-planner tokens create --claim --uses 1000 --expires 30d  a claim token for a batch of a thousand devices
  hope-planner tokens list
  hope-planner tokens revoke 7                                  the admin's or device's token number 7
  hope-planner tokens revoke --claim 2                          devices that enrolled with it keep their tokens
  hope-planner tokens revoke --device phone-0815                a device and all its tokens
"""

LISTED = 1000
"""Of each kind."""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Command = Callable[[Database], Awaitable[int | None]]


def add_commands(parser: argparse.ArgumentParser, shared: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add ``create``, ``list`` and ``revoke``; ``shared`` adds what every command has (``--database``)."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    create = commands.add_parser("create", help="make a token and print it, this once")
    create.add_argument("--claim", action="store_true", help="a claim token, which devices exchange for their own")
    create.add_argument("--read-only", action="store_true", help="a viewer's token, which changes nothing")
    create.add_argument("--uses", type=int, help="how many devices may enrol with the claim (default: any number)")
    create.add_argument("--expires", help="lifetime, e.g. 12h or 30d (default: none)")
    create.add_argument("--label", default="", help="a note to know it by")
    create.set_defaults(act=_create)
    listing = commands.add_parser("list", help="list tokens and claims; the secrets themselves are not kept")
    listing.set_defaults(act=_list)
    revoke = commands.add_parser("revoke", help="revoke a token, a claim or a device, everywhere at once")
    revoke.add_argument("id", nargs="?", type=int, help="the number that `tokens list` shows")
    revoke.add_argument("--claim", action="store_true", help="the number is a claim's")
    revoke.add_argument("--device", help="revoke this device and all its tokens, and take its figures back")
    revoke.set_defaults(act=_revoke)
    for command in (create, listing, revoke):
        shared(command)


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Run the chosen command on the database.

    Raises:
        UsageError: options that do not go together.
    """
    command: Command = options.act(options)
    print(f"hope-planner: tokens of {shown(parse_url(settings.database_url))}", file=sys.stderr)
    return on_database(settings, command)


def lifetime(text: str) -> timedelta:
    """Read ``90s``, ``15m``, ``12h`` or ``30d``. Raises UsageError otherwise."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if found is None or int(found[1]) == 0:
        raise UsageError(f"'{text}' is not a lifetime; write e.g. 12h or 30d")
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])


def _create(options: argparse.Namespace) -> Command:
    if options.claim and options.read_only:
        raise UsageError("--claim and --read-only are different kinds of token")
    if options.uses is not None and not options.claim:
        raise UsageError("--uses goes with --claim")
    if options.uses is not None and options.uses < 1:
        raise UsageError("--uses must be at least 1")
    if len(options.label) > 128:
        raise UsageError("--label may have 128 characters")
    expires_at = None if options.expires is None else datetime.now(UTC) + lifetime(options.expires)
    kind: Literal["admin", "viewer", "claim"] = "claim" if options.claim else "viewer" if options.read_only else "admin"

    async def command(database: Database) -> None:
        given = {"label": options.label, "uses": options.uses}
        print(await service.issue(database, kind, local_actor(), expires_at=expires_at, **given))

    return command


def _list(_options: argparse.Namespace) -> Command:
    async def command(database: Database) -> None:
        async with database.read() as session:
            lists = [
                map(_token_line, await repository.list_tokens(session, "admin", LISTED + 1)),
                map(_token_line, await repository.list_tokens(session, "viewer", LISTED + 1)),
                map(_claim_line, await repository.list_claims(session, LISTED + 1)),
                map(_token_line, await repository.list_tokens(session, "device", LISTED + 1)),
            ]
        print(f"{'id':>6}  {'kind':<8}  {'state':<8}  {'expires':<16}  whose")
        for lines in lists:
            for line in islice(lines, LISTED):
                print(line)
            if next(lines, None) is not None:
                print(f"  ... the newest {LISTED} of this kind; there are more")

    return command


def _token_line(token: TokenRow) -> str:
    state = _state(token.revoked_at, token.expires_at)
    whose = token.device_id or token.label
    return f"{token.id:>6}  {token.scope:<8}  {state:<8}  {_day(token.expires_at):<16}  {whose}"


def _claim_line(claim: ClaimRow) -> str:
    state = "spent" if claim.uses_left == 0 else _state(claim.revoked_at, claim.expires_at)
    left = "any number" if claim.uses_left is None else str(claim.uses_left)
    return f"{claim.id:>6}  {'claim':<8}  {state:<8}  {_day(claim.expires_at):<16}  {claim.label} (uses left: {left})"


def _revoke(options: argparse.Namespace) -> Command:
    if (options.id is None) == (options.device is None) or (options.claim and options.device is not None):
        raise UsageError("name one thing to revoke: a number, --claim and a number, or --device and its id")

    async def command(database: Database) -> int:
        events, actor = build_events(database), local_actor()
        if options.device is not None:
            forget = partial(oversight.forget_device, database)
            found = await service.revoke_device(database, events, options.device, actor, forget)
        elif options.claim:
            found = await service.revoke_claim(database, options.id, actor)
        else:
            found = await service.revoke_token(database, events, options.id, actor)
        print("revoked" if found else "nothing to revoke")
        return 0 if found else 1

    return command


def _state(revoked_at: datetime | None, expires_at: datetime | None) -> str:
    if revoked_at is not None:
        return "revoked"
    return "expired" if expires_at is not None and expires_at < datetime.now(UTC) else "valid"


def _day(moment: datetime | None) -> str:
    return "never" if moment is None else moment.strftime("%Y-%m-%d %H:%M")

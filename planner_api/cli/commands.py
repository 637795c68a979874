"""``hope-planner fleet|models|plans|profiles|...``: the admins' calls on a running planner."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from typing import Any

import httpx

from planner_api.cli.calls import CALLS, Call, Option
from planner_api.cli.client import RefusedError, ask, open_client
from planner_api.cli.show import fields, line, table

PLANNER = "http://127.0.0.1:8000"
WATCH_S = 2.0
HELP = {
    "fleet": (
        "how the fleet is doing",
        """
  HOPE_TOKEN=... HOPE_PLANNER=https://planner.example hope-planner fleet show
  hope-planner fleet models --json""",
    ),
    "models": (
        "models by name: versions, aliases, plans ahead",
        """
  hope-planner models add classifier $HASH             of `hope-planner fleet models`
  hope-planner models alias classifier production 4
  hope-planner models plan $HASH
  hope-planner models rollout $HASH held""",
    ),
    "plans": (
        "plans: list, versions, diff",
        """
  hope-planner plans list --status failed
  hope-planner plans versions $PLAN
  hope-planner plans diff $PLAN --before 3 --after 4 --json""",
    ),
    "releases": (
        "let new versions go out in stages; watch, pause, approve, roll back",
        """
  hope-planner releases begin classifier:4 --alias production --stages 0.01,0.1,1
  hope-planner releases watch $RELEASE                 of `hope-planner releases list`
  hope-planner releases rollback $RELEASE""",
    ),
    "devices": (
        "devices: list, describe, revoke",
        """
  hope-planner devices list --soc "$SOC"
  hope-planner devices describe $DEVICE --name "test bench" --labels channel=beta
  hope-planner devices revoke $DEVICE""",
    ),
    "groups": (
        "groups of devices, by SoC, label and share",
        """
  hope-planner groups set beta --labels channel=beta --share 0.1
  hope-planner groups show beta""",
    ),
    "audit": (
        "who did what",
        """
  hope-planner audit list --actor admin:1           the number is that of `hope-planner tokens list`
  hope-planner audit list --subject $RELEASE""",
    ),
}
"""What each group of calls is for, and examples."""


def add_commands(commands: Any) -> None:
    """Add every group of calls to the command line."""
    for group, (words, examples) in HELP.items():
        parser = commands.add_parser(
            group,
            help=words,
            epilog=f"examples:{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_calls(parser.add_subparsers(required=True, metavar="VERB"), group)


def add_calls(verbs: Any, group: str) -> None:
    """Add the calls of a group to its verbs."""
    for call in (call for call in CALLS if call.group == group):
        verb = verbs.add_parser(call.verb, help=call.help, description=f"{call.help[0].upper()}{call.help[1:]}.")
        for name in (*re.findall(r"\{(\w+)\}", call.path), *call.arguments):
            verb.add_argument(name, type=int if name == "version" else str, metavar=name.upper())
        for option in (*call.query, *call.body):
            _add_option(verb, option)
        verb.add_argument("--planner", metavar="URL", help=f"default: $HOPE_PLANNER, else {PLANNER}")
        verb.add_argument("--token", help="an admin's token (default: $HOPE_TOKEN)")
        verb.add_argument("--json", action="store_true", help="the answer as the API gives it")
        if call.cursor:
            verb.add_argument("--limit", type=int, default=1000, metavar="N", help="default: %(default)s")
        verb.set_defaults(run=run, call=call)


def run(options: argparse.Namespace) -> int:
    """Make the call and show its answer; 1 where it was refused.

    Raises:
        UsageError: no address, or no token.
    """
    call: Call = options.call
    given = vars(options)
    try:
        url = options.planner or os.environ.get("HOPE_PLANNER") or PLANNER
        with open_client(url, options.token or os.environ.get("HOPE_TOKEN") or None) as client:
            if call.until:
                return _watch(client, call, given)
            answer = ask(client, call, given, max(1, given.get("limit", 1)))
    except RefusedError as error:
        print(f"hope-planner: {error}", file=sys.stderr)
        return 1
    print(json.dumps(answer, indent=1) if options.json else _words(call, answer))
    return 0


def _watch(client: httpx.Client, call: Call, given: dict[str, Any]) -> int:
    """Print every change until it has ended; 0 where it went through."""
    last = ""
    while True:
        answer = ask(client, call, given, 1)
        said = json.dumps(answer) if given["json"] else line(answer, call.columns)
        if said != last:
            print(said, flush=True)
            last = said
        if answer["state"] in call.until:
            return 0 if answer["state"] == call.until[0] else 1
        time.sleep(WATCH_S)


def _words(call: Call, answer: Any) -> str:
    if not call.rows:
        return fields(answer, call.head) if answer else "done"
    rows = answer[call.rows]
    parts = [fields(answer, call.head)] if call.head else []
    parts.append(table(rows, call.columns) if rows else call.empty or f"no {call.rows}")
    if answer.get("next") is not None:
        parts.append("there are more: raise --limit")
    return "\n".join(parts)


def _add_option(verb: argparse.ArgumentParser, option: Option) -> None:
    flag = f"--{option.name.replace('_', '-')}"
    if option.read is bool:
        verb.add_argument(flag, dest=option.name, action="store_true", default=None, help=option.help)
    else:
        verb.add_argument(flag, dest=option.name, type=option.read, help=option.help)

"""The commands that are calls on a planner's API, made of the table in ``calls.py``."""

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click
import httpx

from planner_api.cli.calls import CALLS, Call
from planner_api.cli.client import PLANNER, PLANNER_VARIABLE, TOKEN_VARIABLE, ask, open_client
from planner_api.cli.show import fields, line, say, table, working

WATCH_S = 2.0
MOST = 1000
"""Entries that a list shows unless told otherwise."""
NUMBERS = frozenset({"version", "number"})
GROUPS = {
    "fleet": (
        "How the fleet is doing.",
        """
  hope-planner fleet show --planner https://planner.example
  hope-planner fleet models --json""",
    ),
    "models": (
        "Models by name: versions, aliases, plans ahead.",
        """
  hope-planner models add classifier $HASH             of `hope-planner fleet models`
  hope-planner models alias classifier production 4
  hope-planner models plan $HASH
  hope-planner models progress $FANOUT                 the fanout_id that `plan` showed
  hope-planner models rollout $HASH held""",
    ),
    "plans": (
        "Plans: list, versions, diff.",
        """
  hope-planner plans list --status failed
  hope-planner plans versions $PLAN
  hope-planner plans diff $PLAN --before 3 --after 4 --json""",
    ),
    "profiles": (
        "Profiles: list, export, import, correct.",
        """
  hope-planner profiles list
  hope-planner profiles export "$SOC" max > profile.json
  hope-planner profiles import profile.json            into the planner that --planner names
  hope-planner profiles who "$SOC" max                 who had a part in it, and how much nobody else says
  hope-planner profiles forget "$SOC" max --device phone-7
  hope-planner profiles establish "$SOC"               plan ahead for it however few uploaded""",
    ),
    "releases": (
        "New versions in stages: begin, watch, roll back.",
        """
  hope-planner releases begin classifier:4 --alias production --stages 0.01,0.1,1
  hope-planner releases watch $RELEASE                 of `hope-planner releases list`
  hope-planner releases rollback $RELEASE""",
    ),
    "devices": (
        "Devices: list, describe, revoke.",
        """
  hope-planner devices list --soc "$SOC"
  hope-planner devices describe $DEVICE --name "test bench" --labels channel=beta
  hope-planner devices revoke $DEVICE                  with all its tokens; its figures are taken back""",
    ),
    "groups": (
        "Groups of devices, by SoC, label and share.",
        """
  hope-planner groups set beta --labels channel=beta --share 0.1
  hope-planner groups show beta""",
    ),
    "tokens": (
        "Tokens of admins and viewers.",
        """
  hope-planner tokens create --expires 30d --label me
  hope-planner tokens create --read-only               may look at everything and change nothing
  hope-planner tokens list
  hope-planner tokens revoke 7                         the number that `list` shows""",
    ),
    "claims": (
        "Claims, which devices exchange for tokens of their own.",
        """
  hope-planner claims create --uses 1000 --expires 30d
  hope-planner claims list
  hope-planner claims revoke 2                         devices that enrolled with it keep their tokens""",
    ),
    "audit": (
        "Who did what.",
        """
  hope-planner audit list --actor admin:1              the number is that of `hope-planner tokens list`
  hope-planner audit list --subject $RELEASE""",
    ),
}
"""What each group of calls is for, and examples."""


def groups(more: Mapping[str, Sequence[click.Command]]) -> dict[str, click.Command]:
    made = {
        name: click.Group(name, help=words, epilog=f"\b\nexamples:{examples}")
        for name, (words, examples) in GROUPS.items()
    }
    for call in CALLS:
        made[call.group].add_command(_command(call))
    for name, commands in more.items():
        for command in commands:
            made[name].add_command(command)
    return {**made}


def at_a_planner(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that all calls share."""
    shared: dict[str, Any] = {"default": PLANNER, "show_default": True, "show_envvar": True}
    click.option("--json", "as_json", is_flag=True, help="one JSON object, as the API answers")(command)
    click.option("--token", envvar=TOKEN_VARIABLE, show_envvar=True, help="an admin's, or a viewer's to look")(command)
    click.option("--planner", metavar="URL", envvar=PLANNER_VARIABLE, **shared)(command)
    return command


def _command(call: Call) -> click.Command:
    def run(**given: Any) -> int:
        return _run(call, **given)

    if call.cursor:
        click.option(
            "--limit", type=click.IntRange(min=1), default=MOST, show_default=True, metavar="N", help="entries at most"
        )(run)
    at_a_planner(run)
    for option in reversed((*call.query, *call.body)):
        kind: Any = {"is_flag": True, "default": None} if option.read is bool else {"type": option.read}
        click.option(option.typed, option.name, help=option.help, **kind)(run)
    for name in reversed((*re.findall(r"\{(\w+)\}", call.path), *call.asked, *call.arguments)):
        kind = click.IntRange(min=1) if name in NUMBERS else click.STRING
        click.argument(name, type=kind, metavar=name.upper())(run)
    return click.command(call.verb, help=f"{call.help[0].upper()}{call.help[1:]}.")(run)


def _run(call: Call, *, planner: str, token: str | None, as_json: bool, limit: int = 1, **given: Any) -> int:
    """Make the call and show its answer. Raises RefusedError, UsageError."""
    with open_client(planner, token) as client:
        if call.watched:
            return _watch(client, call, given, as_json)
        with working(f"asking {planner}"):
            answer = ask(client, call, given, limit)
    if as_json or call.whole:
        click.echo(json.dumps(answer))
    elif call.only:
        click.echo(answer[call.only])
    else:
        _show(call, answer)
    return 0


def _watch(client: httpx.Client, call: Call, given: dict[str, Any], as_json: bool) -> int:
    """Print every change until it has ended; 0 where it went through."""
    last = ""
    while True:
        answer = ask(client, call, given)
        if (said := line(answer, call.columns)) != last:
            click.echo(said, err=as_json)
            last = said
        if (state := answer[call.watched]) in call.until:
            if as_json:
                click.echo(json.dumps(answer))
            return 0 if state == call.until[0] else 1
        time.sleep(WATCH_S)


def _show(call: Call, answer: dict[str, Any]) -> None:
    if not call.rows:
        say(fields(answer, call.head) if answer else "done")
        return
    if call.head:
        say(fields(answer, call.head))
    rows = answer[call.rows]
    say(table(rows, call.columns) if rows else call.empty or f"no {call.rows}")
    if answer.get("next") is not None:
        say("there are more: raise --limit")

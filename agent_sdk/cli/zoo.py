"""``hope-agent zoo``: networks to try."""

import dataclasses
import json
from pathlib import Path
from types import ModuleType
from typing import Final

import click
from click.shell_completion import CompletionItem
from rich.console import Console

from agent_sdk.cli.options import SEED, networks, write
from agent_sdk.cli.report import list_rows
from agent_sdk.errors import InputError

EXAMPLES: Final = """\b
examples:
  hope-agent zoo build squeezenet -o net.onnx
"""


def _names(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    return [item for item in networks(context, parameter, begun) if item.type == "plain"]


@click.group()
def zoo() -> None:
    """Networks to try."""


@zoo.command("list")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def list_networks(as_json: bool) -> int:
    """List the networks."""
    found = _zoo()
    described = [found.describe(name) for name in found.names()]
    if as_json:
        click.echo(json.dumps({"models": [dataclasses.asdict(network) for network in described]}))
        return 0
    rows = [
        (
            network.name,
            str(network.ops),
            f"{network.parameters / 1e6:.1f}",
            f"{network.megabytes:.0f}",
            ", ".join("x".join(map(str, shape)) for shape in network.inputs.values()),
            network.source,
        )
        for network in described
    ]
    columns = ("name", "ops", "million weights", "MB", "inputs", "source")
    Console().print(list_rows("networks of the zoo", columns, rows))
    return 0


@zoo.command("build", epilog=EXAMPLES)
@click.argument("name", shell_complete=_names)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="default: the cache directory")
@click.option("--seed", type=SEED, default=0, show_default=True, metavar="N", help="seed of the weights")
def build_network(name: str, output: Path | None, seed: int) -> int:
    """Write a network as an .onnx file."""
    found = _zoo()
    if output is None:
        click.echo(found.path(name, seed))
        return 0
    write("the network", output, found.build(name, seed).SerializeToString(deterministic=True))
    click.echo(output)
    return 0


def _zoo() -> ModuleType:
    try:
        import hope_zoo
    except ImportError as error:
        raise InputError("the zoo is not installed (in a checkout: pip install ./hope_zoo)") from error
    return hope_zoo

"""``hope-agent devices``: what this machine has, and what others lend it."""

import json
from pathlib import Path

import click
from rich.console import Console

from agent_sdk.cli.options import hosts
from agent_sdk.cli.report import list_rows, plain
from agent_sdk.journey.hosts import Hosts
from agent_sdk.machine.soc import read_soc
from agent_sdk.runtimes.offered import discover


@click.command()
@hosts
@click.option("--json", "as_json", is_flag=True, help="print one JSON object")
def devices(hosts: Path | None, as_json: bool) -> int:
    """List this machine's processors, and what hosts lend: how far they are, how fast, and what is lost on the way."""
    soc = read_soc()
    processors = [*discover(soc=soc), *Hosts.named(hosts, soc.cores).processors()]
    specs = [processor.spec for processor in processors]
    details = [processor.details for processor in processors]
    for processor in processors:
        processor.close()
    if as_json:
        rows = [
            spec.model_dump(mode="json") | {"kind": spec.kind, "details": text}
            for spec, text in zip(specs, details, strict=True)
        ]
        click.echo(json.dumps({"soc": soc.name, "frequency": soc.frequency, "processors": rows}))
        return 0
    console = Console()
    console.print(
        list_rows(
            f"{soc.name} at {soc.frequency}",
            ("processor", "runtime", "threads", "core class", "resources"),
            [(s.id, f"{s.runtime} {s.version}", str(s.threads), s.core_class, ", ".join(s.resources)) for s in specs],
        )
    )
    for text in dict.fromkeys(filter(None, details)):  # what several processors share, once
        console.print(plain(text), soft_wrap=not console.is_terminal)
    return 0

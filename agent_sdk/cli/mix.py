"""``hope-agent mix``: several networks at once, as often and until when a file or a line says."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from agent_sdk.agent import Agent
from agent_sdk.cli import mixing, options
from agent_sdk.cli.options import positive, refuse_unwritable, write
from agent_sdk.cli.terminal import TerminalProgress
from agent_sdk.progress import Progress
from agent_sdk.scheduling.jobs import NO_PARTS
from agent_sdk.scheduling.mixes import read_mix
from agent_sdk.scheduling.policies import DEFAULT, POLICIES

EXAMPLES: Final = """\b
examples:
  hope-agent mix squeezenet@30fps,resnet50@10fps       each run is due when the next one is
  hope-agent mix a.onnx@30fps,b.onnx                   b in a closed loop, beside a
  hope-agent mix mix.json --policies all --load 1.2    every policy in turn, with more to do than there is time
  hope-agent mix a@30fps,b@30fps --policies planned    by one plan of both, while they come together
"""


def listed(text: str) -> list[str]:
    """``LIST|all``: names of policies."""
    policy = click.Choice(tuple(POLICIES))
    return list(POLICIES) if text == "all" else [policy.convert(name, None, None) for name in text.split(",")]


@click.command(epilog=EXAMPLES)
@click.argument("mix", metavar="FILE.json|MODEL@30fps,MODEL@100ms,MODEL")
@click.option("--seconds", type=positive, metavar="S", help="time of each policy (default: the file's, or 20)")
@click.option(
    "--policies",
    type=listed,
    default=DEFAULT,
    show_default=True,
    metavar="LIST|all",
    help=f"of {', '.join(POLICIES)}",
)
@click.option(
    "--load", type=positive, metavar="X", help="scale all periods and deadlines until Σ latency alone ÷ period is X"
)
@options.processors
@options.planner
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="write a trace for ui.perfetto.dev")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object; progress goes to stderr")
@click.option("--quiet", is_flag=True, help="no progress")
def mix(
    mix: str,
    seconds: float | None,
    policies: list[str],
    load: float | None,
    processors: str | None,
    planner: str | None,
    trace: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Run several networks at once and say which deadlines are kept."""
    if trace is not None:
        refuse_unwritable("--trace", trace)
    asked = read_mix(mix, seconds)
    found = []
    with ExitStack() as closing:
        progress = closing.enter_context(TerminalProgress(Console(stderr=True, quiet=quiet)))
        agent = closing.enter_context(Agent(planner, processors=processors, progress=progress))
        ready = mixing.voices(agent, asked, closing)
        alone_ms = {name: voice.alone_ms for name, voice in ready.items()}
        asked = asked if load is None else asked.at_load(load, alone_ms)
        wanted = any(POLICIES[name].joint for name in policies)
        parts, note = mixing.planned(agent, asked, ready, closing) if wanted else (NO_PARTS, "")
        for name in policies:
            progress(Progress(f"playing {asked.seconds:g} s of {asked.name} under {name}"))
            found.append(mixing.played(agent, asked, ready, name, parts if POLICIES[name].joint else NO_PARTS))
        load = asked.load(alone_ms)
    if as_json:
        shown = {"mix": asked.model_dump(), "load": load, "policies": [one.as_json() for one in found], "note": note}
        click.echo(json.dumps(shown, allow_nan=False))
    else:
        console = Console()
        console.print(f"load {load:.2f}: Σ latency alone ÷ period", markup=False)
        if note:
            console.print(f"planned: {note}", markup=False)
        for one in found:
            mixing.show(one, console)
    if trace is not None:
        write("the trace", trace, mixing.trace(found))
    return 0

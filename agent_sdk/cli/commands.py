"""``hope-agent``: the main job from a terminal; every command in a file of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import get_completion_class

from agent_sdk.cli.devices import devices
from agent_sdk.cli.enrol import enrol
from agent_sdk.cli.explain import explain
from agent_sdk.cli.mix import mix
from agent_sdk.cli.plan import plan
from agent_sdk.cli.prepare import prepare
from agent_sdk.cli.run import run
from agent_sdk.cli.serve import serve
from agent_sdk.cli.zoo import zoo
from agent_sdk.errors import InputError, PlannerStatusError, RateLimitedError, ServerError, printable

OK: Final = 0
FAILED: Final = 1
BAD_INPUT: Final = 2
INTERRUPTED: Final = 130
EPILOG: Final = """\b
examples:
  hope-agent run inception_v1 --compare      measure, plan and run a network of the zoo, and judge the gain
  hope-agent run net.onnx                    your own network
  hope-agent explain net.onnx                every op: where it runs, how long it takes, and why
  hope-agent serve --models net.onnx         for other programs, over the Open Inference Protocol
  hope-agent mix a.onnx@30fps,b.onnx@10fps   several networks at once: which deadlines are kept
  hope-agent devices                         what this machine has
  hope-agent zoo list                        networks that can be named as MODEL
  eval "$(hope-agent completion bash)"       complete commands, options and networks in this shell

\b
exit codes:
  0    it ran, and the answer is right
  1    a wrong answer, a failed run, or a planner that cannot answer now
  2    bad input, or a planner's refusal
  130  Ctrl-C
"""


def _tell_version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if wanted:
        from hope_schema.version import VERSION  # late: the contract comes with it

        click.echo(f"hope-agent {VERSION}")
        context.exit()


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_tell_version, help="show it and exit"
)
def hope_agent() -> None:
    """Run a neural network across all processors of this device."""


@hope_agent.command()
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> int:
    """Print a script that completes commands, options and networks: eval "$(hope-agent completion bash)"."""
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(hope_agent, {}, "hope-agent", "_HOPE_AGENT_COMPLETE").source())
    return OK


for command in (run, explain, mix, serve, prepare, plan, devices, enrol, zoo):
    hope_agent.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    try:
        given = None if arguments is None else list(arguments)
        return int(hope_agent.main(given, prog_name="hope-agent", standalone_mode=False) or OK)
    except click.ClickException as error:
        error.show()
        return BAD_INPUT
    except click.Abort:
        click.echo("hope-agent: interrupted", err=True)
        return INTERRUPTED
    except (RateLimitedError, ServerError) as error:
        return _complain(error, FAILED)
    except (InputError, PlannerStatusError) as error:
        return _complain(error, BAD_INPUT)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) or os.environ.get("HOPE_DEBUG"):
            raise
        return _complain(error, FAILED)


def _complain(error: Exception, code: int) -> int:
    text = printable(str(error)) or type(error).__name__
    known = isinstance(error, InputError | PlannerStatusError) or type(error).__module__.startswith("agent_sdk")
    prefix = "" if known else f"unexpected {type(error).__name__} (set HOPE_DEBUG=1 for details): "
    click.echo(f"hope-agent: {prefix}{text}", err=True)
    return code

"""``hope-agent``: the main job from a terminal; every command in a file of its own."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from agent_sdk.errors import BadRequestError, InputError, printable

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
  1    a wrong answer, a failed run, or a planner that refuses or is away
  2    bad input
  130  Ctrl-C
"""


COMMANDS: Final = {
    "run": "Measure, plan, run and check one network.",
    "explain": "Say of every op where it runs, how long it takes, and why.",
    "mix": "Run several networks at once and say which deadlines are kept.",
    "serve": "Serve networks to other programs.",
    "prepare": "Measure and plan ahead, at one set of input shapes or several.",
    "plan": "Plans as files, for devices that measure and ask nothing.",
    "devices": "List this machine's processors.",
    "enrol": "Exchange a claim token for a token of this device's own.",
    "zoo": "Networks to try.",
    "completion": "Print a script that completes commands, options and networks.",
}
"""What help says of each command. Each is in the module of its name, which is loaded when the command is called: the
runtimes behind it take a second."""


class Commands(click.Group):
    """A group whose commands are loaded one by one."""

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Load one. Raises InputError where a package of the command line is not installed."""
        if name not in COMMANDS or name in self.commands:
            return super().get_command(context, name)
        try:
            found = getattr(import_module(f"agent_sdk.cli.{name}"), name)
        except ModuleNotFoundError as error:
            if os.environ.get("HOPE_DEBUG"):
                raise
            raise InputError(f"{error}; {name} needs its extra: pip install 'hope-inference[cli]'") from None
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, _context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, _context: click.Context, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]


@click.group(
    cls=Commands,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="hope-inference", message="hope-agent %(version)s", help="show it and exit")
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


def main(arguments: Sequence[str] | None = None) -> int:
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
    except (InputError, BadRequestError) as error:  # the planner finds some of it
        return _complain(error, BAD_INPUT)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) or os.environ.get("HOPE_DEBUG"):
            raise
        return _complain(error, FAILED)


def _complain(error: Exception, code: int) -> int:
    text = printable(str(error)) or type(error).__name__
    known = type(error).__module__.startswith("agent_sdk")
    prefix = "" if known else f"unexpected {type(error).__name__} (set HOPE_DEBUG=1 for details): "
    click.echo(f"hope-agent: {prefix}{text}", err=True)
    return code

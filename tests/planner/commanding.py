"""``hope-planner`` as a person types it: at a planner that listens, or to see whether words are a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click
import pytest
from structlog.testing import capture_logs

from planner_api.cli import commands as cli
from planner_api.cli.serve import build_config
from tests.planner.samples import Api
from tests.planner.wire import listening

Say = Callable[..., str]
"""Runs a command and returns what it printed, on stderr where it ends with another ``status`` than 0."""


@contextmanager
def commanding(api: Api, capsys: pytest.CaptureFixture[str], token: str = "") -> Iterator[Say]:
    """Let a planner listen, and yield what runs a command at it."""
    # What the planner logs would stand among what the command prints.
    with capture_logs(), listening(api, build_config(api.app, "127.0.0.1", 0)) as port:

        def say(*words: str, status: int = 0) -> str:
            capsys.readouterr()
            assert cli.main([*words, "--planner", f"http://127.0.0.1:{port}", "--token", token]) == status, words
            said = capsys.readouterr()
            return said.err if status else said.out

        yield say


def parsed(words: Sequence[str]) -> click.Context:
    """What the command line makes of words. Raises ClickException where they are no command."""
    command: click.Command = cli.hope_planner
    context, left = click.Context(command), list(words)
    while isinstance(command, click.Group):
        name, found, left = command.resolve_command(context, left)
        assert found is not None
        command, context = found, click.Context(found, context, name)
    return command.make_context(context.info_name, left, context.parent)

"""``hope-agent``: commands, reports and drawing."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

__all__ = ["console", "main"]


def console() -> NoReturn:
    """Run the command line as a program of its own, which ends when the command has.

    Taking the interpreter down after it, with every runtime and compiler in it, keeps a terminal waiting for seconds
    and frees what the system frees anyway; what has to be closed has been.
    """
    code = main()
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a caller may have closed them
        with suppress(OSError):  # nobody reads any more
            stream.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; where its extra is missing, say in one sentence which."""
    try:
        from agent_sdk.cli.commands import main as run

        return run(arguments)
    except ModuleNotFoundError as error:
        if os.environ.get("HOPE_DEBUG"):
            raise
        cure = "the command line needs its extra: pip install 'hope-inference[cli]'"
        print(f"hope-agent: {error}; {cure}", file=sys.stderr)
        return 1

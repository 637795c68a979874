"""How every benchmark's command line begins: its help is its module's docstring, bad input ends it with one line."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A command line."""

    def error(self, message: str) -> NoReturn:
        """Say in one line what is wrong, and exit with 2."""
        self.exit(2, f"{self.prog}: {message}\n")


def parser(name: str, doc: str | None) -> Parser:
    """The command line of ``python -m benchmarks.NAME``, without options yet."""
    return Parser(
        prog=f"python -m benchmarks.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def measuring(name: str, doc: str | None) -> Parser:
    """The command line of a benchmark whose results are kept: with ``--json``."""
    found = parser(name, doc)
    found.add_argument("--json", type=file, metavar="FILE", help="also write what was found here")
    return found


def file(text: str) -> Path:
    """A file to be written.

    Raises:
        ArgumentTypeError: there is no folder for it.
    """
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{path}: there is no folder to write this into")
    return path


def names(text: str) -> list[str]:
    """Names, separated by commas."""
    return [name for name in text.split(",") if name]

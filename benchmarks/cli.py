"""How every benchmark's command line begins: its module's docstring is its help, examples included."""

from __future__ import annotations

import argparse


def parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """The command line of ``python -m benchmarks.NAME``, without options yet."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )

"""``hope-agent``: commands, reports and drawing."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


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

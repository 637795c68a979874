"""``hope-agent``: commands, reports and drawing."""

from agent_sdk.cli.commands import main

__all__ = ["main"]

"""``python -m agent_sdk.cli`` is ``hope-agent``."""

from agent_sdk.cli import console

console()

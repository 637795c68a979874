"""What the agent is doing, for whoever wants to know; ``cli/terminal.py`` draws it."""

from __future__ import annotations


class ProgressListener:
    """Hears about phases and about what is done within one, and ignores it."""

    def phase(self, text: str, most_s: float | None = None) -> None:
        """A phase begins; it takes ``most_s`` seconds at the longest, where that is known."""

    def step(self, text: str) -> None:
        """Within the phase this is done now."""

"""What the agent is doing, for whoever wants to know; ``cli/terminal.py`` draws it."""

from __future__ import annotations

from typing import Protocol


class ProgressListener(Protocol):
    """Hears about phases and about what is done within one."""

    def phase(self, text: str, most_s: float | None = None) -> None:
        """A phase begins; it takes ``most_s`` seconds at the longest, where that is known."""

    def step(self, text: str) -> None:
        """Within the phase this is done now."""


class Silence:
    """Listens to nothing."""

    def phase(self, text: str, most_s: float | None = None) -> None:
        """Ignore it."""

    def step(self, text: str) -> None:
        """Ignore it."""

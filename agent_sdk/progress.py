"""What the agent is doing, for whoever wants to know; ``cli/terminal.py`` draws it."""

from __future__ import annotations

from typing import Protocol


class ProgressListener(Protocol):
    """Hears about phases and about steps within one."""

    def phase(self, text: str, total: int | None = None) -> None:
        """A phase begins; ``total`` steps if that is known."""

    def step(self, done: int, text: str = "") -> None:
        """``done`` steps of the phase are finished; ``text`` says what comes next."""


class Silence:
    """Listens to nothing."""

    def phase(self, text: str, total: int | None = None) -> None:
        """Ignore it."""

    def step(self, done: int, text: str = "") -> None:
        """Ignore it."""

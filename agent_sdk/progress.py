"""What the agent is doing, for whoever wants to know; ``cli/terminal.py`` draws it."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from agent_sdk.errors import printable

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """What is done now; ``str`` makes a sentence of it, as ``measuring, 12 of 55 s: launches``.

    Attributes:
        most_s: seconds that it takes at the longest, where that is known.
        began_s: when the phase began, on the clock of ``time.monotonic``.
    """

    phase: str
    most_s: float | None = None
    step: str = ""
    began_s: float = field(default_factory=time.monotonic)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_s

    def __str__(self) -> str:
        within = "" if (most_s := self.most_s) is None else f", {min(self.elapsed_s, most_s):.0f} of {most_s:.0f} s"
        return f"{self.phase}{within}{self.step and f': {printable(self.step)}'}"


Listener = Callable[[Progress], object]
"""Hears of every phase and step, on the thread that does it; what it raises is logged."""


class Reporter:
    """Tells listeners what is done.

    Args:
        name: the network that it is done for.

    Attributes:
        latest: what is done now; None where nothing is.
    """

    def __init__(self, *listeners: Listener, name: str = "") -> None:
        self.listeners: Final = listeners
        self._name = name
        self.latest: Progress | None = None

    def phase(self, text: str, most_s: float | None = None) -> None:
        """A phase begins; it takes ``most_s`` seconds at the longest, where that is known."""
        log.info("%s%s", f"{self._name}: " if self._name else "", text)
        self._tell(Progress(text, most_s))

    def step(self, text: str) -> None:
        if self.latest is not None:
            self._tell(replace(self.latest, step=text))

    def done(self) -> None:
        self.latest = None

    def _tell(self, progress: Progress) -> None:
        self.latest = progress
        for listener in self.listeners:
            try:
                listener(progress)
            except Exception:
                log.exception("a listener to progress failed")

"""A network as a runtime runs it by itself: any shapes, any types, nothing cut.

It answers where nothing can be planned, and until a plan is there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from agent_sdk.forking import Forks, keep, watch_forks
from agent_sdk.model import Port
from agent_sdk.runtimes.base import Package


class WholeNetwork(Forks):
    """A network loaded by one runtime. ``run`` may be called from any number of threads, and in a forked child.

    Attributes:
        runtime: who runs it.
        inputs: what has to be given.
        outputs: what is computed.
    """

    runtime: Package
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    def __init__(self) -> None:
        watch_forks(self)

    def in_child(self) -> None:
        """What is loaded stays, also once this is closed."""
        keep(dict(vars(self)))

    @abstractmethod
    def run(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the outputs. Raises InputError for a feed that does not fit, or ProcessorLost."""

    @abstractmethod
    def close(self) -> None:
        """Free it."""

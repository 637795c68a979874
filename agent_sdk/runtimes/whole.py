"""A network as a runtime runs it by itself: any shapes, any types, nothing cut.

It answers where nothing can be planned, and until a plan is there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from agent_sdk.model import Port
from agent_sdk.runtimes.base import Package


class WholeNetwork(ABC):
    """A network loaded by one runtime. ``run`` may be called from any number of threads.

    Attributes:
        runtime: who runs it.
        inputs: what has to be given.
        outputs: what is computed.
    """

    runtime: Package
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @abstractmethod
    def run(self, feed: Mapping[str, Any], outputs: Sequence[str] | None = None) -> dict[str, Any]:
        """Compute the named outputs, by default all.

        Raises InputError for a feed that does not fit, or ProcessorLost.
        """

    @abstractmethod
    def close(self) -> None:
        """Free it."""

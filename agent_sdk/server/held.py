"""Tensors that stand here between the requests of agents elsewhere, so that they need not cross the link again."""

import threading
from collections.abc import Iterable
from typing import Final

import numpy as np

from agent_sdk.errors import RefusedError, printable

MOST_HELD: Final = 16_384
"""Tensors that are held at once."""
MOST_NAME: Final = 128
"""Characters of a tensor's name."""


class Held:
    """Tensors by the names that their owners gave them; may be used from any number of threads.

    A tensor goes when its owner lets it go, or when the connection ends over which it came to be here. Names are what
    nobody guesses; whoever takes one that is there replaces the tensor.

    Args:
        memory: bytes that all of them may have.

    Attributes:
        size: bytes that they have.
    """

    def __init__(self, memory: int) -> None:
        self._memory, self.size = memory, 0
        self._tensors: dict[str, tuple[np.ndarray, object]] = {}
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        return len(self._tensors)

    def put(self, name: str, tensor: np.ndarray, owner: object) -> None:
        """Hold a tensor until ``owner``, a connection, ends. Raises RefusedError for texts, or without room."""
        if tensor.dtype.hasobject:
            raise RefusedError(400, "texts cannot stay here: nobody knows how much memory they take")
        with self._lock:
            before = self._tensors.get(name)
            size = self.size + tensor.nbytes - (before[0].nbytes if before else 0)
            if size > self._memory or (before is None and len(self._tensors) >= MOST_HELD):
                raise RefusedError(503, f"this host is full: {self.count} tensors of {self.size} bytes stand here")
            self._tensors[name], self.size = (tensor, owner), size

    def get(self, name: str) -> np.ndarray:
        """A tensor. Raises RefusedError where there is none of this name."""
        found = self._tensors.get(name)
        if found is None:
            raise RefusedError(409, f"no tensor stands here as '{printable(name)}'")
        return found[0]

    def drop(self, names: Iterable[str]) -> None:
        """Let some go. Those that are not here are gone already."""
        with self._lock:
            self._drop(names)

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            found = self._tensors.pop(name, None)
            self.size -= found[0].nbytes if found else 0

    def release(self, owner: object) -> None:
        with self._lock:
            self._drop([name for name, (_, own) in self._tensors.items() if own is owner])

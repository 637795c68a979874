"""What a process knows of the database without asking it, until it hears that something was changed."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from cachetools import LRUCache

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Remembered(Generic[Key, Value]):
    """Values by key, the newest used last out. Used from one event loop, so it takes no locks.

    Args:
        most: how many, or how large they are together.
        size: of a value; one each by default.

    Attributes:
        generation: how often something was forgotten. What was read from the database before may be the very thing that
            was changed, so ``put`` refuses it.
    """

    def __init__(self, most: int, size: Callable[[Value], int] | None = None) -> None:
        self._kept: LRUCache[Key, Value] = LRUCache(most, getsizeof=size)
        self.generation = 0

    def get(self, key: Key) -> Value | None:
        return self._kept.get(key)

    def put(self, key: Key, value: Value, generation: int) -> None:
        """Keep what was read when ``generation`` stood, unless it is larger than all may be."""
        if generation == self.generation and self._kept.getsizeof(value) <= self._kept.maxsize:
            self._kept[key] = value

    def forget(self, key: Key | None) -> None:
        """Drop a value; None drops them all (news may have been missed)."""
        self.generation += 1
        if key is None:
            self._kept.clear()
        else:
            self._kept.pop(key, None)

"""Long lists in parts, of which one statement takes one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

CHUNK = 500
"""Items per statement: SQLite bounds the parameters of one."""


def chunks(items: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    """The items in their order, at most ``size`` at once."""
    return (items[start : start + size] for start in range(0, len(items), size))

"""What is opened has an end: ``with`` closes it."""

from abc import ABC, abstractmethod
from typing import Self


class Closes(ABC):
    """Something that ``with`` closes at its end."""

    @abstractmethod
    def close(self) -> None:
        """Free everything. Idempotent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

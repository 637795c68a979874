"""Small messages by key, a file each in a directory: what one start leaves so that the next need not find it out.

A damaged file counts as absent. Where nothing can be written, the next start takes longer.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import ValidationError

from agent_sdk.files import read_whole, replace_whole
from hope_schema.base import Contract

Message = TypeVar("Message", bound=Contract)


class Records(Generic[Message]):
    """Messages of one kind; every write is atomic, and beyond ``most`` the one used longest ago goes."""

    def __init__(self, directory: Path, kind: type[Message], most: int) -> None:
        self._directory, self._kind, self._most = directory, kind, most

    def get(self, key: str) -> Message | None:
        """Return what is kept under ``key``, if that is whole."""
        path = self._path(key)
        try:
            found = self._kind.model_validate_json(read_whole(path))
        except (OSError, ValidationError):  # absent, or as good as absent
            return None
        with suppress(OSError):  # whoever may only read can use it all the same
            os.utime(path)
        return found

    def all(self) -> list[Message]:
        """Return everything that is kept; a damaged file is dropped."""
        found = []
        for path in sorted(self._directory.glob("*.json")):
            try:
                found.append(self._kind.model_validate_json(read_whole(path)))
            except ValidationError:
                self.drop(path.stem)
            except OSError:  # another process has just dropped it, or it may be read next time
                continue
        return found

    def keep(self, key: str, message: Message) -> bool:
        """Keep a message under ``key``; say whether the disk took it."""
        try:
            replace_whole(self._path(key), message.model_dump_json().encode())
        except OSError:  # full, or not ours to write: the next start takes longer
            return False
        with suppress(OSError):  # another process may be removing some at the same moment
            files = sorted(self._directory.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in files[: -self._most]:
                old.unlink(missing_ok=True)
        return True

    def drop(self, key: str) -> None:
        """Forget what is kept under ``key``, if anything."""
        with suppress(OSError):  # absent already, or it stays and is dropped next time
            self._path(key).unlink()

    def _path(self, key: str) -> Path:
        return self._directory / f"{key}.json"

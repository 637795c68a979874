"""Which device is this? A random id, made once and kept, and the tokens that planners gave it."""

import re
import tempfile
import uuid
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from agent_sdk.files import read_whole, replace_whole
from agent_sdk.runtimes.base import PACKAGES
from hope_schema.hashing import digest
from hope_schema.proof import address_of
from hope_schema.version import DISTRIBUTION, VERSION

TOKENS: Final = "tokens"


def device_id(directory: Path) -> str:
    """Return the id kept in ``directory``, making one on the first call; it says nothing about the owner.

    On a read-only disk every call returns a new id, which only costs the planner a little weighting accuracy.
    """
    path = directory / "device-id"
    with suppress(OSError, UnicodeError):  # none yet, or damaged
        text = read_whole(path).decode().strip()
        if re.fullmatch(r"device-[0-9a-f]{32}", text):
            return text
    made = f"device-{uuid.uuid4().hex}"
    with suppress(OSError):  # a read-only disk, see above
        replace_whole(path, made.encode())
    return made


def stored_token(directory: Path, planner: str) -> str | None:
    """Return the token kept for the planner at this address, if there is one and its file is whole."""
    return next(iter(_read_lines(_token_path(directory, planner))), None)


def kept_tokens(directory: Path) -> dict[str, str]:
    """Return every token kept, each with an address that it is kept for; empty where its file says none."""
    try:
        paths = sorted((directory / TOKENS).iterdir())
    except OSError:  # never enrolled
        return {}
    return {lines[0]: "".join(lines[1:2]) for path in paths if (lines := _read_lines(path))}


def prepare_tokens(directory: Path) -> None:
    """Make sure that a token can be kept. Raises OSError when it cannot."""
    folder = directory / TOKENS
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=folder):
        pass


def store_token(directory: Path, planner: str, token: str) -> Path:
    """Keep a planner's token where only this user can read it. Raises OSError when that cannot be done."""
    path = _token_path(directory, planner)
    replace_whole(path, f"{token}\n{_address(planner)}".encode())
    return path


def versions() -> dict[str, str]:
    """Return the versions of what is installed here and decides how long ops take."""
    found = {DISTRIBUTION: VERSION}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):  # then it decides nothing here
            found[name] = version(name)
    return found


def _read_lines(path: Path) -> list[str]:
    try:
        return read_whole(path).decode().split()
    except (OSError, UnicodeError):  # as good as none: the planner is asked without, or enrolled with again
        return []


def _token_path(directory: Path, planner: str) -> Path:
    return directory / TOKENS / digest(_address(planner))[:32]


def _address(planner: str) -> str:
    try:
        return address_of(planner)
    except ValueError:  # no address at all, which the client refuses; it may still name a file
        return planner.rstrip("/")

"""Files on disk: what is whole stays whole, what was left half written goes, what is somebody else's is not touched."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from agent_sdk.files import PART, STALE_S, replace_whole


def test_only_our_own_leavings_are_removed(tmp_path: Path) -> None:
    """In a folder of somebody's, files of theirs that end alike stay, however old; ours of a killed process go."""
    theirs = [tmp_path / name for name in ("film.part", "x.part", ".hope-notes", "hope-.part", ".part")]
    ours = tmp_path / f"{PART[0]}abc{PART[1]}"
    fresh = tmp_path / f"{PART[0]}now{PART[1]}"
    for path in (*theirs, ours, fresh):
        path.write_bytes(b"x")
    for path in (*theirs, ours):
        os.utime(path, (0, time.time() - 2 * STALE_S))
    replace_whole(tmp_path / "kept", b"whole")
    assert (tmp_path / "kept").read_bytes() == b"whole"
    assert all(path.exists() for path in theirs)
    assert not ours.exists()
    assert fresh.exists()


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old file is whole, and nothing half written stays beside it."""
    path = tmp_path / "kept"
    replace_whole(path, b"old")

    def fails(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="full"):
        replace_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]

"""Built networks on disk, so that each is built once per version of this code."""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path

import onnx

from agent_sdk.errors import ModelError
from agent_sdk.paths import zoo_directory
from hope_zoo.catalogue import build, source


def path(name: str, seed: int = 0) -> Path:
    """Return the network's file, building it first if need be.

    Any number of processes may build at once: each writes a file of its own and renames it into place whole. Files
    that an older version of this code left for the same network and seed are removed.
    Raises UnknownNameError, and ModelError when the cache cannot be written.
    """
    source(name)  # refuses an unknown name before it becomes part of a path
    target = zoo_directory() / f"{name}-{seed}-{_recipe()}.onnx"
    if target.is_file():
        return target
    data = build(name, seed).SerializeToString(deterministic=True)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{name}-", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        for outdated in set(target.parent.glob(f"{name}-{seed}-*.onnx")) - {target}:
            outdated.unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(f"the zoo network '{name}' cannot be written to '{target.parent}': {error}") from error
    return target


@cache
def _recipe() -> str:
    """Digest of the code that builds networks: a file built by other code is never taken for ours."""
    content = hashlib.sha256(onnx.__version__.encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        content.update(file.read_bytes())
    return content.hexdigest()[:8]

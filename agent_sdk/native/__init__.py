"""The small C library that runs lanes outside the interpreter: built on first use, kept in the cache, loaded by ctypes.

Where the cache cannot be used, or is somebody else's, each process builds its own in a temporary directory.
One build serves every version of Python. Where no compiler is, ``pip install hope-inference[compiler]`` brings one;
where none works the engine's Python loop runs the same programs, more slowly, and the log says so once.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import sys
from ctypes import c_int, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from agent_sdk.files import Kept, one_at_a_time
from agent_sdk.forking import TemporaryFolder
from agent_sdk.paths import cache_directory

LOOP_VARIABLE: Final = "HOPE_LANES"
"""Environment variable: ``python`` keeps lanes inside the interpreter."""
SOURCE: Final = Path(__file__).with_name("lanes.c")
FLAGS: Final = ("-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden")
COMPILERS: Final = ("cc", "gcc", "clang")
BUILD_S: Final = 120.0
"""A compiler that takes longer is given up; the first run of the one that pip brings may take a while."""

log = logging.getLogger(__name__)


class Unavailable(Exception):
    """Why there is no library."""


class Step(ctypes.Structure):
    """One step of a lane, as ``lanes.c`` has it."""

    _fields_ = (
        ("operation", c_int32),
        ("index", c_int32),
        ("a", c_int64),
        ("b", c_int64),
        ("function", c_void_p),
        ("arguments", c_void_p * 5),
    )


MASK_BYTES: Final = 128
"""Size of C's ``cpu_set_t``."""
STAMP, BIND, WAIT, LENT, CALL, CALL_POINTER, CALL_ONCE, CALL_AGAIN, DONE = range(9)
"""What a step does; see ``enum operation``."""

SIGNATURES: Final = {
    "hope_open": (c_void_p, (c_int,)),
    "hope_close": (None, (c_void_p,)),
    "hope_lane": (None, (c_void_p, c_int, c_void_p, c_int64, c_void_p, c_void_p, c_int)),
    "hope_begin": (None, (c_void_p, c_int)),
    "hope_alone": (c_int, (c_void_p, c_int, c_void_p)),
    "hope_drive": (None, (c_void_p, c_int, c_int)),
    "hope_finish": (None, (c_void_p, c_int)),
    "hope_stop": (None, (c_void_p,)),
    "hope_stopped": (c_int, (c_void_p,)),
    "hope_await": (c_int, (c_void_p, c_int, c_void_p, c_int64)),
    "hope_hand_out": (None, (c_void_p, c_int, c_void_p, c_void_p)),
    "hope_make_rest": (c_void_p, ()),
    "hope_free_rest": (None, (c_void_p,)),
    "hope_rest": (None, (c_void_p,)),
    "hope_call": (None, (c_void_p,)),
    "hope_done": (c_uint32, (c_void_p, c_int)),
    "hope_failure": (c_int, (c_void_p, c_int, c_void_p)),
    "hope_copy": (c_int, (c_void_p, c_void_p, c_size_t)),
    "hope_mark": (c_int, (c_void_p, c_size_t)),
    "hope_marked": (c_int, (c_void_p, c_size_t)),
    "hope_ort_api_base": (c_void_p, ()),
    "hope_ort_options": (c_void_p, ()),
}


def library() -> ctypes.CDLL | None:
    """The library, built if need be; None where the Python loop has to do."""
    return None if os.environ.get(LOOP_VARIABLE) == "python" else _loaded(cache_directory() / "native")


def address(function: Any) -> int:
    """Where a C function is. (``ctypes.cast`` would tie the function into a cycle of references.)"""
    return c_void_p.from_buffer(function).value or 0


@cache
def _loaded(folder: Path) -> ctypes.CDLL | None:
    kept = Kept(folder.parent)
    try:
        there = _library_in(folder)  # also where it can only be read, as in an image
        ours = there.exists() and {there.stat().st_uid, folder.stat().st_uid} <= {0, os.geteuid()}
        return _load(built(folder if ours else kept.folder(folder.name)))
    except (Unavailable, OSError) as error:
        log.warning("lanes run inside the Python interpreter, which makes plans with many segments slower: %s", error)
        return None
    finally:
        kept.close()  # a library that is loaded needs its file no more


def built(folder: Path) -> Path:
    """The compiled library in ``folder``; one that is there and loads is not built again. Raises Unavailable."""
    if sys.platform != "linux":
        raise Unavailable(f"the native lanes are for Linux, this is {sys.platform}")
    path = _library_in(folder)
    with one_at_a_time(path.with_suffix(".lock"), BUILD_S):  # what another process has loaded is never replaced
        if path.exists():
            try:
                _load(path)
            except (Unavailable, OSError) as error:
                log.info("%s does not load and is built again: %s", path, error)
            else:
                return path
        said = ["no C compiler was found; install one, or the 'compiler' extra"]
        for command in compilers():
            try:
                _compile(command, path)
            except (OSError, subprocess.SubprocessError) as error:
                detail = (getattr(error, "stderr", None) or "").strip().splitlines()
                said.append(f"{' '.join(command[:3])}: {detail[0] if detail else error}")
            else:
                return path
    raise Unavailable("; ".join(said[1:] or said))


def _library_in(folder: Path) -> Path:
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    return folder.absolute() / f"lanes-{digest}-{platform.machine()}-{platform.libc_ver()[0] or 'libc'}.so"


def compilers() -> list[list[str]]:
    """Commands to try: the system's compilers, then the one that pip brings."""
    found = [[path] for path in map(shutil.which, COMPILERS) if path]
    if find_spec("ziglang") is not None:
        libc = "gnu.2.17" if platform.libc_ver()[0] == "glibc" else "musl"
        found.append([sys.executable, "-m", "ziglang", "cc", "-target", f"{platform.machine()}-linux-{libc}"])
    return found


def _compile(command: list[str], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryFolder(directory=path.parent) as scratch:
        made = scratch / path.name
        subprocess.run(
            [*command, *FLAGS, "-o", str(made), str(SOURCE)],
            check=True,
            capture_output=True,
            text=True,
            timeout=BUILD_S,
            cwd=scratch,
        )
        made.replace(path)  # whole or not at all


def _load(path: Path) -> ctypes.CDLL:
    """Load the library. Raises OSError, or Unavailable where a function is missing."""
    found = ctypes.CDLL(str(path))
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(found, name, None)
        if function is None:
            raise Unavailable(f"{path} lacks {name}")
        function.restype, function.argtypes = result, arguments
    return found

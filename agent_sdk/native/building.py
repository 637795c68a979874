"""How the native lanes are built: once, when the package is installed; the build backend of ``pyproject.toml``.

A plain shared library, loaded by ctypes, so that one wheel serves every version of Python. The system's compiler makes
it, or the one that pip brings where there is none. Where neither can be had the package installs without it, and plans
run in sequence. ``HOPE_WHEEL_MACHINE=aarch64`` builds for another machine, with pip's compiler.

``python agent_sdk/native/building.py`` builds it in place.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools import Extension, build_meta
from setuptools.build_meta import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

HERE = Path(__file__).parent
SOURCES = [HERE / "lanes.c", HERE / "arbiter.h", HERE / "sequence.h"]
LIBRARY = "lanes.so"
MACHINE = os.environ.get("HOPE_WHEEL_MACHINE", "")
"""The machine to build a wheel for; empty: this one, for this one's C library."""
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden")
COMPILERS = ("cc", "gcc", "clang")
GLIBC = "2.17"
"""The oldest C library that wheels for others are made for."""
BUILD_S = 300.0
"""A compiler that takes longer is given up; the first run of the one that pip brings may take a while."""
FROM_PIP = "ziglang>=0.13,<1"


def get_requires_for_build_wheel(settings: Any = None) -> list[str]:
    """What a build needs: a compiler, where the system has none, or none for the machine that was asked for."""
    found = not MACHINE and any(map(shutil.which, COMPILERS))
    return [*build_meta.get_requires_for_build_wheel(settings), *([] if found else [FROM_PIP])]


def get_requires_for_build_editable(settings: Any = None) -> list[str]:
    """The same for ``pip install -e``."""
    return get_requires_for_build_wheel(settings)


def commands() -> list[list[str]]:
    """Compilers to try, in this order."""
    found = [] if MACHINE else [[path] for path in map(shutil.which, COMPILERS) if path]
    if find_spec("ziglang") is not None:
        libc = "musl" if not MACHINE and platform.libc_ver()[0] != "glibc" else f"gnu.{GLIBC}"
        target = f"{MACHINE or platform.machine()}-linux-{libc}"
        found.append([sys.executable, "-m", "ziglang", "cc", "-target", target])
    return found


def build(path: Path, compilers: Iterable[list[str]] | None = None) -> str:
    """Make the library at ``path``; why that could not be done, else an empty text."""
    if not sys.platform.startswith("linux"):
        return f"the native lanes are for Linux, this is {sys.platform}"
    said = "no C compiler was found"
    path.parent.mkdir(parents=True, exist_ok=True)
    for command in commands() if compilers is None else compilers:
        made = path.with_suffix(".part")
        try:
            full = [*command, *FLAGS, "-o", str(made), str(SOURCES[0])]
            subprocess.run(full, check=True, capture_output=True, text=True, timeout=BUILD_S)
        except (OSError, subprocess.SubprocessError) as error:
            detail = (getattr(error, "stderr", None) or "").strip().splitlines()
            said = f"{' '.join(command[:3])}: {detail[0] if detail else error}"
        else:
            made.replace(path)  # a process that has loaded the old one keeps it
            return ""
    return said


class BuildLanes(build_ext):
    """Builds the library as setuptools builds an extension."""

    def get_ext_filename(self, fullname: str) -> str:
        """Without a version of Python in it."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext: Extension) -> None:
        """Compile, or say why not and go on."""
        why = build(Path(self.get_ext_fullpath(ext.name)))
        if why:
            print(f"warning: plans will run in sequence, without the native lanes: {why}", file=sys.stderr)


class LanesWheel(bdist_wheel):
    """A wheel for any Python, and for one kind of machine."""

    def get_tag(self) -> tuple[str, str, str]:
        """``py3-none`` and the platform: of this machine, or of all that have the C library asked for."""
        _, _, here = super().get_tag()
        return "py3", "none", f"manylinux_{GLIBC.replace('.', '_')}_{MACHINE}" if MACHINE else here


if __name__ == "__main__":
    sys.exit(build(HERE / LIBRARY) or 0)

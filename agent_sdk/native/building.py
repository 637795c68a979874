"""How the C code is built: once, when the package is installed; the build backend of ``pyproject.toml``.

Two plain shared libraries, loaded by ctypes, so that one wheel serves every version of Python: the agent's lanes and
the planner's kernels. The system's compiler makes them, or the one that pip brings where there is none. Where neither
can be had the package installs without them: plans run in sequence, and the planner does not search.
``HOPE_WHEEL_MACHINE=aarch64`` builds for another machine, with pip's compiler.

``python agent_sdk/native/building.py`` builds them in place.
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
LANES = (HERE / "lanes.c",)
_PLANNER = HERE.parents[1] / "planner_api" / "planning" / "native"
KERNELS = (_PLANNER / "annealing.c", _PLANNER / "labels.c")
IN_PLACE = {HERE / "lanes.so": LANES, _PLANNER / "kernels.so": KERNELS}
MACHINE = os.environ.get("HOPE_WHEEL_MACHINE", "")
"""The machine to build a wheel for; empty: this one, for this one's C library."""
FLAGS = ("-std=c11", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off")
"""Sums are rounded as Python rounds them: the kernels' times are the simulator's to the last bit."""
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


get_requires_for_build_editable = get_requires_for_build_wheel


def commands() -> list[list[str]]:
    """Compilers to try, in this order."""
    found = [] if MACHINE else [[path] for path in map(shutil.which, COMPILERS) if path]
    if find_spec("ziglang") is not None:
        libc = "musl" if not MACHINE and platform.libc_ver()[0] != "glibc" else f"gnu.{GLIBC}"
        target = f"{MACHINE or platform.machine()}-linux-{libc}"
        found.append([sys.executable, "-m", "ziglang", "cc", "-target", target])
    return found


def build(path: Path, sources: Iterable[Path], compilers: Iterable[list[str]] | None = None) -> str:
    """Make a library at ``path``; why that could not be done, else an empty text."""
    if not sys.platform.startswith("linux"):
        return f"the native code is for Linux, this is {sys.platform}"
    said = "no C compiler was found"
    path.parent.mkdir(parents=True, exist_ok=True)
    for command in commands() if compilers is None else compilers:
        made = path.with_suffix(".part")
        try:
            full = [*command, *FLAGS, "-o", str(made), *map(str, sources), "-lm"]
            subprocess.run(full, check=True, capture_output=True, text=True, timeout=BUILD_S)
        except (OSError, subprocess.SubprocessError) as error:
            detail = (getattr(error, "stderr", None) or "").strip().splitlines()
            said = f"{' '.join(command[:3])}: {detail[0] if detail else error}"
        else:
            made.replace(path)  # a process that has loaded the old one keeps it
            return ""
    return said


class BuildNative(build_ext):
    """Builds the libraries as setuptools builds extensions."""

    def get_ext_filename(self, fullname: str) -> str:
        """Without a version of Python in it."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def build_extension(self, ext: Extension) -> None:
        """Compile, or say why not and go on."""
        why = build(Path(self.get_ext_fullpath(ext.name)), [Path(source) for source in ext.sources])
        if why:
            print(f"warning: {ext.name} is left out, plans will be slower: {why}", file=sys.stderr)


class NativeWheel(bdist_wheel):
    """A wheel for any Python, and for one kind of machine."""

    def get_tag(self) -> tuple[str, str, str]:
        """``py3-none`` and the platform: of this machine, or of all that have the C library asked for."""
        _, _, here = super().get_tag()
        return "py3", "none", f"manylinux_{GLIBC.replace('.', '_')}_{MACHINE}" if MACHINE else here


if __name__ == "__main__":
    sys.exit("; ".join(filter(None, (build(path, sources) for path, sources in IN_PLACE.items()))) or 0)

"""How functions become machine code, also where nothing may be written."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])

ZERO = cast(int, np.int64(0))
"""What kernels pass to kernels instead of 0: numba gives a literal a type of its own, and compiles for it once more."""


def kernel(function: Function) -> Function:
    """Compile on first use, without the interpreter's lock, and keep the code on disk.

    Kernels allocate nothing: who calls them brings the space. So the code counts no references.

    The code is kept beside the module, or in the user's cache directory where that is read-only. Where neither can
    be written (a container without a home), numba refuses to cache at all: then each process compiles for itself.

    Array assignments (``a[:] = b``) are written as loops in kernels: for their error message alone, numba compiles
    half a string library, six seconds of the eleven that the largest kernel then needs.
    """
    return _compiled(function, no_cfunc_wrapper=True)


def inner_kernel(function: Function) -> Function:
    """A `kernel` that only kernels call: a way in from Python, where sixty arrays are unpacked, is half of the code."""
    return _compiled(function, no_cfunc_wrapper=True, no_cpython_wrapper=True)


def inlined_kernel(function: Function) -> Function:
    """An `inner_kernel` that becomes part of those that call it: passing thirty arrays takes longer than its work."""
    return _compiled(function, no_cfunc_wrapper=True, no_cpython_wrapper=True, forceinline=True)


def _compiled(function: Function, **options: bool) -> Function:
    compiler: Any = njit  # its stubs do not know of all its options
    try:
        compiled = compiler(cache=True, nogil=True, _nrt=False, **options)(function)
    except RuntimeError:
        return cast(Function, compiler(nogil=True, _nrt=False, **options)(function))
    _forget_older(compiled)
    return cast(Function, compiled)


_newest = 0.0
"""When the newest file with a kernel was written, of those loaded so far."""


def _forget_older(compiled: Any) -> None:
    """Drop code that was kept before a kernel that it may contain was written.

    Numba compares the age of a kernel's own file alone, and keeps what was compiled with older callees. Whatever a
    kernel calls is loaded before it.
    """
    global _newest
    function = compiled.py_func
    _newest = max(_newest, os.stat(function.__code__.co_filename).st_mtime)
    name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}-*.nbi"
    for index in Path(compiled.stats.cache_path).glob(name):
        with suppress(OSError):  # another process has just dropped it
            if index.stat().st_mtime < _newest:
                index.unlink()

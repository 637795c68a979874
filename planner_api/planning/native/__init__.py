"""The planner's kernels in C: built at install (``agent_sdk/native/building.py``), loaded by ctypes.

Each works on structs of which every field is one machine word: a number, or where an array begins. Calls let go of the
interpreter's lock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner_api.planning.problem import IntArray, PlanningError

LIBRARY: Final = Path(__file__).with_name("kernels.so")
TYPES: Final = {"word": np.int64, "double": np.float64, "bool": np.bool_, "uint16_t": np.uint16}
"""Types of C, and what arrays of them hold."""
_KNOWN: Final = frozenset(map(np.dtype, TYPES.values()))


class NotBuilt(PlanningError):
    """The kernels are not there; the message says why, and the cure."""


def packed(sizes: Sequence[int], fields: Sequence[Any]) -> IntArray:
    """A struct: its sizes, then the fields of a tuple, which must live as long as the struct is used.

    A kernel is given its ``ctypes``, which keep it alive meanwhile.

    Raises:
        TypeError: an array that C cannot read.
    """
    return np.array([*sizes, *_words(fields)], dtype=np.int64)


def _words(fields: Sequence[Any]) -> list[int]:
    words: list[int] = []
    for field in fields:
        if isinstance(field, np.ndarray):
            if field.dtype not in _KNOWN or not field.flags.c_contiguous:
                raise TypeError(f"kernels read no array of {field.dtype} with strides {field.strides}")
            words.append(field.ctypes.data)
        elif isinstance(field, tuple):
            words += _words(field)
        else:
            words.append(int(np.float64(field).view(np.int64)) if isinstance(field, float) else int(field))
    return words


@cache
def library() -> ctypes.CDLL:
    """The kernels.

    Raises:
        NotBuilt: they were not built when the package was installed.
    """
    try:
        found = ctypes.CDLL(str(LIBRARY))
    except OSError as error:
        raise NotBuilt(
            f"the planner's search is not there ({error}); install a C compiler, or reach a package index, "
            "and install hope-inference again"
        ) from error
    word, pointer = ctypes.c_int64, ctypes.c_void_p
    found.hope_anneal.restype = ctypes.c_double
    found.hope_anneal.argtypes = (pointer, pointer, pointer, word, ctypes.c_double, ctypes.c_double, pointer)
    found.hope_holds_on.restype, found.hope_holds_on.argtypes = ctypes.c_int, (pointer, pointer, word)
    found.hope_expand.restype, found.hope_expand.argtypes = word, (pointer, pointer, pointer, ctypes.c_double)
    found.hope_undominated.restype = word
    found.hope_undominated.argtypes = (pointer, pointer, word, pointer)
    return found

"""The planner's kernels in C: built at install (``agent_sdk/native/building.py``), loaded by ctypes.

What they work on are structs of which every field is one machine word: a number, or where an array begins. The C says
what a field is called, what it is and what it holds; Python fills them in by name. Calls let go of the interpreter's
lock.
"""

import ctypes
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from planner_api.planning.problem import IntArray, PlanningError

LIBRARY: Final = Path(__file__).with_name("kernels.so")
TYPES: Final = {"word": np.int64, "double": np.float64, "bool": np.bool_, "uint16_t": np.uint16}
"""Types of C, and what arrays of them hold."""


class NotBuilt(PlanningError):
    """The kernels are not there; the message says why, and the cure."""


class Struct:
    """A struct of the kernels; its fields are attributes. A kernel is given its ``ctypes``, which keep it alive.

    Args:
        kind: its name in C.
        fields: its numbers, arrays and structs. Arrays may be written to, not exchanged.

    Raises:
        TypeError: other fields than the C has, or an array that it would misread.
    """

    def __init__(self, kind: str, **fields: Any) -> None:
        self.kind, self.fields = kind, fields
        known = _fields(kind)
        if set(fields) != {name for _, _, name in known}:
            raise TypeError(f"{kind} has other fields: {sorted(set(fields) ^ {name for _, _, name in known})}")
        words: list[int] = []
        for type_, array, name in known:
            value = fields[name]
            if isinstance(value, Struct):
                words += value.words.tolist()
            elif not array:
                words.append(int(np.float64(value).view(np.int64)) if type_ == "double" else int(value))
            elif value.dtype != TYPES[type_] or not value.flags.c_contiguous:
                raise TypeError(f"{name} is no array of {type_}: {value.dtype} with strides {value.strides}")
            else:
                words.append(value.ctypes.data)
        self.words: IntArray = np.array(words, dtype=np.int64)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["fields"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def ctypes(self) -> Any:
        return self.words.ctypes

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: value for name, value in self.fields.items() if isinstance(value, np.ndarray)}


def zeros(kind: str, **shapes: Any) -> Struct:
    """A struct of arrays, given their shapes; what has none is a number, and given as such."""
    arrays = {name: TYPES[type_] for type_, array, name in _fields(kind) if array}
    return Struct(
        kind, **{name: np.zeros(shape, arrays[name]) if name in arrays else shape for name, shape in shapes.items()}
    )


@cache
def _fields(kind: str) -> list[tuple[str, bool, str]]:
    """Of each field of a struct in C: its type, whether it is an array of that, its name."""
    text = "".join(file.read_text() for file in sorted(Path(__file__).parent.glob("*.[ch]")))
    body = re.sub(r"/\*.*?\*/", "", text.partition(f"}} {kind};")[0].rpartition("typedef struct {")[2], flags=re.DOTALL)
    fields = re.findall(r"(\w+) (\*?)(\w+);", body)
    return [(type_, bool(pointer), name) for type_, pointer, name in fields]


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

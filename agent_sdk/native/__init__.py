"""The small C library that runs lanes outside the interpreter: built at install (``building.py``), loaded by ctypes.

Where it is missing the engine runs plans in sequence, and the log says so once.
"""

from __future__ import annotations

import ctypes
import logging
import os
from ctypes import c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, Final

LANES_VARIABLE: Final = "HOPE_LANES"
"""Environment variable: ``sequence`` does without the library."""
LIBRARY: Final = Path(__file__).with_name("lanes.so")

log = logging.getLogger(__name__)


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


class Look(ctypes.Structure):
    """An array of floats at which a lane looks, as ``lanes.c`` has it."""

    _fields_ = (("floats", c_void_p), ("count", c_int64), ("bytes", c_int32), ("odd", c_int32))


MASK_BYTES: Final = 128
"""Size of C's ``cpu_set_t``."""
STAMP, BIND, WAIT, LENT, ENTER, CALL, CALL_POINTER, CALL_IF, CALL_AGAIN, DONE = range(10)
"""What a step does; see ``enum operation``."""

SIGNATURES: Final = {
    "hope_make_arbiter": (c_void_p, ()),
    "hope_make_claim": (c_void_p, ()),
    "hope_make_rest": (c_void_p, ()),
    "hope_free": (None, (c_void_p,)),
    "hope_ask": (c_int, (c_void_p, c_void_p, c_uint64, c_int64)),
    "hope_ask_again": (c_int, (c_void_p,)),
    "hope_forgo": (None, (c_void_p, c_void_p)),
    "hope_shut": (None, (c_void_p,)),
    "hope_leave": (None, (c_void_p, c_uint64)),
    "hope_busy": (c_uint64, (c_void_p,)),
    "hope_waiting": (c_int, (c_void_p,)),
    "hope_open": (c_void_p, (c_void_p, c_int)),
    "hope_close": (None, (c_void_p,)),
    "hope_lane": (None, (c_void_p, c_int, c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int, c_int)),
    "hope_keys": (None, (c_void_p, c_int, c_void_p)),
    "hope_begin": (c_int, (c_void_p, c_int, c_int64)),
    "hope_cores": (None, (c_void_p, c_void_p)),
    "hope_aside": (c_int, (c_void_p,)),
    "hope_lost": (c_int64, (c_void_p,)),
    "hope_alone": (c_int, (c_void_p, c_int, c_int64, c_int, c_int, c_void_p)),
    "hope_drive": (c_int, (c_void_p, c_int, c_int)),
    "hope_hand_out": (None, (c_void_p, c_int, c_void_p, c_void_p)),
    "hope_await": (c_int, (c_void_p, c_int64)),
    "hope_leave_behind": (c_int, (c_void_p, c_int)),
    "hope_stop": (None, (c_void_p,)),
    "hope_stopped": (c_int, (c_void_p,)),
    "hope_done": (c_uint32, (c_void_p, c_int)),
    "hope_failure": (c_int, (c_void_p, c_int, c_void_p)),
    "hope_rest": (c_int, (c_void_p,)),
    "hope_slices": (None, (c_uint64,)),
    "hope_call": (None, (c_void_p,)),
    "hope_sequence": (None, (c_void_p, c_int, c_int, c_int, c_void_p, c_int64, c_void_p)),
    "hope_mark": (c_int, (c_void_p, c_size_t)),
    "hope_marked": (c_int, (c_void_p, c_size_t)),
    "hope_ordinary": (c_int, (c_void_p, c_int64, c_int)),
    "hope_narrow": (c_int, (c_void_p, c_void_p, c_int64)),
    "hope_widen": (c_int, (c_void_p, c_void_p, c_int64)),
    "hope_look": (c_int, (c_void_p,)),
    "hope_pass": (c_int64, (c_void_p, c_int64, c_int64)),
    "hope_ort_api_base": (c_void_p, ()),
    "hope_ort_options": (c_void_p, ()),
}


def library() -> ctypes.CDLL | None:
    """The library; None where plans run in sequence."""
    return None if os.environ.get(LANES_VARIABLE) == "sequence" else _loaded(LIBRARY)


@cache
def _loaded(path: Path) -> ctypes.CDLL | None:
    try:
        found = ctypes.CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:  # it is not there, or is of another version
        log.warning(
            "plans run in sequence, one segment after the other: the native lanes are not there (%s); "
            "install a C compiler, or reach a package index, and install hope-inference again",
            error,
        )
        return None
    return found


def address(function: Any) -> int:
    """Where a C function is. (``ctypes.cast`` would tie the function into a cycle of references.)"""
    return c_void_p.from_buffer(function).value or 0

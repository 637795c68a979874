"""Values at which runtimes differ though they agree on ordinary ones: the ends of a type, ties, signed zeros."""

from typing import Any, Final

import numpy as np

WHOLE: Final = (0, 1, 2, 3, 5, 7, -1, -2, -3, -7, 100, -100, 127, 128, 200, 255, -128)
"""Integers that divide, wrap or saturate, as far as a type has them."""
BEYOND: Final = (2**15, 2**16 - 1, 2**24 + 1, 2**31 - 1, 2**31, 2**32 + 1, 2**53 + 1, -(2**31), -(2**31) - 1)
"""Integers that a narrower type, or a float, cannot hold."""
TIES: Final = (0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, -3.0, 0.1, 7.25, -6.125)
"""Floats that round either way, and that are equal to each other when they are drawn again."""
FAR: Final = (-0.0, 50.0, -50.0, 100.0, -100.0, 1e4, -1e4)
"""Floats at which exponentials end."""


def choices(dtype: str | np.dtype[Any]) -> np.ndarray:
    """The hard values of a type of numbers or truth values, each once; floats are finite."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return np.array([False, True])
    if kind.kind in "iu":
        ends = np.iinfo(kind)
        wanted = {*WHOLE, *BEYOND, ends.min, ends.min + 1, ends.max - 1, ends.max, ends.max // 2 + 1}
        return np.array(sorted(value for value in wanted if ends.min <= value <= ends.max), kind)
    about = np.finfo(kind)
    ends_of_floats = (about.max, -about.max, about.max / 4, -about.max / 4, about.tiny, about.smallest_subnormal)
    return np.array([*TIES, *FAR, *ends_of_floats], kind)


def hard_values(dtype: str | np.dtype[Any], count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).choice(choices(dtype), count)

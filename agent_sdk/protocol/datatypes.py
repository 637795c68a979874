"""Element types as the Open Inference Protocol calls them."""

from collections.abc import Mapping
from typing import Final

DATATYPES: Final[Mapping[str, str]] = {
    "bool": "BOOL",
    **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": "FP16",
    "float32": "FP32",
    "float64": "FP64",
}
"""By NumPy's name."""

"""What every word of the contract shares: strict, frozen models and bounded fields."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

MAX_OPS = 20_000
"""Most ops one graph may hold; the largest network of the papers has about 1050."""
MAX_TENSORS = 60_000
"""Most tensors one graph may hold."""
MAX_ROWS = 200_000
"""Most rows one upload may carry in each of its columns."""

MAX_FIGURE_US = 3.6e9
"""Longest time one op, one transfer or one overhead may be said to take: an hour."""
Microseconds = Annotated[float, Field(ge=0.0, le=1e15, allow_inf_nan=False)]
"""A finite, non-negative duration in microseconds; more than all figures of the largest graph add up to."""
LEAST_US = 1e-3
"""Shortest time that a run may take, in microseconds: a nanosecond. What is divided by less may exceed any float."""
PositiveMicroseconds = Annotated[float, Field(ge=LEAST_US, le=1e12, allow_inf_nan=False)]
"""What a run takes, or a period."""
FigureMicroseconds = Annotated[float, Field(ge=0.0, le=MAX_FIGURE_US, allow_inf_nan=False)]
"""What one figure may be: so bounded that sums over a graph stay within ``Microseconds``."""
Count = Annotated[int, Field(ge=0)]
"""How many."""
VersionNumber = Annotated[int, Field(ge=1, le=2**31 - 1)]
"""A version's number, from 1; what a 32-bit column cannot hold cannot be looked up."""
Rate = Annotated[float, Field(ge=0.0, le=1.0)]
"""A part of a whole: from none to all."""
Fraction = Annotated[float, Field(ge=0.0, le=1e18, allow_inf_nan=False)]
"""A finite, non-negative ratio: 0.05 is five per cent."""
Share = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]
"""The part of a resource that is taken: above 0, at most 1."""
PRINTABLE = r"^[^\x00-\x1f\x7f]*$"
"""No control characters: such text may stand in a log line or a database column as it is."""
MAX_NAME = 512
"""Most characters of a tensor's or an op's name."""
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME, pattern=PRINTABLE)]
"""A tensor's or an op's name as its model writes it."""
_SEGMENT = r"[A-Za-z0-9._:+@\-]*[A-Za-z0-9_:+@\-][A-Za-z0-9._:+@\-]*"
LABEL = rf"^[A-Za-z0-9][A-Za-z0-9._:+@\-]*(/{_SEGMENT})*$"
"""Between slashes stands more than dots: a browser takes ``a/../b`` in an address for ``b``."""
MAX_LABEL = 128
_IS_LABEL = re.compile(LABEL)


class LabelPattern:
    """The characters of a ``Label``; what is wrong with another text is said in words."""

    pattern = LABEL

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check after length and type."""
        return core_schema.no_info_after_validator_function(_checked_label, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """As a pattern, for other languages."""
        return {**handler(schema), "pattern": LABEL}


def _checked_label(text: str) -> str:
    if _IS_LABEL.fullmatch(text):
        return text
    wrong = next((one for one in text if not re.fullmatch(r"[A-Za-z0-9._:+@/\-]", one)), None)
    begins = f"it begins with {text[0]!r}"
    cause = f"it holds {wrong!r}" if wrong else begins if not text[0].isalnum() else "between slashes it has but dots"
    raise ValueError(f"a label has letters, digits and . _ : + @ / - and begins with a letter or digit; {cause}")


Label = Annotated[str, Field(min_length=1, max_length=MAX_LABEL), LabelPattern()]
"""A short identifier that may stand in a URL, a file name or a log line."""
FREQUENCY = r"^[A-Za-z0-9][A-Za-z0-9._:+@\-]*$"
Frequency = Annotated[str, Field(min_length=1, max_length=MAX_LABEL, pattern=FREQUENCY)]
"""A SoC's operating point: a label without a slash, so that ``<SoC>/<frequency>`` names one profile."""
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""A SHA-256 in lower-case hexadecimal."""
Dimension = Annotated[int, Field(ge=0, le=2**31 - 1)]
Shape = Annotated[tuple[Dimension, ...], Field(max_length=16)]
"""A static tensor shape, outermost dimension first."""

Item = TypeVar("Item")
Column = Annotated[tuple[Item, ...], Field(max_length=MAX_ROWS)]
"""A field of many rows, one item per row."""


def is_label(text: str) -> bool:
    """Whether a text is a ``Label``."""
    return len(text) <= MAX_LABEL and _IS_LABEL.fullmatch(text) is not None


class Contract(BaseModel):
    """Base of every class that crosses the wire.

    Frozen (a value, not a place), strict (``"1"`` is not ``1``), closed (an unknown key is an error, so a
    misspelt field is never silently ignored), and free of NaN and infinity.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)

"""Axes with round numbers: how a plan's lanes are laid out, in the console and on a device."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where, in per cent of its length, and for which value."""

    at: float
    value: float


def ticks(span: float, wanted: int = 5) -> list[Tick]:
    """Return about ``wanted`` marks from 0 to ``span`` at steps of 1, 2 or 5 times a power of ten; 0 alone on none."""
    if not span / wanted > sys.float_info.min:  # below it a power of ten has lost its digits
        return [Tick(0.0, 0.0)]
    power = 10.0 ** math.floor(math.log10(span / wanted))
    step = next((power * factor for factor in (1, 2, 5) if power * factor * wanted >= span), power * 10)
    return [Tick(place(step * number, span), step * number) for number in range(int(span / step + 1e-9) + 1)]


def place(value: float, span: float) -> float:
    """Where a value stands, in per cent of the axis."""
    return round(100.0 * value / span, 3) if span > 0 else 0.0

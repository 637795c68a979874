"""Bars beside each other: durations, and counts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from hope_schema.axis import place


@dataclass(frozen=True)
class Bar:
    """One bar: its length in per cent of the longest."""

    label: str
    value: float
    length: float
    kind: str = ""


def draw(rows: Iterable[tuple[str, float, str]]) -> list[Bar]:
    rows = list(rows)
    span = max((value for _, value, _ in rows), default=0.0)
    return [Bar(label, value, place(value, span), kind) for label, value, kind in rows]


def steps(counts: Sequence[int], bounds: Sequence[float]) -> list[Bar]:
    """Return a histogram's bars: ``counts`` has one more than ``bounds`` (fractions), whose steps they count."""
    most = max(counts, default=0)
    names = [_percent(bound) for bound in bounds]
    labels = [f"below {names[0]}"]
    labels += [f"{low} to {high}" for low, high in pairwise(names)]
    labels.append(f"above {names[-1]}")
    middle = len(bounds) // 2
    return [
        Bar(label, value, place(value, most), "good" if number == middle else "")
        for number, (label, value) in enumerate(zip(labels, counts, strict=True))
    ]


def _percent(fraction: float) -> str:
    return f"{fraction:+.0%}".replace("-", "−").replace("%", "\u202f%")

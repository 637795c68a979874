"""A profile as a heat map: an op per row, a kind of processor per column."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

LEVELS = (1.0, 1.25, 2.0, 4.0, 8.0)
"""Times the row's fastest up to which a cell has the warmest colour, the second warmest, ..."""

Key = tuple[str, str]
"""(signature, kind)"""


@dataclass(frozen=True)
class Figure:
    """What is known of one op on one kind of processor; ``us`` None: it cannot run there.

    ``voters`` devices said it (those that are remembered), of which ``agreeing`` were believed.
    """

    us: float | None
    spread_us: float
    voters: int | None = None
    agreeing: int | None = None


@dataclass(frozen=True)
class Cell:
    """One cell; ``level`` 0 is the fastest of its row, ``times`` how many times that it takes.

    ``figure`` None: nobody measured it; ``times`` None: the fastest takes no time.
    """

    state: Literal["known", "unsupported", "absent"]
    level: int = 0
    times: float | None = 1.0
    figure: Figure | None = None

    @property
    def contested(self) -> bool:
        """Whether a quarter of those who spoke or more were not believed."""
        figure = self.figure
        if figure is None or figure.voters is None or figure.agreeing is None:
            return False
        return figure.voters - figure.agreeing > 0.25 * figure.voters


@dataclass(frozen=True)
class Row:
    """One op: what it is called, the digits that tell it from others of that name, and a cell per kind."""

    signature: str
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """The types that it consists of."""
        return self.signature.rpartition(":")[0] or self.signature

    @property
    def digits(self) -> str:
        """What tells it from other ops of those types."""
        return self.signature.rpartition(":")[2]


def draw(signatures: Sequence[str], kinds: Sequence[str], figures: Mapping[Key, Figure]) -> list[Row]:
    rows = []
    for signature in signatures:
        found = [figures.get((signature, kind)) for kind in kinds]
        fastest = min((one.us for one in found if one is not None and one.us is not None), default=math.inf)
        rows.append(Row(signature, tuple(_cell(figure, fastest) for figure in found)))
    return rows


def _cell(figure: Figure | None, fastest: float) -> Cell:
    if figure is None:
        return Cell("absent")
    if figure.us is None:
        return Cell("unsupported", figure=figure)
    times = figure.us / fastest if fastest > 0 else 1.0 if figure.us == 0 else math.inf
    level = next((level for level, limit in enumerate(LEVELS) if times <= limit * (1 + 1e-9)), len(LEVELS))
    return Cell("known", level, times if math.isfinite(times) else None, figure)

"""Networks that run again and again: how often each runs until all of their periods begin anew together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

MAX_RUNS: Final = 256
"""Most runs that one plan may hold."""


def runs(periods_us: Sequence[float | None]) -> list[int]:
    """How often each of some networks runs within the hyperperiod, the least common multiple of their periods.

    Args:
        periods_us: microseconds; None: the network runs once.

    Raises:
        ValueError: a period is no time that passes, or together they run more often than ``MAX_RUNS``.
    """
    for us in periods_us:
        if us is not None and not 0.0 < us < math.inf:
            raise ValueError(f"no network runs every {us} µs")
    exact = [None if us is None else Fraction(str(us)) for us in periods_us]
    known = [us for us in exact if us is not None]
    if not known:
        return [1] * len(exact)
    hyperperiod = Fraction(math.lcm(*(us.numerator for us in known)), math.gcd(*(us.denominator for us in known)))
    found = [1 if us is None else int(hyperperiod / us) for us in exact]
    if sum(found) > MAX_RUNS:
        raise ValueError(
            f"the periods come together again after more than the {MAX_RUNS} runs that a plan holds: choose periods "
            "that are multiples of each other"
        )
    return found

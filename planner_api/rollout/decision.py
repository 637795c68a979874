"""When does a release do harm? A sequential test that may be looked at after every report. Pure.

Every device is compared with itself: its last report before the new version with its first one on it. Under the
hypothesis that nothing got worse the two can be exchanged, so a device is as likely better as it is worse, whatever its
noise, its runs and its neighbours are (the sign test; for failures and wrong answers McNemar's). A bet on *worse* then
multiplies the stake by ``2p`` at each device that is worse and by ``2(1-p)`` at each that is better, and wins nothing
on average. By Ville's inequality the chance that the stake ever reaches ``1/α`` is at most ``α``, however often one
looks and whenever one stops: an *e-process* (Ramdas, Grünwald, Vovk and Shafer, "Game-theoretic statistics and safe
anytime-valid inference", Statistical Science 38(4), 2023, sections 2-3; the mixture over ``p`` is Robbins',
"Statistical methods related to the law of the iterated logarithm", Ann. Math. Stat. 41(5), 1970).

Harm is seldom everywhere: a plan belongs to one SoC. So the strata's stakes ``e_s`` are bet as a product of
``1 - π + π e_s``: the likelihood ratio of "each stratum is hit with chance π" to "none is". Each factor is an e-process
of its own devices, so the product is one, and so is a mixture over several ``π`` and over the kinds of harm (Vovk and
Wang, "E-values: calibration, combination and applications", Ann. Stat. 49(3), 2021, sections 3-4).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

CHANCES = (0.6, 0.7, 0.8, 0.9, 0.97)
"""Bets on how likely a device of a stratum that is hit is worse, mixed in equal parts."""
SPREADS = (0.003, 0.03, 0.1, 0.3, 1.0)
"""Bets on how large a part of the strata is hit, mixed in equal parts."""


@dataclass(frozen=True)
class Pairs:
    """Devices of a stratum compared with themselves: how many are worse now, how many better."""

    worse: int = 0
    better: int = 0

    def __add__(self, other: Pairs) -> Pairs:
        return Pairs(self.worse + other.worse, self.better + other.better)


def stratum_evidence(pairs: Pairs) -> float:
    """Return the natural logarithm of the stake after these pairs of one stratum; 0 before the first."""
    return joint([pairs.worse * math.log(2 * chance) + pairs.better * math.log(2 * (1 - chance)) for chance in CHANCES])


def evidence(strata: Iterable[Pairs]) -> float:
    """Return the natural logarithm of the stake on harm in some of the strata."""
    stakes = [stratum_evidence(pairs) for pairs in strata if pairs.worse or pairs.better]
    return joint([sum(_log_mix(spread, stake) for stake in stakes) for spread in SPREADS])


def does_harm(found: float, error_rate: float) -> bool:
    """Whether the evidence takes a release back that, were nothing worse, should be so at most with ``error_rate``."""
    return found >= -math.log(error_rate)


def _log_mix(spread: float, stake: float) -> float:
    """The logarithm of ``1 - spread + spread * exp(stake)``, for stakes of any size."""
    if stake > 0:
        return stake + math.log(spread + (1 - spread) * math.exp(-stake))
    return math.log1p(spread * math.expm1(stake)) if spread < 1.0 else stake


def joint(logarithms: Sequence[float]) -> float:
    """Return the natural logarithm of a stake spread evenly over several, as on harm of any of the kinds."""
    top = max(logarithms)
    return top + math.log(sum(math.exp(each - top) for each in logarithms) / len(logarithms))

"""Several contenders answer in turns, until one is faster in so many rounds that it is hardly chance (a sign test)."""

import math
import statistics
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from agent_sdk.journey.trial import WORTH, plain_runtime

WON: Final = (5, 7)
"""Rounds that a contender must win to replace the current one: without losing any, or with one lost. Between equals
that is chance in 3 of 100 comparisons."""
RUNS: Final = 2
"""Requests answered in one turn, of which the last is evidence."""
BEHIND: Final = 2.0
"""Whose best run is so many times slower than the best of all is not tried further."""


@dataclass
class Comparison:
    """Whose turn it is, and what each took.

    Attributes:
        waiting: who answers the next requests.
        pending: runs of this round whose end is not known yet.
        names: who has turns in this round.
        rounds: by round what each took, microseconds, where that is evidence.
    """

    waiting: deque[str] = field(default_factory=deque)
    pending: int = 0
    names: list[str] = field(default_factory=list)
    rounds: list[dict[str, float]] = field(default_factory=list)

    def begin_round(self, names: Iterable[str]) -> None:
        """One turn for each, in this order."""
        self.names = list(names)
        self.waiting = deque(name for name in self.names for _ in range(RUNS))
        self.pending = len(self.waiting)
        self.rounds.append({})

    def decided(
        self, left: Collection[str], current: str, first: str, more: int
    ) -> tuple[dict[str, float], list[str]] | None:
        """Medians, and who has won against the current one; None where another round has begun to tell.

        Args:
            left: who has not been dropped meanwhile.
            current: who has answered until now; last in each round: whether what slowed it down is over shows then.
            first: who answers when all is quiet.
            more: rounds that have to be won beyond ``WON``.
        """
        us = {name: own for name in left if (own := [took[name] for took in self.rounds if name in took])}
        middle = {name: statistics.median(own) for name, own in us.items()}
        best = min(map(min, us.values()), default=math.inf)
        undecided, winners = [], []
        for name in set(left) & set(self.names) - {current}:
            barely = name == first or plain_runtime(name) is not None
            won, lost = self._score(name, current, 1.0 if barely else WORTH)
            if lost < len(WON) and won >= WON[lost] + more:
                winners.append(name)
            elif lost < len(WON) and min(us.get(name, [best])) <= BEHIND * best:
                undecided.append(name)
        fastest = min((middle[name] for name in winners), default=math.inf)
        undecided = [name for name in undecided if middle.get(name, best) < fastest]
        if undecided and len(self.rounds) < WON[-1] + len(WON) - 1 + more:
            self.begin_round([*undecided, *winners, current])
            return None
        return middle, winners

    def _score(self, name: str, other: str, worth: float) -> tuple[int, int]:
        """In how many rounds one took less than ``worth`` times what the other took, and in how many it did not."""
        both = [took[name] < worth * took[other] for took in self.rounds if name in took and other in took]
        return sum(both), len(both) - sum(both)

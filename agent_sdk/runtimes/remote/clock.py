"""When another host computed, on this machine's clock: the difference of both clocks, as NTP finds it.

The host says when it began and ended by its own clock. Both lie between sending and the answer by this machine's clock,
so each answer bounds the difference, the closer the less time it spent on the way.
"""

from __future__ import annotations

from typing import Final

DRIFT: Final = 1e-4
"""By how many seconds a second two clocks run apart at most: quartzes are wrong by 20 to 50 parts in a million."""

Interval = tuple[float, float]
"""Begin and end, seconds."""


class Clock:
    """A host's clock. Threads may share it: one of two bounds that come at once may be forgotten."""

    def __init__(self) -> None:
        self._closest: tuple[Interval, float, float] | None = None
        """When the way was shortest, and between what the host's clock minus this one lay then; seconds."""

    def placed(self, asked: Interval, ran: Interval) -> Interval | None:
        """When the host computed, by this machine's clock; None where it says what cannot be.

        The answer lies within ``asked``, whatever the host says of its clock.

        Args:
            asked: when the request was sent and its answer was there, by this machine's clock.
            ran: when the host began and ended, by its own.
        """
        (sent, answered), (began, ended) = asked, ran
        least, most = ended - answered, began - sent  # of the host's clock minus this one
        if not (began <= ended and least <= most):
            return None
        then, low, high = self._closest or (asked, least, most)
        # NOTE: one bound is of the beginning and one of the end, and clocks drift while a host computes, too.
        drift = DRIFT * (max(answered, then[1]) - min(sent, then[0]))
        low, high = low - drift, high + drift
        was_set = low > most or high < least
        if was_set or most - least <= high - low:
            self._closest = asked, least, most
            low, high = least, most
        offset = min(max((low + high) / 2, least), most)
        # NOTE: what a host says may be so large that the difference is rounded by more than the way took.
        return min(max(began - offset, sent), answered), min(max(ended - offset, sent), answered)

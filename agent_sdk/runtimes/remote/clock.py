"""When another host computed, on this machine's clock: the difference of both clocks, as NTP finds it.

The host says when it began and ended by its own clock. Both lie between sending and the answer by this machine's clock,
so each answer bounds the difference, the closer the less time it spent on the way.
"""

from __future__ import annotations

from typing import Final, NamedTuple

DRIFT: Final = 1e-4
"""By how many seconds a second two clocks run apart at most: quartzes are wrong by 20 to 50 parts in a million."""

Interval = tuple[float, float]
"""Begin and end, seconds."""


class _Bounds(NamedTuple):
    """Of the host's clock minus this machine's, seconds, when that one showed ``at``."""

    at: float
    least: float
    most: float

    def widened(self, now: float) -> _Bounds:
        """The same at another time."""
        drift = DRIFT * abs(now - self.at)
        return _Bounds(now, self.least - drift, self.most + drift)

    @property
    def width(self) -> float:
        return self.most - self.least


class Clock:
    """A host's clock. Threads may share it: one of two bounds that come at once may be forgotten."""

    def __init__(self) -> None:
        self._closest: _Bounds | None = None

    def placed(self, asked: Interval, ran: Interval) -> Interval | None:
        """When the host computed, by this machine's clock; None where it says what cannot be.

        The answer lies within ``asked``, whatever the host says of its clock.

        Args:
            asked: when the request was sent and its answer was there, by this machine's clock.
            ran: when the host began and ended, by its own.
        """
        (sent, answered), (began, ended) = asked, ran
        found = _Bounds(answered, ended - answered, began - sent)
        if not (began <= ended and found.least <= found.most):
            return None
        known = found if self._closest is None else self._closest.widened(answered)
        was_set = known.least > found.most or known.most < found.least
        if was_set or found.width <= known.width:
            self._closest = known = found
        middle = (known.least + known.most) / 2
        offset = min(max(middle, found.least), found.most)
        # NOTE: what a host says may be so large that the difference is rounded by more than the way took.
        return min(max(began - offset, sent), answered), min(max(ended - offset, sent), answered)

"""How long the way to a host and back takes, measured once and then followed by what crosses it anyway."""

import math
import threading
from typing import Final

from hope_schema import HOST, Link
from hope_schema.hosts import stepped

SMOOTHING: Final = 0.1
"""Part of the estimate that each new observation has."""
LEAST_US: Final = 1.0
LEAST_US_PER_BYTE: Final = 1e-4
"""Faster links are told as this fast: round trips differ by more."""
MOST: Final = math.log(10)
"""Of the logarithm of how far off an estimate was: one outlier counts as no more."""


class Way:
    """An estimate of a link both ways: a fixed cost, and microseconds per byte there and back.

    Args:
        host: the name of the host that it leads to.
        fixed_us: a round trip with next to nothing in it, microseconds.
        there, back: microseconds per byte.
        as_float16: what float32 takes per byte to become float16 and float32 again; None: it crosses as it is.
        link: what carries it; see ``HostSettings``.
    """

    def __init__(
        self,
        host: str,
        fixed_us: float,
        there: float,
        back: float,
        as_float16: float | None = None,
        link: str | None = None,
    ) -> None:
        self.link = link or host
        self.host, self.fixed_us, self.there, self.back = host, fixed_us, there, back
        self.as_float16 = as_float16
        self._lock = threading.Lock()

    def __str__(self) -> str:
        there, back = (8 / max(us_per_byte, LEAST_US_PER_BYTE) for us_per_byte in (self.there, self.back))
        return f"{self.fixed_us / 1e3:.2f} ms there and back, {there:.0f} Mbit/s there, {back:.0f} back"

    def us(self, sent: int, received: int) -> float:
        """What a round trip with so many bytes takes, microseconds."""
        return self.fixed_us + sent * self.there + received * self.back

    def learn(self, sent: int, received: int, took_us: float, part: float = SMOOTHING) -> None:
        """Take in what one took, without what the host computed meanwhile.

        A figure changes by as much as it has a part in what such a round trip takes: short ones say what is fixed, long
        ones what bytes take there or back.
        """
        with self._lock:
            us = max(self.us(sent, received), LEAST_US)
            change = part * min(max(math.log(max(took_us, LEAST_US) / us), -MOST), MOST)
            self.fixed_us *= math.exp(change * self.fixed_us / us)
            self.there *= math.exp(change * sent * self.there / us)
            self.back *= math.exp(change * received * self.back / us)

    def links(self) -> tuple[Link, Link]:
        """The same as the planner takes it: two ways on one resource, as of a radio."""

        def link(source: str, target: str, us_per_byte: float) -> Link:
            return Link(
                source=source,
                target=target,
                fixed_us=stepped(self.fixed_us / 2),
                us_per_byte=stepped(us_per_byte),
                float16_us_per_byte=None if self.as_float16 is None else stepped(self.as_float16),
                busy=f"link-{self.link}",
            )

        return link(HOST, self.host, self.there), link(self.host, HOST, self.back)

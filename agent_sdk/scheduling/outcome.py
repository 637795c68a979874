"""What became of a mix: every run, and what that is by stream."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ended:
    """One run of a mix, as it went; milliseconds from the start of the mix.

    Attributes:
        stream: which.
        release_ms: when it was asked for.
        start_ms: when it began; None where it did not.
        end_ms: when its outputs were there; None where it was dropped, failed, or had not ended when the mix did.
        deadline_ms: when they were to be there; None where nobody said.
        dropped: whether it was given up before it began.
        where: what computed it.
        failure: why it failed; empty where it did not.
    """

    stream: str
    release_ms: float
    start_ms: float | None
    end_ms: float | None
    deadline_ms: float | None
    dropped: bool = False
    where: str = ""
    failure: str = ""

    @property
    def missed(self) -> bool:
        """Whether a deadline was missed; who was dropped has missed it."""
        return self.deadline_ms is not None and (self.end_ms is None or self.end_ms > self.deadline_ms)


@dataclass(frozen=True)
class Summary:
    """One stream of a mix.

    Attributes:
        stream: which.
        runs: how many were asked for.
        p50_ms: median latency, from the release to the outputs; None where no run ended.
        p99_ms: the 99th percentile likewise.
        deadlines: how many had one.
        missed: how many missed it, dropped ones among them.
        dropped: how many were given up before they began.
        failed: how many raised.
        per_second: how many ended a second.
    """

    stream: str
    runs: int
    p50_ms: float | None
    p99_ms: float | None
    deadlines: int
    missed: int
    dropped: int
    failed: int
    per_second: float


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that so large a share of them does not exceed; None where there is none."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)] if values else None


def summed_up(stream: str, ended: Sequence[Ended], seconds: float) -> Summary:
    """What became of one stream."""
    own = [one for one in ended if one.stream == stream]
    took = [one.end_ms - one.release_ms for one in own if one.end_ms is not None]
    return Summary(
        stream,
        len(own),
        percentile(took, 0.5),
        percentile(took, 0.99),
        sum(one.deadline_ms is not None for one in own),
        sum(one.missed for one in own),
        sum(one.dropped for one in own),
        sum(bool(one.failure) for one in own),
        len(took) / seconds,
    )


def missed(ended: Sequence[Ended]) -> float:
    """Deadlines missed, as a share of all; 0 where there is none."""
    due = [one for one in ended if one.deadline_ms is not None]
    return sum(one.missed for one in due) / len(due) if due else 0.0

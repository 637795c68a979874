"""What running side by side costs on a GPU beyond what shares say, fitted on the network itself.

The planner takes an op to be slower by ``slowdown`` while others fill what it leaves of the device, in proportion. One
schedule of the network, made by the same rules, is run; the slowdown is the one for which the rules give its time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agent_sdk.runtimes.torch.schedule import Task, ways_there

LEAST: Final = 1.0
MOST: Final = 8.0
HALVINGS: Final = 16


@dataclass(frozen=True)
class Work:
    """An op with what it reads and writes, what it takes alone in microseconds, and its share of the device."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    us: float
    share: float


def sequence(works: Sequence[Work]) -> list[int]:
    """The works by the longest way from them to the end, longest first, which is a topological order."""
    _, rank = ways_there([Task(work.reads, work.writes, 0.0, work.us) for work in works])
    return sorted(range(len(works)), key=lambda index: (-rank[index], index))


def decoded(works: Sequence[Work], order: Sequence[int], slowdown: float) -> dict[int, tuple[float, float]]:
    """Start and finish of each work: as early as inputs and shares allow, given what stands before it in the order."""
    made: dict[str, float] = {}
    times: dict[int, tuple[float, float]] = {}
    busy: list[tuple[float, float]] = []
    for index in order:
        work = works[index]
        start = max((made.get(name, 0.0) for name in work.reads), default=0.0)
        later = sorted((finish, share) for finish, share in busy if finish > start)
        used = sum(share for _, share in later)
        for finish, share in later:
            if finish > start and used + work.share <= 1.0 + 1e-9:
                break
            start, used = max(start, finish), used - share
        left = 1.0 - work.share
        pressure = min(1.0, max(0.0, used) / left) if left > 0.0 else 0.0
        finish = start + work.us * (1.0 + (slowdown - 1.0) * pressure)
        times[index] = (start, finish)
        busy.append((finish, work.share))
        made.update(dict.fromkeys(work.writes, finish))
    return times


def fitted(works: Sequence[Work], order: Sequence[int], ratio: float) -> float:
    """The slowdown for which the works take ``ratio`` of their sum, or as near as any between 1 and 8 comes."""
    total = sum(work.us for work in works)
    low, high = LEAST, MOST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        takes = max(finish for _, finish in decoded(works, order, middle).values())
        low, high = (low, middle) if takes > ratio * total else (middle, high)
    return low  # above it another order of ends may come about, which takes much longer

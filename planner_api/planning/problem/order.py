"""Orders of ops in which each comes after those that it reads from."""

import heapq
from collections.abc import Callable, Collection, Mapping
from graphlib import TopologicalSorter


def ordered(before: Mapping[int, Collection[int]], key: Callable[[int], int]) -> list[int]:
    """The ops in topological order; of those whose turn it may be, the one of least key comes first.

    ``before`` says what each op comes after, and names every op. Raises ``graphlib.CycleError``, which holds the cycle.
    """
    sorter = TopologicalSorter(before)
    sorter.prepare()
    able: list[tuple[int, int]] = []
    order: list[int] = []
    while sorter.is_active():
        for op in sorter.get_ready():
            heapq.heappush(able, (key(op), op))
        order.append(heapq.heappop(able)[1])
        sorter.done(order[-1])
    return order

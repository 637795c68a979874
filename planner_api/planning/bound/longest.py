"""The longest ways through a graph, which every bound is made of."""

from __future__ import annotations

from collections.abc import Sequence

from planner_api.planning.problem import Problem


def longest(problem: Problem, us: Sequence[float], release_us: Sequence[float] | None = None) -> list[float]:
    """Return the longest way through the graph that ends with each op, in microseconds, where ops take ``us``.

    What reads graph inputs begins at its ``release_us`` at the earliest; None: they are all there at once.
    """
    lists = problem.lists
    finish = list(us)
    for op in lists.order:
        ready = [finish[earlier] for earlier in lists.before[op]]
        if release_us is not None and any(lists.producer[tensor] < 0 for tensor in lists.reads[op]):
            ready.append(release_us[op])
        finish[op] += max(ready, default=0.0)
    return finish

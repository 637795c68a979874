"""Other ways to start a plan's steps: listed over a number of streams, whatever the plan lets run at once.

A GPU takes on whatever kernel is ready, and how kernels share it is known only roughly. So beside the plan's own
intervals stand list schedules (Graham, 1966) of the same steps, each as long as it is alone, and the device decides.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

from agent_sdk.runtimes.torch.schedule import Task, networks, reads_from, ways_there


def listed(tasks: Sequence[Task], streams: int) -> list[tuple[float, float]]:
    """By task, in a topological order, when it starts and finishes where each network has so many streams.

    On the stream that is free first starts, of the tasks whose inputs are there, the one with the longest way to the
    end.
    """
    times = [(0.0, 0.0)] * len(tasks)
    for own in networks(tasks):
        for index, found in zip(own, _listed([tasks[index] for index in own], streams), strict=True):
            times[index] = found
    return times


def _listed(tasks: Sequence[Task], streams: int) -> list[tuple[float, float]]:
    _, rank = ways_there(tasks)
    before = reads_from(tasks)
    readers: list[list[int]] = [[] for _ in tasks]
    for index, others in enumerate(before):
        for other in others:
            readers[other].append(index)
    waits = [len(others) for others in before]
    there = [0.0] * len(tasks)
    coming = [(0.0, index) for index, count in enumerate(waits) if count == 0]
    ready: list[tuple[float, int]] = []
    free = [0.0] * streams
    times = [(0.0, 0.0)] * len(tasks)
    now = 0.0
    while coming or ready:
        now = max(now, heappop(free))
        if not ready:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            index = heappop(coming)[1]
            heappush(ready, (-rank[index], index))
        index = heappop(ready)[1]
        finish = now + tasks[index].us
        heappush(free, finish)
        times[index] = (now, finish)
        for reader in readers[index]:
            waits[reader] -= 1
            there[reader] = max(there[reader], finish)
            if waits[reader] == 0:
                heappush(coming, (there[reader], reader))
    return times

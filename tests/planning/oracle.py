"""An independent reading of the cost model, without the simulator's code: times by asking, not by keeping lines."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from planner_api.planning import Problem

ROOM = 1e-9
"""Of a share, and of microseconds: sums of the same figures in another order differ by less."""


def timing(problem: Problem, assignment: Sequence[int], sequence: Sequence[int]) -> tuple[dict[int, float], float]:
    """Finish of every op, and the value, from the rules as the docstring of the simulator states them.

    Every time is the smallest that obeys its rules, found by trying the instants at which something ends.
    """
    machine = problem.machine
    start: dict[int, float] = {}
    finish: dict[int, float] = {}
    arrival: dict[tuple[int, int], float] = {}
    sent: list[tuple[int, float]] = []
    done: dict[int, float] = {}

    def exists(tensor: int, op: int) -> float:
        producer = int(problem.producer[tensor])
        if producer < 0:
            return problem.jobs[int(problem.job_of[op])].release_us
        home = assignment[producer]
        waits = float(machine.end_us[home]) if home != assignment[op] else 0.0
        return finish[producer] + waits

    def origin(tensor: int) -> int:
        producer = int(problem.producer[tensor])
        return machine.host if producer < 0 else int(machine.place[assignment[producer]])

    def carried(hops: Sequence[tuple[int, int]]) -> int:
        """How many of the first channels of a way there are up to its last queue."""
        return max((index + 1 for index, (a, b) in enumerate(hops) if machine.busy[a, b] >= 0), default=0)

    def way(tensor: int, start: int, end: int, standing: float) -> tuple[list[tuple[int, int]], float]:
        """The channels from the last place on the way at which the tensor stands, and since when it does."""
        places = [end]
        while places[0] != start:
            places.insert(0, start if machine.hop is None else int(machine.hop[start, places[0]]))
        last = max(index for index, place in enumerate(places) if index == 0 or (tensor, place) in arrival)
        return list(pairwise(places[last:])), arrival[tensor, places[last]] if last else standing

    def send(tensor: int, hops: Sequence[tuple[int, int]], since: float) -> float:
        """Move a tensor over channels, each when its queue is free; when it arrives."""
        for a, b in hops:
            queue = int(machine.busy[a, b])
            since = max(since, queue_free(queue) if queue >= 0 else 0.0) + float(problem.transfer_us[tensor, a, b])
            arrival[tensor, b] = since
            if queue >= 0:
                sent.append((queue, since))
        return since

    def queue_free(queue: int) -> float:
        return max((end for other, end in sent if other == queue), default=0.0)

    def taken(resource: int, at: float, earlier: Sequence[int]) -> float:
        """What of a resource is taken by earlier ops that end after a time."""
        return sum(
            float(problem.shares[other, assignment[other]])
            for other in earlier
            if machine.uses[assignment[other], resource] and finish[other] > at + ROOM
        )

    for index, op in enumerate(sequence):
        earlier = sequence[:index]
        here = assignment[op]
        place = int(machine.place[here])
        own = [t for t in problem.reads[op] if problem.producer[t] >= 0 and assignment[problem.producer[t]] == here]
        others = [tensor for tensor in problem.reads[op] if tensor not in own]
        ready = max([exists(tensor, op) for tensor in problem.reads[op]], default=0.0)
        fetch = []
        for tensor in others:
            if origin(tensor) == place:
                continue
            hops, since = way(tensor, origin(tensor), place, exists(tensor, op))
            many = carried(hops)
            ready = max(ready, send(tensor, hops[:many], since))
            fetch += [(tensor, b, float(problem.transfer_us[tensor, a, b])) for a, b in hops[many:]]
        share = float(problem.shares[op, here])
        uses = [r for r in range(machine.uses.shape[1]) if machine.uses[here, r]]
        instants = sorted({ready, *(finish[other] for other in earlier if finish[other] > ready)})
        begin = next(t for t in instants if all(taken(r, t, earlier) + share <= 1 + ROOM for r in uses))
        length = sum(cost for _, _, cost in fetch)
        passed = begin
        for tensor, there, cost in fetch:
            passed += cost
            arrival[tensor, there] = passed
        if any(not any(assignment[other] == here and tensor in problem.reads[other] for other in earlier)
               for tensor in others):  # fmt: skip
            length += float(machine.launch_us[here])
        near = {
            r
            for p in range(len(problem.processors))
            if machine.memory[p] == machine.memory[here]
            for r in range(machine.uses.shape[1])
            if machine.uses[p, r]
        }
        room = len(near) - share * len(uses)
        pressure = sum(min(1.0, taken(r, begin, earlier)) for r in near) / room if room > ROOM else 0.0
        factor = 1.0 + (float(machine.slowdown[here]) - 1.0) * min(1.0, pressure)
        start[op] = begin
        finish[op] = begin + length + float(problem.latency_us[op, here]) * factor
        done[op] = finish[op]
        for tensor in range(len(problem.tensors)):
            if problem.producer[tensor] == op and problem.is_output[tensor] and place != machine.host:
                hops, _ = way(tensor, place, machine.host, finish[op])
                if carried(hops):
                    done[op] = max(done[op], send(tensor, hops, finish[op]))
                else:
                    done[op] = max(
                        done[op], finish[op] + sum(float(problem.transfer_us[tensor, a, b]) for a, b in hops)
                    )
    return finish, max(float(problem.weight[op]) * (done[op] - float(problem.due_us[op])) for op in sequence)

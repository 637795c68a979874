"""An independent reading of the cost model, without the simulator's code: times by asking, not by keeping lines."""

from __future__ import annotations

from collections.abc import Sequence

from planner_api.planning import Problem

ROOM = 1e-9


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
        waits = float(machine.end_us[home]) + machine.handover_us if home != assignment[op] else 0.0
        return finish[producer] + waits

    def origin(tensor: int) -> int:
        producer = int(problem.producer[tensor])
        return machine.host if producer < 0 else int(machine.place[assignment[producer]])

    def queue_free(queue: int) -> float:
        return max((end for other, end in sent if other == queue), default=0.0)

    def taken(resource: int, at: float, earlier: Sequence[int]) -> float:
        """What of a resource is taken by earlier ops that end after a time."""
        return sum(
            float(problem.shares[other, assignment[other]])
            for other in earlier
            if machine.uses[assignment[other], resource] and finish[other] > at
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
            queue = int(machine.busy[origin(tensor), place])
            cost = float(problem.transfer_us[tensor, origin(tensor), place])
            if (tensor, place) not in arrival and queue < 0:
                fetch.append((tensor, cost))
                continue
            if (tensor, place) not in arrival:
                arrival[tensor, place] = max(exists(tensor, op), queue_free(queue)) + cost
                sent.append((queue, arrival[tensor, place]))
            ready = max(ready, arrival[tensor, place])
        share = float(problem.shares[op, here])
        uses = [r for r in range(machine.uses.shape[1]) if machine.uses[here, r]]
        instants = sorted({ready, *(finish[other] for other in earlier if finish[other] > ready)})
        begin = next(t for t in instants if all(taken(r, t, earlier) + share <= 1 + ROOM for r in uses))
        length = sum(cost for _, cost in fetch)
        passed = begin
        for tensor, cost in fetch:
            passed += cost
            arrival[tensor, place] = passed
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
                queue = int(machine.busy[place, machine.host])
                cost = float(problem.transfer_us[tensor, place, machine.host])
                leaves = finish[op] if queue < 0 else max(finish[op], queue_free(queue))
                if queue >= 0:
                    sent.append((queue, leaves + cost))
                    arrival[tensor, machine.host] = leaves + cost
                done[op] = max(done[op], leaves + cost)
    return finish, max(float(problem.weight[op]) * (done[op] - float(problem.due_us[op])) for op in sequence)

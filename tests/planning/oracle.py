"""An independent reading of the cost model: schedules as longest paths, without the simulator's code."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Sequence

from planner_api.planning import Problem

Node = tuple[str, int, int]
"""("op", op, 0) or ("move", tensor, target)."""


def timing(problem: Problem, assignment: Sequence[int], sequence: Sequence[int]) -> tuple[dict[int, float], float]:
    """Finish of every op and the makespan, by relaxing ``end(v) = length(v) + max end(u)`` until nothing changes."""
    place = {op: index for index, op in enumerate(sequence)}
    length: dict[Node, float] = {}
    after: dict[Node, set[Node]] = defaultdict(set)
    for op in sequence:
        length["op", op, 0] = float(problem.latency_us[op, assignment[op]])
        for other in sequence[: place[op]]:
            if problem.conflicts[assignment[other], assignment[op]]:
                after["op", op, 0].add(("op", other, 0))
    readers: dict[tuple[int, int], list[int]] = defaultdict(list)
    for op in sequence:
        for tensor in problem.reads[op]:
            readers[tensor, assignment[op]].append(op)
            if problem.producer[tensor] >= 0:
                after["op", op, 0].add(("op", int(problem.producer[tensor]), 0))
    wanted = {(tensor, target) for tensor, target in readers}
    wanted |= {(int(t), problem.host) for t in range(len(problem.tensors)) if problem.is_output[t]}
    channels: dict[tuple[int, int], list[Node]] = defaultdict(list)
    for tensor, target in sorted(wanted):
        producer = int(problem.producer[tensor])
        source = assignment[producer] if producer >= 0 else problem.host
        if source == target:
            continue
        cost = float(problem.transfer_us[tensor, source, target])
        move: Node = ("move", tensor, target)
        if problem.mode == "blocking" and target != problem.host:
            first = min(readers[tensor, target], key=lambda op: place[op])
            length["op", first, 0] += cost
            continue
        length[move] = cost
        if producer >= 0:
            after[move].add(("op", producer, 0))
        for op in readers[tensor, target]:
            after["op", op, 0].add(move)
        if problem.mode == "overlap" and cost > 0:
            channels[source, target].append(move)
    for moves in channels.values():
        moves.sort(key=lambda node: (place.get(int(problem.producer[node[1]]), -1), node[1]))
        for one, two in itertools.pairwise(moves):
            after[two].add(one)
    end = dict.fromkeys(length, 0.0)
    for _ in range(len(length) + 1):
        new = {node: length[node] + max((end[other] for other in after[node]), default=0.0) for node in length}
        if new == end:
            break
        end = new
    return {op: end["op", op, 0] for op in sequence}, max(end.values(), default=math.nan)

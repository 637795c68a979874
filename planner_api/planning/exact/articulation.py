"""Articulation decomposition: solve the pieces between the ops that everything must pass, and prove the sum.

A *cut op* is comparable with every other op and no tensor of an earlier op is read after it. All that ran before it is
over when it starts, all that follows starts when it ends, and the only thing that crosses is what it wrote, on the
processor where it ran. So without queues the optimum is a shortest path: one layer per cut op, one node per
processor, one arc per optimal piece. Equal pieces are solved once.

A piece is solved by dynamic programming over what has been done so far. A label is a partial schedule: the set of ops
done, when each processor is free, where each live tensor is, and when the ops that someone still waits for finish. Two
labels with the same ops done and the same tensors in the same places differ only in times; one that is nowhere later,
and has every tensor where the other has it, dominates. Labels that cannot beat the best known plan are cut.

Ops are appended by start time: one may not start before the one appended last, it is delayed instead. Every
semi-active schedule listed by start is found without a delay, and those contain an optimum (once placement and order,
hence the transfers, are fixed, nothing gains from waiting). What a dominated label could still do, its rival can do in
the same order and no later, delays included, so dominance loses nothing.

In an Inception module only some hundred sets of ops can be done (branches are chains), which is why this beats integer
programming there by more than a factor of ten.
"""

import math
from dataclasses import dataclass
from itertools import accumulate, permutations
from typing import NamedTuple

import numpy as np

from planner_api.planning.budget import Budget
from planner_api.planning.exact.constants import constant_ops, put_back, without
from planner_api.planning.judge.simulator import Schedule, simulate
from planner_api.planning.methods import Bound
from planner_api.planning.native import Struct, library, zeros
from planner_api.planning.problem import FloatArray, IntArray, Problem

MOST_OPS = 62
"""Ops of a piece: the set of ops done is one machine word."""
BEAM = 64
"""Labels kept per level when looking for a first plan of a piece."""
ROOM = 60_000
"""Labels of one level that a proof may need before it is given up."""
EFFORT = 300_000
"""Labels that the proof of one piece may need in all: what counts as work where no clock does."""
MOST_PROCESSORS = 16
"""The set of processors that hold a tensor is a word of so many bits."""

Past = tuple[IntArray, IntArray, IntArray]
"""Of each label of a level: the label of the level before, and what was appended to it, where."""


class Ending(NamedTuple):
    """One way for a piece to end: its length in microseconds and the (op, processor) pairs in order."""

    us: float
    plan: tuple[tuple[int, int], ...]


NONE = Ending(math.inf, ())


Solved = tuple[list[list[Ending]], FloatArray]
"""By processor of a piece's entry op and of its last op: an ending, and a proven bound on all such endings."""


@dataclass(frozen=True)
class Result:
    """The best plan made of pieces, if every piece has one, and the bound that the proofs add up to."""

    schedule: Schedule | None
    bound: Bound


def solve_pieces(problem: Problem, budget: Budget) -> Result | None:
    """`decompose` with the constants set aside first, since they would stand beside every cut op, and then put back."""
    smaller, kept = without(problem, constant_ops(problem))
    result = decompose(smaller, budget)
    if result is None or result.schedule is None:
        return result
    back = put_back(problem, kept, result.schedule.assignment, result.schedule.sequence)
    return Result(simulate(problem, *back), result.bound)


def cut_ops(problem: Problem) -> list[int]:
    """Positions in ``lists.order`` of the ops that everything must pass and no tensor jumps over.

    No edge leads from an earlier position to a later one. A network's input is brought by its first reader to whoever
    follows, if that takes time: it jumps over all ops up to its last reader.
    """
    lists = problem.lists
    place = {op: position for position, op in enumerate(lists.order)}
    n = len(place)
    first = max(place[op] for op, before in enumerate(lists.before) if not before)
    # far[p]: the last position that an edge leads to from the one before p; -1 is the start, n the end.
    far = [first] + [max((place[reader] for reader in lists.after[op]), default=n) for op in lists.order]
    for tensor, producer in enumerate(lists.producer):
        readers = sorted(place[reader] for reader in lists.readers[tensor])
        if producer < 0 and readers and problem.crossing_us(tensor)[problem.host].any():
            far[readers[0]] = max(far[readers[0]], readers[-1])
    return [position for position, last in enumerate(accumulate(far[:n], max)) if last <= position]


def pieces(problem: Problem) -> list[list[int]]:
    """The ops in topological order, cut after each cut op."""
    ends = [cut + 1 for cut in cut_ops(problem)]
    return [part.tolist() for part in np.split(problem.lists.order, ends) if part.size]


def serves(problem: Problem) -> bool:
    """Whether the pieces of a problem add up: one job, nothing shared in part, no queues, not too many
    processors, and a channel from every place to every other.

    What neighbours slow, and waiting for what another processor of the same place fetches, is left out: the bound
    stays valid, and the simulator times the plan.
    """
    machine = problem.machine
    one = len(problem.jobs) == 1 and problem.objective != "lateness" and problem.jobs[0].release_us == 0.0
    whole = problem.share is None and not machine.queues and machine.hop is None
    return one and whole and problem.host <= MOST_PROCESSORS


def decompose(problem: Problem, budget: Budget) -> Result | None:
    """Solve a problem piece by piece.

    Pieces whose turn comes after the deadline get a good plan and a poor bound (critical path and load); pieces that
    are too large leave the result without a schedule.

    Returns:
        None where there is nothing to decompose into small enough pieces, pieces do not add up (`serves`), or the
        budget was spent twice over before each had a plan.
    """
    if not serves(problem):
        return None
    parts = pieces(problem)
    if min(len(part) for part in parts) > MOST_OPS or (len(parts) == 1 and len(parts[0]) > MOST_OPS):
        return None
    solved: dict[bytes, Solved] = {}
    host, fastest = problem.host, problem.latency_us.min(axis=1).tolist()
    # reach[p]: the shortest way to the last cut op on processor p; low[p]: a proven bound on it.
    reach, low = [Ending(0.0, ())], np.zeros(1)
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        entry = parts[index - 1][-1] if index else -1
        sources = host if index else 1
        if len(part) > MOST_OPS:
            # Too large for more than its critical path.
            way = problem.lists.ways_on(part, fastest)
            path = max(fastest[op] + us for op, us in way.items())
            endings, lows = [[NONE] * host] * sources, np.full((sources, host), path)
        else:
            piece, gate = _piece(problem, fastest, part, entry, last)
            detour = np.zeros((host, host)) if last else _detour(problem, part[-1])
            key = b"|".join(
                np.ascontiguousarray(field).tobytes() for field in (*piece.fields.values(), detour)
            ) + bytes(gate)
            if key not in solved:
                if budget.overdrawn():
                    return None
                solved[key] = _solve_piece(piece, gate, detour, sources, budget)
            endings, lows = solved[key]
        low = (low[:, None] + lows).min(axis=0)
        begun, reach = reach, []
        for target in range(host):
            us, source = min((way.us + endings[source][target].us, source) for source, way in enumerate(begun))
            steps = tuple((part[op], processor) for op, processor in endings[source][target].plan)
            reach.append(Ending(us, begun[source].plan + steps))
    schedule = None
    best = min(reach, key=lambda end: end.us)
    if best.us < math.inf:
        assignment = [0] * len(problem.ops)
        for op, processor in best.plan:
            assignment[op] = processor
        schedule = simulate(problem, assignment, [op for op, _ in best.plan])
    return Result(schedule, Bound(float(low.min()), "articulation"))


def _detour(problem: Problem, op: int) -> np.ndarray:
    """(P, P): at most how much longer all that follows takes if the op ran on the first processor, not the second.

    The same plan still works when its first reader on the second processor fetches what the op wrote.
    """
    host = problem.host
    costs = np.array([problem.crossing_us(tensor) for tensor in problem.lists.writes[op]]).reshape(
        -1, host + 1, host + 1
    )
    costs[:, np.arange(host), np.arange(host)] = 0.0
    if not np.isfinite(costs).all():
        return np.where(np.eye(host, dtype=bool), 0.0, np.inf)
    detour = np.zeros((host, host))
    for here, there in permutations(range(host), 2):
        others = [place for place in range(host + 1) if place not in (here, there)]
        longer = np.maximum(costs[:, here, others] - costs[:, there, others], 0.0)
        detour[here, there] = costs[:, here, there].sum() + longer.sum()
    return detour


def _piece(problem: Problem, fastest: list[float], part: list[int], entry: int, last: bool) -> tuple[Struct, list[int]]:
    """The piece as arrays, and for each tensor 0 (made inside), 1 (written by the entry op) or 2 (on the host)."""
    lists, machine, host, m = problem.lists, problem.machine, problem.host, len(part)
    local = {op: index for index, op in enumerate(part)}
    names: dict[int, int] = {}
    for op in part:
        for tensor in lists.reads[op]:
            producer = lists.producer[tensor]
            if producer >= 0 or problem.crossing_us(tensor)[host].any():
                names.setdefault(tensor, len(names))
    tensors = list(names)
    gate = [
        0 if lists.producer[tensor] in local else (1 if lists.producer[tensor] == entry and entry >= 0 else 2)
        for tensor in tensors
    ]
    before = [sum(1 << local[earlier] for earlier in lists.before[op] if earlier in local) for op in part]
    latency, export = problem.latency_us[part], problem.export_us[part] if last else np.zeros((m, host))
    tail = lists.ways_on(part, fastest, problem.export_us.min(axis=1).tolist() if last else None)
    rows = [[names[tensor] for tensor in lists.reads[op] if tensor in names] for op in part]
    independent = bool((problem.machine.conflicts == np.eye(host, dtype=bool)).all())
    # Rows of weights for load bounds: at most 1 in sum over processors that can run together.
    weights = np.vstack([np.full(host, 1.0 / host), np.eye(host)[: host * independent]])
    # A processor of weight nothing takes any op that it supports for nothing.
    with np.errstate(invalid="ignore"):
        weighted = np.where(np.isfinite(latency), latency * weights[:, None, :], np.inf)
    work = weighted.min(axis=2)
    readers = [sum(1 << local[op] for op in lists.readers[tensor] if op in local) for tensor in tensors]
    piece = Struct(
        "Piece",
        ops=m,
        processors=host,
        places=problem.transfer_us.shape[1],
        tensors=len(tensors),
        rows=len(weights),
        latency=np.ascontiguousarray(latency),
        rivals=np.ascontiguousarray(problem.machine.conflicts),
        before=np.array(before, dtype=np.int64),
        reads_at=np.cumsum([0, *(len(row) for row in rows)]).astype(np.int64),
        reads=np.array([tensor for row in rows for tensor in row], dtype=np.int64),
        readers=np.array(readers, dtype=np.int64),
        producer=np.array([local.get(lists.producer[tensor], -1) for tensor in tensors], dtype=np.int64),
        cost=np.ascontiguousarray(problem.transfer_us[tensors]),
        place=np.append(machine.place, machine.host),
        mates=np.array([(1 << np.flatnonzero(machine.place == place)).sum() for place in machine.place]),
        launch=np.ascontiguousarray(machine.launch_us),
        lag=np.append(machine.end_us, 0.0),
        export_us=export,
        tail_us=np.array([tail[op] for op in part]),
        weights=weights,
        work=work,
        independent=independent,
        most_lag=float(machine.end_us.max()),
    )
    return piece, gate


def _solve_piece(piece: Struct, gate: list[int], detour: np.ndarray, sources: int, budget: Budget) -> Solved:
    """For each processor of the entry op and of the last op: the best ending found, and a proven bound.

    The bound of an ending may lie below its optimum where the ending is not worth having (see ``detour``).
    """
    endings: list[list[Ending]] = []
    path = (piece.latency.min(axis=1) + piece.tail_us).max()
    lows = np.full((sources, piece.processors), max(path, piece.work.sum(axis=1).max()))
    for source in range(sources):
        found, complete = _grow(piece, gate, source, math.inf, BEAM, budget)
        limit = math.inf
        if not complete:
            known = np.array([end.us for end in found])
            limit = float((known[:, None] + detour).min(axis=0).max())
            if limit < math.inf and budget.left() > 0:
                better, complete = _grow(piece, gate, source, limit, 0, budget)
                found = [min(pair, key=lambda end: end.us) for pair in zip(found, better, strict=True)]
        endings.append(found)
        if complete:
            # An ending that takes longer than the detour from a better one is worth no more than that detour.
            lows[source] = [min(limit, end.us) for end in found]
    return endings, lows


def _grow(
    piece: Struct, gate: list[int], source: int, limit: float, beam: int, budget: Budget
) -> tuple[list[Ending], bool]:
    """Grow labels level by level; with a ``beam`` only the most promising survive.

    Returns:
        The best ending per processor of the last op, and whether nothing was left out.
    """
    m, host = piece.latency.shape
    labels = _labels(1, piece)
    for tensor, kind in enumerate(gate):
        labels.where[0, tensor] = {0: (0, 0), 1: (1 << source, source), 2: (0, host)}[kind]
    history: list[Past] = []
    complete = True
    effort = 0
    for level in range(m):
        if not beam and (budget.left() <= 0 or effort > EFFORT):
            return [NONE] * host, False
        children = _labels(min(ROOM, len(labels.done) * m * host), piece)
        count = library().hope_expand(piece.ctypes, labels.ctypes, children.ctypes, limit)
        if count <= 0:  # below: there was no room for them
            return [NONE] * host, complete and count == 0
        effort += count
        kept = np.lexsort((children.bound[:count], children.done[:count]))
        if level < m - 1:
            # Complete labels differ in where the last op ran, which matters to the next piece.
            kept = kept[: library().hope_undominated(piece.ctypes, kept.ctypes, len(kept), children.ctypes)]
        if beam and len(kept) > beam:
            complete = False
            kept = kept[np.argsort(children.bound[kept], kind="stable")[:beam]]
        labels = Struct("Labels", count=len(kept), **{name: of[kept] for name, of in children.arrays().items()})
        history.append((labels.parent, labels.op, labels.processor))
    return [_ending(labels, history, target) for target in range(host)], complete


def _labels(count: int, piece: Struct) -> Struct:
    """Space for so many labels of a piece."""
    return zeros(
        "Labels",
        count=count,
        **dict.fromkeys(("done", "latest", "peak", "bound", "parent", "op", "processor"), count),
        free=(count, piece.processors),
        finish=(count, piece.ops),
        where=(count, piece.tensors, 2),
    )


def _ending(labels: Struct, history: list[Past], target: int) -> Ending:
    """The best complete label whose last op ran on a processor."""
    found = np.flatnonzero(labels.processor == target)
    if len(found) == 0:
        return NONE
    label = int(found[np.argmin(labels.peak[found])])
    us, plan = float(labels.peak[label]), []
    for parent, op, processor in reversed(history):
        plan.append((int(op[label]), int(processor[label])))
        label = int(parent[label])
    return Ending(us, tuple(reversed(plan)))

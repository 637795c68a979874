"""A problem and the state of one plan as flat arrays, for the kernels.

All kernels share two structs, of which ``native/arrays.h`` says what they hold: the problem (``Arrays``), which nobody
changes, and one plan of it with scratch space for one trial (``State``). How an op is computed is its *mode*: in one
part or several, each with its processor. A whole op has one part; only where a problem knows how its ops may be cut
(`judge.ways`) is there room for more.
"""

from collections.abc import Sequence

import numpy as np

from planner_api.planning.judge.ways import FIELDS, HOME, PARTS, ways_of
from planner_api.planning.native import Struct, zeros
from planner_api.planning.problem import FloatArray, IntArray, Problem

DRAWS = 32
"""Random numbers that one move may use."""


def arrays(problem: Problem) -> Struct:
    """Flatten a problem for the kernels."""
    lists, machine = problem.lists, problem.machine
    n, p = problem.latency_us.shape
    export = np.where(machine.carried[machine.place, machine.host], 0.0, problem.export_us)
    length = problem.most_at_once
    return Struct(
        "Arrays",
        ops=n,
        processors=p,
        places=len(machine.places),
        front=2 * machine.uses.shape[1] * length + len(machine.queues) + 1,
        latency=problem.latency_us.copy(order="C"),
        share=problem.shares.copy(order="C"),
        vary=np.ones((n, p)),
        rivals=np.ascontiguousarray(problem.machine.conflicts),
        place=np.ascontiguousarray(machine.place),
        launch=np.ascontiguousarray(machine.launch_us),
        lag=machine.end_us,
        slow=machine.slowdown - 1.0,
        producer=np.ascontiguousarray(problem.producer),
        cost=np.ascontiguousarray(problem.transfer_us),
        busy=np.ascontiguousarray(machine.busy),
        carried=np.ascontiguousarray(machine.carried),
        hop=np.ascontiguousarray(machine.hops),
        host=machine.host,
        length=length,
        slots=machine.uses.shape[1] * length,
        release=np.ascontiguousarray(problem.release_us),
        due=problem.due_us.copy(),
        is_output=np.ascontiguousarray(problem.is_output),
        **_flattened(
            uses=[np.flatnonzero(row).tolist() for row in machine.uses],
            near=[np.flatnonzero(row).tolist() for row in machine.near],
            reads=lists.reads,
            writes=lists.writes,
            readers=lists.readers,
            before=lists.before,
            after=lists.after,
        ),
        export=export,
        tail=tails(problem, export, problem.due_us),
        queued=bool((machine.busy >= 0).any()),
        launches=bool(machine.launch_us.any()),
        waits=problem.share is not None
        or bool(machine.queues)
        or machine.hop is not None
        or len(set(machine.place.tolist())) < p,
        cuttable=bool(problem.choices.axes),
        most=problem.choices.most_parts,
        width=problem.choices.most_parts * FIELDS,
        columns=len(machine.places) + (p if machine.launch_us.any() else 0),
        ways=ways_of(problem),
    )


def _flattened(**nested: Sequence[Sequence[int]]) -> dict[str, IntArray]:
    """Of each ``x`` the fields ``x`` and ``x_at`` of ``Arrays``."""
    flat: dict[str, IntArray] = {}
    for name, rows in nested.items():
        flat[f"{name}_at"] = np.cumsum([0, *map(len, rows)], dtype=np.int64)
        flat[name] = np.fromiter((item for row in rows for item in row), dtype=np.int64)
    return flat


def tails(problem: Problem, export: FloatArray, due: FloatArray) -> FloatArray:
    """(n,) the shortest that can follow each op's finish, less what is due."""
    ideal = problem.choices.ideal_us.tolist()
    tail = problem.lists.ways_on(problem.lists.order, ideal, (export.min(axis=1) - due).tolist())
    return np.array([tail[op] for op in range(len(tail))])


def state(problem: Problem, a: Struct, assignment: Sequence[int], sequence: Sequence[int]) -> Struct:
    """Room for a plan of the problem, flattened as ``a``, that begins with whole ops, not timed yet."""
    n, k, hops = a.ops, a.most, problem.machine.most_hops
    table = len(a.producer) * k * a.columns
    noted = (1 + hops) * k * k * len(a.reads) + hops * len(a.producer) * k
    fresh = zeros(
        "State",
        **dict.fromkeys(("mode", "undo", "best"), (n, k, FIELDS)),
        **dict.fromkeys(("sequence", "position", "best_sequence", "start", "done", "changed", "touched"), n),
        **dict.fromkeys(("finish", "spent", "old_finish", "new_spent", "through"), n * k),
        **dict.fromkeys(("holder", "key", "when", "mark", "new_key", "new_when"), table),
        log=(noted, 2),
        paid=noted,
        **dict.fromkeys(("front_at", "new_front"), (n + 1, a.front)),
        front=a.front,
        next_at=(n + 1, 2 * a.slots),
        bypass_at=n + 1,
        way=hops + 1,
        turns=problem.machine.uses.shape[1],
        draws=DRAWS,
        counts=3,
    )
    for mode in (fresh.mode, fresh.undo, fresh.best):
        mode[:, 0, HOME], mode[:, 0, PARTS] = assignment, 1
    fresh.sequence[:] = fresh.best_sequence[:] = sequence
    fresh.position[fresh.sequence] = np.arange(n)
    fresh.holder.fill(n)
    fresh.front_at[0, -1] = -np.inf
    fresh.bypass_at.fill(-np.inf)
    return fresh

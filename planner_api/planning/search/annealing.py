"""Windowed simulated annealing over modes and order with an incremental evaluator.

A window is a stretch of consecutive positions in start-time order. Inside it, ops change how they are computed (where,
or in which parts) and their order; what lies before is frozen, and what lies after enters through tails (longest paths
to the end of the accepted plan), so that one move costs about one window of work instead of one plan. Where every op
takes its processors whole and no queue carries moves, tails are exact; elsewhere they are a guide, and the round that
ran the window times it anew. The kernels are in ``native/annealing.c``.
"""

from collections.abc import Sequence

import numpy as np

from planner_api.planning.judge.arrays import arrays, state
from planner_api.planning.judge.ways import HOME
from planner_api.planning.native import Struct, library
from planner_api.planning.problem import IntArray, Problem


def _reduced(ufunc: np.ufunc, values: np.ndarray, at: IntArray, nothing: float) -> np.ndarray:
    """A ufunc's reduction of each ``values[at[i]:at[i + 1]]``; ``nothing`` of an empty one."""
    result = np.full(len(at) - 1, nothing, dtype=values.dtype)
    full = at[1:] > at[:-1]
    if full.any():
        result[full] = ufunc.reduceat(values, at[:-1][full])
    return result


class Kernels:
    """The kernels on one plan of a problem; who reads the plan calls `evaluate` first.

    Args:
        problem: with its cutter.
        assignment: the plan to begin with: processor of each op,
        sequence: and their order.

    Attributes:
        a: the problem, as the kernels see it.
        s: the plan: a state that they work on.
    """

    def __init__(self, problem: Problem, assignment: Sequence[int], sequence: Sequence[int]) -> None:
        self.a = a = arrays(problem)
        self.s = state(problem, a, assignment, sequence)
        n, nothing = a.ops, np.zeros(0, dtype=np.int64)
        fields = dict.fromkeys(("reach_move", "reach_change", "far", "crossing"), nothing)
        self._everything = Struct("Window", crossings=0, low=0, high=n, saving=np.zeros(0), **fields)
        self._tensors = np.arange(len(a.producer))

    def evaluate(self) -> float:
        """Time the whole plan; see `simulator` for the rules. Modes and sequence are read, everything else is filled.

        Returns:
            The largest ``done - due``: with nothing due the makespan in microseconds.
        """
        s = self.s
        s.holder.fill(len(s.sequence))
        for scratch in (s.mark, s.turns, s.touched):
            scratch.fill(0)
        return self._run(self._everything, 0, 1.0, 1.0, np.ones(1, dtype=np.uint64))

    def anneal(self, low: int, high: int, moves: int, hot: float, cold: float, random: np.ndarray) -> float:
        """Anneal the positions from ``low`` to ``high`` of a timed plan, from ``hot`` to ``cold`` microseconds.

        ``random`` is one word of state. The plan is left with the best modes and order met, its times with those of the
        last one accepted; returned is the window's best value, as the tails see it.
        """
        return self._run(self._window(low, high), moves, hot, cold, random)

    def holds_on(self, op: int) -> bool:
        """Whether a chained op reads nothing but the same parts of what it reads; else it is not chained."""
        return bool(library().hope_holds_on(self.a.ctypes, self.s.ctypes, op))

    def _run(self, w: Struct, moves: int, hot: float, cold: float, random: np.ndarray) -> float:
        structs = self.a.ctypes, self.s.ctypes, w.ctypes
        return float(library().hope_anneal(*structs, moves, hot, cold, random.ctypes))

    def _window(self, low: int, high: int) -> Struct:
        """What lies around a window: how far its ops reach, and what crosses its end."""
        a, s = self.a, self.s
        n = len(s.sequence)
        last = _reduced(np.maximum, s.position[a.readers], a.readers_at, -1)
        reach_move = np.maximum(_reduced(np.maximum, last[a.reads], a.reads_at, -1) + 1, high)
        reach_change = np.maximum(_reduced(np.maximum, last[a.writes], a.writes_at, -1) + 1, reach_move)
        end = int(reach_change[s.sequence[low:high]].max())
        far = _reduced(np.maximum, s.position[a.after], a.after_at, -1)
        home = np.where(a.producer >= 0, a.place[s.mode[a.producer, 0, HOME]], a.host)
        paid = a.cost[self._tensors, home]
        if a.launches:
            paid = np.hstack([paid, np.broadcast_to(a.launch, (len(paid), len(a.launch)))])
        paying = ((s.holder >= high) & (s.holder < n)).reshape(len(self._tensors), a.most, a.columns).any(axis=1)
        late = np.where(paying, paid, 0.0).sum(axis=1)
        near = s.sequence[low:end]
        crossing = near[far[near] >= high]
        return Struct(
            "Window",
            crossings=len(crossing),
            low=low,
            high=high,
            reach_move=reach_move,
            reach_change=reach_change,
            saving=_reduced(np.add, late[a.reads], a.reads_at, 0) + _reduced(np.add, late[a.writes], a.writes_at, 0),
            far=far,
            crossing=crossing,
        )

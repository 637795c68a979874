"""A plan with cuts, and how it is carried over to other cuts, so that little has to be found anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hope_schema import Cut
from hope_schema.cutting import Piece
from planner_api.planning.judge.simulator import Schedule, simulate
from planner_api.planning.problem import Problem
from planner_api.planning.problem.cuts import cut_problem

Cuts = Mapping[str, Cut]
"""By op."""


@dataclass(frozen=True)
class CutPlan:
    """Cuts, the problem that they make, what its ops are, and a schedule of it."""

    cuts: Cuts
    problem: Problem
    pieces: Sequence[Piece]
    schedule: Schedule


def carried(problem: Problem, cuts: Cuts, homes: Mapping[str, Sequence[int]], before: CutPlan) -> CutPlan:
    """A plan with other cuts, as much like the one before as they allow.

    Args:
        problem: without cuts.
        cuts: what is cut now.
        homes: processors of the parts of ops (of the op itself, where it is whole) that were not cut into as many.
        before: the plan to start from. What stands in both keeps its processor and its turn.

    Raises:
        CutError: a cut that cannot be made.
    """
    cut, made = cut_problem(problem, tuple(cuts.values()))
    old = {_key(piece): op for op, piece in enumerate(before.pieces)}
    lists = cut.lists
    kept: dict[int, int] = {}
    turn = [0.0] * len(made)
    for op in lists.order:
        piece = made[op]
        known = old.get(_key(piece))
        if known is not None:
            kept[op] = before.schedule.assignment[known]
        elif piece.kind in ("whole", "part"):
            known = old.get(("whole", piece.op), old.get(("part", piece.op, 0)))
        turn[op] = max([turn[earlier] for earlier in lists.before[op]], default=0.0)
        if known is not None:
            turn[op] = max(turn[op], before.schedule.start_us[known])
    home = homes_of(cut, made, homes, kept)
    place = {op: index for index, op in enumerate(lists.order)}
    sequence = sorted(range(len(made)), key=lambda op: (turn[op], place[op]))
    return CutPlan(cuts, cut, made, simulate(cut, home, sequence))


def homes_of(
    cut: Problem, made: Sequence[Piece], homes: Mapping[str, Sequence[int]], kept: Mapping[int, int] | None = None
) -> list[int]:
    """A processor for every op of a cut problem: parts where ``homes`` says, slices and joins where they move least.

    What ``kept`` names stays there. A slice is made where what it reads is, a join where it is read first.
    """
    home = [-1] * len(made)
    for op in cut.lists.order:
        piece = made[op]
        if kept and op in kept:
            home[op] = kept[op]
        elif piece.kind in ("whole", "part"):
            home[op] = homes[piece.op][piece.index]
        elif piece.kind == "slice" and cut.lists.before[op]:
            home[op] = home[cut.lists.before[op][0]]
    for op in reversed(cut.lists.order):
        if home[op] < 0:
            home[op] = home[(cut.lists.after[op] or cut.lists.before[op])[0]]
    return home


def _key(piece: Piece) -> tuple[object, ...]:
    """What makes pieces of two problems the same."""
    if piece.kind == "whole":
        return "whole", piece.op
    return ("part", piece.op, piece.index) if piece.kind == "part" else (piece.kind, piece.writes[0])

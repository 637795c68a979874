"""A plan with cuts, and how it is made of what a search found."""

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
    """Cuts, the problem that they make, and a schedule of it."""

    cuts: Cuts
    problem: Problem
    schedule: Schedule


def realised(
    problem: Problem, cuts: Cuts, homes: Mapping[str, Sequence[int]], begin_us: Mapping[str, Sequence[float]]
) -> CutPlan:
    """The plan that makes these cuts.

    Args:
        problem: without cuts.
        cuts: by op.
        homes: processors of the parts of every op, or its own.
        begin_us: about when they begin; slices are made behind what they are of, joins before those that read them.

    Raises:
        CutError: a cut that cannot be made.
    """
    cut, made = cut_problem(problem, tuple(cuts.values()))
    lists = cut.lists
    turn = [0.0] * len(made)
    for op, piece in enumerate(made):
        if piece.kind in ("whole", "part"):
            turn[op] = begin_us[piece.op][piece.index]
    for op in reversed(lists.order):
        if made[op].kind == "join":
            turn[op] = min((turn[later] for later in lists.after[op]), default=0.0)
    for op in lists.order:
        if made[op].kind in ("slice", "join"):
            turn[op] = max([turn[op], *(turn[earlier] for earlier in lists.before[op])])
    place = {op: index for index, op in enumerate(lists.order)}
    sequence = sorted(range(len(made)), key=lambda op: (turn[op], place[op]))
    return CutPlan(cuts, cut, simulate(cut, homes_of(cut, made, homes, turn), sequence))


def homes_of(
    cut: Problem, made: Sequence[Piece], homes: Mapping[str, Sequence[int]], turn: Sequence[float] | None = None
) -> list[int]:
    """A processor for every op of a cut problem: parts where ``homes`` says, slices and joins where they move least.

    A slice is made where what it reads is, or stands anyway because somebody else reads it there; a join where it is
    read first.
    """
    home = [-1] * len(made)
    for op in cut.lists.order:
        piece = made[op]
        if piece.kind in ("whole", "part"):
            home[op] = homes[piece.op][piece.index]
        elif piece.kind == "slice" and cut.lists.before[op]:
            home[op] = home[cut.lists.before[op][0]]
    for op in reversed(cut.lists.order):
        if home[op] < 0:
            readers = cut.lists.after[op] or cut.lists.before[op][:1]
            home[op] = home[min(readers, key=turn.__getitem__) if turn else readers[0]]
    for op, piece in enumerate(made):
        if piece.kind == "slice":
            there = {home[reader] for reader in cut.lists.after[op]}
            others = {home[other] for other in cut.lists.readers[cut.reads[op][0]] if made[other].kind != "slice"}
            if len(there) == 1 and there <= others:
                (home[op],) = there
    return home

"""Where an op can be at all, once transfers that do not exist are taken into account."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np

from planner_api.planning.problem import BoolArray, PlanningError, Problem


def prune(problem: Problem) -> Problem:
    """Take from each op the processors on which its inputs, readers or outputs could never be served.

    The optimum is untouched.

    Raises:
        PlanningError: an op has no placement left; names the tensor that cannot move.
    """
    if np.isfinite(problem.transfer_us).all():
        return problem
    possible = _Arcs(problem).possible()
    if (possible == np.isfinite(problem.latency_us)).all():
        return problem
    return dataclasses.replace(problem, latency_us=np.where(possible, problem.latency_us, math.inf))


def any_placement(problem: Problem) -> list[int]:
    """Some placement in which every tensor can move where it is read, where constructive methods run into a dead end.

    Each op goes to the fastest processor that leaves all others a placement.

    Raises:
        PlanningError: an op has none.
    """
    arcs = _Arcs(problem)
    possible = arcs.possible()
    for op in problem.lists.order:
        able = np.flatnonzero(possible[op])
        if len(able) > 1:
            possible = arcs.settled(possible, op, sorted(able, key=problem.latency_us[op].__getitem__))
    return [int(here) for here in possible.argmax(axis=1)]


class _Arcs:
    """Arc consistency: a placement goes when a neighbour has none left that a tensor can move from or to.

    Ops that lose one are looked at again with their neighbours, until none does.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.moves = np.isfinite(problem.transfer_us)
        self.edges: list[list[tuple[int, int, int]]] = [[] for _ in problem.ops]
        for tensor in np.flatnonzero(~self.moves.all(axis=(1, 2)) & (problem.producer >= 0)).tolist():
            producer = problem.lists.producer[tensor]
            for reader in problem.lists.readers[tensor]:
                for op in (producer, reader):
                    self.edges[op].append((producer, tensor, reader))

    def possible(self) -> BoolArray:
        """(n, P) where ops can be."""
        lists, place, host = self.problem.lists, self.problem.machine.place, self.problem.machine.host
        possible = np.isfinite(self.problem.latency_us)
        for tensor in range(len(lists.producer)):
            if lists.producer[tensor] < 0:
                for op in lists.readers[tensor]:
                    self._keep(possible, op, self.moves[tensor, host, place], tensor)
        for tensor in lists.outputs:
            if lists.producer[tensor] >= 0:
                self._keep(possible, lists.producer[tensor], self.moves[tensor, place, host], tensor)
        self.spread(possible, lists.order)
        return possible

    def spread(self, possible: BoolArray, ops: Iterable[int]) -> None:
        """Take away what placements that some ops lost leave no partner."""
        place = self.problem.machine.place
        lost = dict.fromkeys(ops)
        while lost:
            for producer, tensor, reader in self.edges[lost.popitem()[0]]:
                matrix = self.moves[tensor][place[:, None], place]
                if self._keep(possible, reader, matrix[possible[producer]].any(axis=0), tensor):
                    lost[reader] = None
                if self._keep(possible, producer, matrix[:, possible[reader]].any(axis=1), tensor):
                    lost[producer] = None

    def _keep(self, possible: BoolArray, op: int, kept: BoolArray, tensor: int) -> bool:
        """Take from an op the placements that are not kept: whether there were any."""
        before = possible[op].copy()
        possible[op] &= kept
        if not possible[op].any():
            producer, names = int(self.problem.producer[tensor]), self.problem.ops
            source = f"op '{names[producer]}'" if producer >= 0 and producer != op else "the host"
            raise PlanningError(
                f"tensor '{self.problem.tensors[tensor]}' cannot move between {source} and op '{names[op]}': "
                f"no transfer was measured between any two processors that can run them, nor a row to fit one from"
            )
        return bool((possible[op] != before).any())

    def settled(self, possible: BoolArray, op: int, able: Sequence[int]) -> BoolArray:
        """What is possible with an op on the first of some processors that leaves all others a placement."""
        for processor in able:
            found = possible.copy()
            found[op] = False
            found[op, processor] = True
            with suppress(PlanningError):
                self.spread(found, [op])
                return found
        raise PlanningError("transfers are missing, and no placement that does without them was found")

"""Small networks of convolutions whose parts cost what a rule says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hope_schema.cutting import CutError, Node, Region, Span
from planner_api.planning import Machine, Problem
from planner_api.planning.problem.arrays import FloatArray
from planner_api.planning.problem.choices import Cutter, Shape

FIXED, MOVE_US, ELEMENT_US = 0.05, 2.0, 0.01


def cuttable(
    latency_us: list[list[float]],
    before: list[list[int]],
    rows: int = 10,
    *,
    mixes: bool = True,
    least: int = 0,
    machine: Machine | None = None,
    home_us: float = 0.0,
    columns: int = 4,
) -> Problem:
    """Convolutions of 3x3 over ten channels; op k reads the ops ``before[k]``, or the input.

    A part must read ``least`` rows: a window may not be larger than what it looks at. Outputs take ``home_us`` to the
    host.
    """
    latency = np.array(latency_us)
    n, p = latency.shape
    machine = machine or Machine.apart([f"p{k}" for k in range(p)])
    names = ["x", *(f"t{k}" for k in range(n))]
    shapes: dict[str, Shape] = dict.fromkeys(names, (1, 10, rows, columns))
    reads = [[names[earlier + 1] for earlier in ops] or ["x"] for ops in before]

    def granularity(axis: int) -> int:
        if axis not in (1, 2, 3):
            raise CutError("stays whole along this axis")
        return 1

    def node(op: int) -> Node:
        def needs(part: Region) -> dict[str, Region | None]:
            spans = []
            for axis, start, stop in part.spans:
                if axis == 1:
                    spans += [] if mixes else [Span(axis, start, stop)]
                    continue
                spans.append(Span(axis, max(0, start - 1), min((rows, columns)[axis - 2], stop + 1)))
                if axis == 2 and spans[-1].stop - spans[-1].start < least:
                    raise CutError("its window is larger than the part")
            return dict.fromkeys(reads[op], Region(tuple(spans)) if spans else None)

        return Node(f"t{op}", tuple(reads[op]), (f"t{op}",), granularity, needs)

    def move_us(tensor: str, shape: Shape) -> FloatArray:
        places = len(machine.places)
        cost = np.full((places, places), MOVE_US + ELEMENT_US * float(np.prod(shape)))
        cost[machine.host, :], cost[:, machine.host] = 0.0, home_us
        np.fill_diagonal(cost, 0.0)
        return cost

    def part_us(op: int, part: Region) -> FloatArray:
        share = np.prod(part.shape(shapes["x"])) / np.prod(shapes["x"])
        found: FloatArray = latency[op] * (FIXED + (1 - FIXED) * share)
        return found

    read = {earlier for ops in before for earlier in ops}
    problem = Problem(
        machine=machine,
        ops=tuple(f"t{k}" for k in range(n)),
        latency_us=latency,
        producer=np.arange(-1, n),
        reads=tuple(tuple(earlier + 1 for earlier in ops) or (0,) for ops in before),
        is_output=np.array([False, *(k not in read for k in range(n))]),
        transfer_us=np.stack([move_us(name, shapes[name]) for name in names]),
        tensors=tuple(names),
    )
    nodes = tuple(node(op) for op in range(n))
    return replace(problem, cutter=Cutter(nodes, shapes, part_us, lambda *_: np.zeros(p), move_us))

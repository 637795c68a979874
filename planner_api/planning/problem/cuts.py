"""A problem with some of its ops cut: parts, slices and joins are ops like any other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hope_schema import HOST, Cut
from hope_schema.cutting import Piece, pieces
from planner_api.planning.problem.arrays import FloatArray
from planner_api.planning.problem.choices import WHOLE, Shape
from planner_api.planning.problem.machine import Machine
from planner_api.planning.problem.problem import Problem


def cut_problem(problem: Problem, cuts: Sequence[Cut]) -> tuple[Problem, list[Piece]]:
    """The problem with its cuts made, and what each of its ops is of the one without.

    Raises:
        CutError: a cut that cannot be made.
    """
    cutter, lists = problem.cutter, problem.lists
    index = {node.id: op for op, node in enumerate(cutter.nodes)}
    known = {name: tensor for tensor, name in enumerate(problem.tensors)}
    outputs = {problem.tensors[tensor] for tensor in lists.outputs}
    made = pieces(cutter.nodes, cuts, cutter.shapes, outputs)

    inputs = [name for name in problem.tensors if problem.producer[known[name]] < 0]
    shapes: dict[str, Shape] = {name: cutter.shapes[name] for name in inputs}
    whole: dict[str, str] = dict(zip(inputs, inputs, strict=True))
    read: set[str] = set()  # what else is joined is an output, which is stored part by part
    for piece in reversed(made):
        if piece.kind in ("whole", "part") or not read.isdisjoint(piece.writes):
            read.update(piece.reads)
    stored_us = _stored_us(problem.machine)
    latency, source = [], []
    for piece in made:
        source.append(index[piece.op] if piece.kind in ("whole", "part") else -1)
        if piece.kind == "whole":
            shapes |= {name: cutter.shapes[name] for name in piece.writes}
            whole |= {name: name for name in piece.writes}
            latency.append(problem.latency_us[source[-1]])
            continue
        assert piece.region is not None
        name = piece.writes[0]
        tensor = cutter.nodes[source[-1]].writes[0] if piece.kind == "part" else piece.op
        base = cutter.shapes[tensor] if piece.kind == "part" else shapes[piece.reads[0]]
        shapes[name], whole[name] = piece.region.shape(base), tensor
        if piece.kind == "part":
            runs = np.isfinite(problem.latency_us[source[-1]])
            latency.append(np.where(runs, cutter.part_us(source[-1], piece.region), np.inf))
        elif name in read:
            given = tuple(shapes[one] for one in piece.reads)
            latency.append(cutter.glue_us(tensor, shapes[name], piece.region.axes, given))
        else:
            latency.append(stored_us)

    tensors = tuple(shapes)
    place = {name: tensor for tensor, name in enumerate(tensors)}
    producer = np.full(len(tensors), -1, dtype=np.int64)
    for op, piece in enumerate(made):
        for name in piece.writes:
            producer[place[name]] = op
    transfer = np.stack(
        [
            problem.transfer_us[known[name]] if name in known else cutter.move_us(whole[name], shapes[name])
            for name in tensors
        ]
    )
    kept, wholes = np.array(source), np.array([piece.kind == "whole" for piece in made])

    def carried(values: FloatArray | None, default: float) -> FloatArray | None:
        """What holds of an op holds of its parts; slices and joins take the default."""
        return None if values is None else np.where(kept[:, None] < 0, default, values[kept])

    near = [min(of, default=0) if maker < 0 else maker for maker, of in zip(lists.producer, lists.readers, strict=True)]
    owner = [problem.job_of[near[known[piece.op]] if op < 0 else op] for op, piece in zip(source, made, strict=True)]
    cut = replace(
        problem,
        ops=tuple(piece.writes[0] if piece.kind != "whole" else piece.op for piece in made),
        latency_us=np.array(latency),
        producer=producer,
        reads=tuple(tuple(dict.fromkeys(place[name] for name in piece.reads)) for piece in made),
        is_output=np.array([name in outputs for name in tensors], dtype=np.bool_),
        transfer_us=transfer,
        tensors=tensors,
        share=carried(problem.share, 1.0),
        recipes=(),
        job=None if problem.job is None else np.array(owner),
        in_parts=None if problem.in_parts is None else problem.in_parts[kept] & wholes[:, None],
        predicted_spread=carried(problem.predicted_spread, 0.0),
        cutter=WHOLE,
        earlier=None,
    )
    return cut, made


def _stored_us(machine: Machine) -> FloatArray:
    """(P,) what putting an output together takes: nothing, on the host, where a processor computes there."""
    there = np.array([machine.places[place].partition("/")[0] == HOST for place in machine.place])
    return np.where(there | (not there.any()), 0.0, np.inf)


def homes_of(
    cut: Problem, made: Sequence[Piece], homes: Mapping[str, Sequence[int]], turn: Sequence[float] | None = None
) -> list[int]:
    """A processor for every op of a cut problem: parts where ``homes`` says, slices and joins where they move least.

    A slice is made where what it reads is, or stands anyway because somebody else reads it there; a join where it is
    read first, an output's on the host. So nobody is sent more of a network's input than it reads.
    """
    machine = cut.machine
    device = np.flatnonzero(machine.owners[machine.place] == machine.owners[machine.host])
    home = [-1] * len(made)
    for op in cut.lists.order:
        piece = made[op]
        if piece.kind in ("whole", "part"):
            home[op] = homes[piece.op][piece.index]
        elif piece.kind == "slice" and cut.lists.before[op]:
            home[op] = home[cut.lists.before[op][0]]
    for op in reversed(cut.lists.order):
        if home[op] < 0:
            near = cut.lists.after[op] or cut.lists.before[op][:1]
            by = min(near, key=turn.__getitem__) if turn else near[0]
            while home[by] < 0:  # an output is joined of joins
                by = cut.lists.before[by][0]
            home[op] = home[by]
            if made[op].kind == "slice" and home[op] not in device and len(device):  # of an input
                moved = cut.transfer_us[cut.reads[op][0], machine.host, machine.place[device]]
                home[op] = int(device[(cut.latency_us[op, device] + moved).argmin()])
            elif not np.isfinite(cut.latency_us[op, home[op]]):  # an output
                home[op] = int(np.where(np.isfinite(cut.latency_us[op]), machine.uses.sum(axis=1), np.inf).argmin())
    for op, piece in enumerate(made):
        if piece.kind == "slice":
            there = {home[reader] for reader in cut.lists.after[op]}
            others = [home[other] for other in cut.lists.readers[cut.reads[op][0]] if made[other].kind != "slice"]
            if len(there) == 1 and {*machine.place[[*there]]} <= {*machine.place[others]}:
                (home[op],) = there
    return home

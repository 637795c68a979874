"""What splits gain: ops computed in parts on several processors, on their own and in chains.

    python -m benchmarks.splits --phones DIR --machine --pair vgg19,resnet50 --json splits.json

The phones are simulated. The rule: a part of an op takes ``FIXED`` of what the whole op takes, wherever it runs, and
its share of the rest; slices and joins are views and take nothing; what is moved of a tensor costs what the direction's
line says of so many elements. Windows and types are read from the names of ops, as `benchmarks.prediction` does.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks import cli, split_machine
from benchmarks.phones import REFERENCE, replay
from benchmarks.prediction import phone_features
from benchmarks.profiles import CPU, GPU, BadProfile, PhoneProfile, find, phone_problem
from benchmarks.results import Found, Table, TableRow, joined, judged, report
from hope_schema.cutting import CutError, Node, Region, Span
from planner_api.planning import Budget, PlanningError, Problem, check, optimise
from planner_api.planning.problem.arrays import FloatArray
from planner_api.planning.problem.choices import Cutter, Shape
from planner_api.planning.problem.transfers import elements, fit
from planner_api.prediction.features import POOLS, Features

BUDGET_S = 10.0
"""Per plan: what the figures that must hold are for."""
FIXED = 0.05
"""Of an op's latency: what each of its parts takes however small it is."""
CHAIN = 3
"""Convolutions of one resolution in a chain like VGG's."""
CHANNELS, ROWS, COLUMNS = 1, 2, 3
IMAGE = (ROWS, COLUMNS)
AXES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys((*POOLS, "Relu", "Add", "Conv", "DepthwiseConv"), (CHANNELS, *IMAGE)),
    **dict.fromkeys(("Concat", "BatchNormalization", "Layout"), IMAGE),
}
"""Along which ops are cut, by type."""


def phone_cutter(profile: PhoneProfile, problem: Problem) -> Cutter:
    """How the ops of a phone's network can be cut, and what that costs by the stated rule."""
    ops = [phone_features(profile, row) for row in profile.ops]
    shapes = {name: tuple(max(1, size) for size in shape) for name, shape in profile.shapes.items()}
    nodes = []
    for op, (row, found) in enumerate(zip(profile.ops, ops, strict=True)):
        writes = tuple(name for name in row["outputs"])
        reads = tuple(problem.tensors[tensor] for tensor in problem.reads[op])
        kinds = [shapes[name] for name in reads]
        nodes.append(
            Node(
                row["name"],
                reads,
                writes,
                partial(granularity, found.type),
                partial(needs, found, dict(zip(reads, kinds, strict=True)), shapes[writes[0]]),
            )
        )
    lines = {}
    for direction, source, target in (("cpu_to_gpu", CPU, GPU), ("gpu_to_cpu", GPU, CPU)):
        known = {tuple(row["shape"]): float(row[direction]) for row in profile.transfers}
        lines[source, target] = fit([elements(shape) for shape in known], list(known.values()))

    def move_us(tensor: str, shape: tuple[int, ...]) -> FloatArray:
        costs = np.zeros((3, 3))
        for way, line in lines.items():
            costs[way] = line.cost_us(elements(shape))
        return costs

    return Cutter(
        tuple(nodes), shapes, parts_by_share(nodes, shapes, problem.latency_us), lambda *_: np.zeros(2), move_us
    )


def parts_by_share(
    nodes: Sequence[Node], shapes: Mapping[str, Shape], latency_us: FloatArray
) -> Callable[[int, Region], FloatArray]:
    """What a part takes by the stated rule: ``FIXED`` of its op's latency, and its share of the rest."""

    def part_us(op: int, region: Region) -> FloatArray:
        whole = shapes[nodes[op].writes[0]]
        share = math.prod(region.shape(whole)) / math.prod(whole)
        part: FloatArray = latency_us[op] * (FIXED + (1 - FIXED) * share)
        return part

    return part_us


def granularity(type_: str, axis: int) -> int:
    """Borders of the ops that can be cut lie anywhere."""
    if axis not in AXES.get(type_, ()):
        raise CutError(f"{type_} stays whole along axis {axis}")
    return 1


def needs(op: Features, kinds: Mapping[str, Shape], out: Shape, part: Region) -> dict[str, Region | None]:
    """What a part reads: with "same" padding where there is any."""
    found: dict[str, Region | None] = {}
    for name, shape in kinds.items():
        if len(shape) != 4 or len(out) != 4:
            raise CutError("no image")
        spans = []
        for axis, first, last in part.spans:
            if axis == CHANNELS:
                spans += [] if op.type == "Conv" else [Span(axis, first, last)]
                continue
            size, stride = op.kernel[axis - ROWS], op.stride
            pad = max(0, (out[axis] - 1) * stride + size - shape[axis]) // 2
            start, stop = max(0, first * stride - pad), min(shape[axis], (last - 1) * stride - pad + size)
            if start >= stop:
                raise CutError("a part of padding alone")
            spans.append(Span(axis, start, stop))
        found[name] = Region(tuple(spans)) if spans else None
    return found


def chain(profile: PhoneProfile) -> PhoneProfile | None:
    """VGG's shape on this phone: its heaviest square convolutions, ``CHAIN`` of each resolution, one behind the other.

    They keep their figures, and each reads what the one before writes; where that is larger, at a stride. None where a
    network has no two of them.
    """
    by_size: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for op, row in enumerate(profile.ops):
        found = phone_features(profile, row)
        if found.type == "Conv" and found.kernel[0] == found.kernel[1] > 1:
            by_size[tuple(profile.shapes[row["outputs"][0]][2:])].append(op)

    def us(op: int) -> float:
        return min(float(value) for value in profile.ops[op]["latency_us"].values() if value is not None)

    chosen = [op for size in sorted(by_size, reverse=True) for op in sorted(sorted(by_size[size], key=us)[-CHAIN:])]
    if len(chosen) < 2:
        return None
    ops, before = [], profile.ops[chosen[0]]["inputs"][:1]
    for op in chosen:
        ops.append({**profile.ops[op], "inputs": before})
        before = profile.ops[op]["outputs"][:1]
    return replace(profile, stem=f"{profile.stem} chain", ops=ops, plans={})


def phones(profiles: Sequence[PhoneProfile], options: argparse.Namespace) -> Found:
    """Plans with cuts over the authors' HOPE:LP, and chains of convolutions over the best single processor."""
    lines: list[TableRow] = []
    over: dict[str, list[float]] = {"lp": [], "chain": []}
    print(
        f"{'profile':34} {'cpu':12} {'reference':>12} {'codl':>8} {'whole':>8} {'cuts':>8} {'cut ops':>8} {'bound':>8}"
    )
    for profile in profiles:
        for cpu in profile.cpus:
            authors = profile.plans.get(f"{REFERENCE}/{cpu}")
            if authors:
                problem = phone_problem(profile, cpu)
                lines.append(_line(profile, cpu, problem, replay(problem, authors), options))
                over["lp"].append(float(lines[-1][5] or 0))
        linked, cpu = chain(profile), profile.usual
        if linked is None:
            continue
        problem = phone_problem(linked, cpu)
        single = float(problem.latency_us.sum(axis=0).min())
        if not np.isfinite(single):
            print(f"{linked.stem:34} {cpu:12} no single processor runs all of it")
            continue
        lines.append(_line(linked, cpu, problem, single, options))
        over["chain"].append(float(lines[-1][5] or 0))
    measures = []
    spent = {"budget": options.budget, "least": BUDGET_S}
    if over["lp"]:
        measures.append(judged("phones: ours with splits / authors' HOPE:LP, mean", fmean(over["lp"]), 0.82, **spent))
    if over["chain"]:
        measures.append(
            judged("phones: chains of convolutions / best single processor, mean", fmean(over["chain"]), 0.70, **spent)
        )
    columns = ["profile", "CPU", "reference, ms", "codl", "ours, whole ops", "ours with splits", "ops cut", "bound"]
    return measures, [Table("Splits on phones: over the authors' HOPE:LP; chains: over one processor", columns, lines)]


def _line(
    profile: PhoneProfile, cpu: str, problem: Problem, reference_us: float, options: argparse.Namespace
) -> TableRow:
    """One problem planned with and without cuts, every plan checked."""
    problem = replace(problem, cutter=phone_cutter(profile, problem))
    budget = partial(Budget, options.budget, seed=options.seed)
    whole = problem.whole
    found = [optimise(problem, "codl", budget()).solution, optimise(whole, "auto", budget()).solution]
    best = optimise(problem, "auto", budget())
    for solution in (*found, best.solution):
        check(solution.cut or problem, solution.schedule)
    ratios = [solution.schedule.makespan_us / reference_us for solution in (*found, best.solution)]
    cut, bound = len(best.solution.cuts), best.bound.us / reference_us
    print(
        f"{profile.stem:34} {cpu:12} {reference_us / 1e3:12.2f} "
        + " ".join(f"{ratio:8.3f}" for ratio in ratios)
        + f" {cut:8} {bound:8.3f}",
        flush=True,
    )
    shown = [round(ratio, 3) for ratio in (*ratios, bound)]
    return [profile.stem, cpu, round(reference_us / 1e3, 1), *shown[:-1], cut, shown[-1]]


def on_pair(names: Sequence[str]) -> Found:
    """Networks without branches on a small GPU and the cores beside it."""
    from benchmarks import pair  # torch takes seconds to import

    found = [row for name in names for row in pair.rows(name)]
    columns = ["model", "config", "median_us", "ratio_to_best_single", "predicted_us", "overlap", "segments", "cuts"]
    table = Table("Splits on a GPU and the cores beside it", columns, [[row[key] for key in columns] for row in found])
    return pair.verdicts(found), [table]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what was asked for."""
    parser = cli.measuring("splits", __doc__)
    parser.add_argument("--phones", type=Path, metavar="DIR", help="folder of <phone>--<model>.json files")
    parser.add_argument("--machine", action="store_true", help="measure on two cores of this machine too")
    parser.add_argument("--pair", type=cli.names, default=[], help="networks on a GPU and the cores")
    parser.add_argument("--models", type=cli.names, default=[], help="models or file stems")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds per plan; default: 10")
    parser.add_argument("--seed", type=int, default=0, help="of the search; default: 0")
    options = parser.parse_args(arguments)
    found: list[Found] = []
    try:
        if options.phones:
            found.append(phones(find(options.phones, options.models), options))
        if options.machine:
            found.append(split_machine.machine())
        if options.pair:
            found.append(on_pair(options.pair))
    except (BadProfile, PlanningError) as error:
        parser.error(str(error))
    report(options.json, *joined(found))


if __name__ == "__main__":
    main()

"""What else the planner must show: HOPE's subproblems, the bound, three processors, networks on synthetic profiles.

    python -m benchmarks.planning DIR

It begins with what a machine waits for on which nothing is compiled yet.
Every line ends with what the figure must be.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

import numpy as np

from agent_sdk.model import read_model
from agent_sdk.native import building
from benchmarks import cli
from benchmarks.profiles import GPU, BadProfile, PhoneProfile, find, phone_problem
from benchmarks.results import verdict
from hope_schema import (
    HOST,
    LatencyColumns,
    ModelGraph,
    Processor,
    Profile,
    SuperOp,
    TensorType,
    TransferColumns,
    merge,
)
from hope_zoo import shipped
from planner_api.planning import Budget, Machine, PlanningError, Problem, build_problem, check, optimise
from planner_api.planning.bound import lower_bound
from planner_api.planning.ilp import PART_SECONDS, solve_part
from planner_api.planning.ilp.partition import partition
from planner_api.planning.judge.simulator import Decoder
from planner_api.planning.methods import solve

SPECIAL = ("Conv2D", "separable_conv2d", "depthwise")
"""Endings of the op names that the third processor supports."""


def with_third_processor(profile: PhoneProfile, cpu: str) -> Problem:
    """CPU, GPU, and one that runs only convolutions, twice as fast as the GPU, with the GPU's transfers.

    A move between the GPU and the third processor goes through the CPU's layout: it costs both ways.
    """
    two = phone_problem(profile, cpu)
    special = np.array([name.endswith(SPECIAL) for name in two.ops])
    third = np.where(special, two.latency_us[:, GPU] / 2, math.inf)
    transfer = np.zeros((len(two.tensors), 4, 4))
    transfer[:, 0, (1, 2)] = two.transfer_us[:, 0, 1, None]
    transfer[:, (1, 2), 0] = two.transfer_us[:, 1, 0, None]
    transfer[:, 1, 2] = transfer[:, 2, 1] = two.transfer_us[:, 0, 1] + two.transfer_us[:, 1, 0]
    return replace(
        two,
        machine=Machine.apart(("cpu", "gpu", "npu")),
        latency_us=np.column_stack([two.latency_us, third]),
        transfer_us=transfer,
    )


def work(super_op: SuperOp) -> float:
    """Multiply-adds of a super-op, roughly: output elements times what each weight tensor holds per output channel."""
    graph, total = super_op.graph, 0.0
    for op in super_op.ops:
        made = graph.tensor[op.id].elements
        per_element = sum(p.elements / max(p.shape[0], 1) for p in op.parameters if len(p.shape) > 1)
        total += made * max(per_element, 1.0)
    return total


def synthetic_profile(graph: ModelGraph, seed: int) -> Profile:
    """A CPU and a GPU of similar strength whose preferences differ from op to op."""
    random = np.random.default_rng(seed)
    places = [
        Processor(id=name, runtime=name, version="1", threads=1, core_class=name, resources=(name,), place=name)
        for name in ("cpu", "gpu")
    ]
    latency: dict[tuple[str, str], float] = {}
    types: dict[TensorType, None] = {}
    for super_op in merge(graph):
        base = work(super_op) / 20_000 + 5.0
        for place, fixed in zip(places, (0.0, 30.0), strict=True):
            latency.setdefault((super_op.signature, place.kind), base * float(random.lognormal(0.0, 0.4)) + fixed)
        types.update(dict.fromkeys(super_op.types((*super_op.inputs, *super_op.outputs))))
    spots = [HOST, *(place.id for place in places)]
    moves = [(t, a, b, 20.0 + t.bytes / 4000) for t in types for a in spots for b in spots if a != b]
    return Profile(
        soc="synthetic",
        frequency=f"seed{seed}",
        processors=tuple(places),
        latencies=LatencyColumns(
            signature=tuple(key[0] for key in latency),
            kind=tuple(key[1] for key in latency),
            us=tuple(latency.values()),
            spread_us=(0.0,) * len(latency),
            count=(1,) * len(latency),
        ),
        transfers=TransferColumns(
            tensor=tuple(row[0] for row in moves),
            source=tuple(row[1] for row in moves),
            target=tuple(row[2] for row in moves),
            us=tuple(row[3] for row in moves),
            spread_us=(0.0,) * len(moves),
            count=(1,) * len(moves),
        ),
        version=1,
    )


def subproblems(profiles: Sequence[PhoneProfile]) -> None:
    """Time HiGHS on every part that HOPE's partitioning makes, each after the parts before it."""
    seconds: list[tuple[int, float]] = []
    for profile in profiles:
        problem = phone_problem(profile, profile.cpus[-1])
        fixed = Decoder(problem)
        for part in partition(problem.lists.order, problem.lists.before):
            began = time.perf_counter()
            fixed, _ = solve_part(problem, fixed, part, PART_SECONDS)
            seconds.append((len(part), time.perf_counter() - began))
    for label, chosen in (
        ("parts of 10 to 12 ops", [t for n, t in seconds if 10 <= n <= 12]),
        ("all parts", [t for _, t in seconds]),
    ):
        if len(chosen) > 1:
            print(f"HOPE subproblems, {label}: n {len(chosen)}, median {median(chosen):.3f} s")
            verdict("  p90, seconds", quantiles(chosen, n=10)[-1], 0.5)
            verdict("  slowest, seconds", max(chosen), 1.0)


def bounds(profiles: Sequence[PhoneProfile]) -> None:
    """Time the lower bound on the largest network of each phone."""
    for profile in profiles:
        problem = phone_problem(profile, profile.cpus[-1])
        began = time.perf_counter()
        bound = lower_bound(problem, Budget(60.0))
        taken = time.perf_counter() - began
        print(f"{profile.stem}, {len(problem.ops)} ops: {bound.us / 1e3:.1f} ms by {bound.method}")
        verdict("  bound, seconds", taken, 3.0)


def three_processors(profiles: Sequence[PhoneProfile], budget: float) -> None:
    """Three processors on the NASNets."""
    for profile in profiles:
        problem = with_third_processor(profile, profile.cpus[-1])
        heft = solve(problem, "heft", Budget(0.0)).schedule.makespan_us
        outcome = optimise(problem, "auto", Budget(budget))
        check(problem, outcome.solution.schedule)
        ours = outcome.solution.schedule.makespan_us
        gap = ours / outcome.bound.us - 1
        print(f"{profile.stem}, three processors: {ours / 1e3:.1f} ms, HEFT {heft / 1e3:.1f} ms, gap {gap:.1%}")
        verdict("  makespan / HEFT", ours / heft, 0.85)


def synthetic(budget: float, seeds: int) -> None:
    """SqueezeNet and ResNet50 as the onnx package ships them, on seeded profiles."""
    for name in ("squeezenet", "resnet50"):
        graph = read_model(shipped.FOLDER / shipped.FILES[name]).graph
        for seed in range(seeds):
            problem = build_problem(graph, synthetic_profile(graph, seed))
            began = time.perf_counter()
            outcome = optimise(problem, "auto", Budget(budget))
            taken = time.perf_counter() - began
            ours = outcome.solution.schedule.makespan_us
            print(f"{name}, seed {seed}, {len(problem.ops)} super-ops: {ours / 1e3:.2f} ms, {taken:.2f} s")
            verdict("  gap", ours / outcome.bound.us - 1, 0.01)


def kernels() -> None:
    """The planner's kernels as an installation makes them."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        why = building.build(Path(folder) / "kernels.so", building.KERNELS)
        print(f"kernels: {why or 'built'}")
        verdict("  seconds to compile them", time.perf_counter() - began, 6.0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every section."""
    parser = cli.parser("planning", __doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of <phone>--<model>.json files")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds per synthetic plan; default: 5")
    parser.add_argument("--long-budget", type=float, default=30.0, help="seconds with three processors; default: 30")
    parser.add_argument("--seeds", type=int, default=3, help="synthetic profiles per network; default: 3")
    options = parser.parse_args(arguments)
    try:
        profiles = find(options.folder)
        kernels()
        largest = [profile for profile in profiles if len(profile.ops) > 1000]
        optimise(phone_problem(profiles[0], profiles[0].cpus[-1]), "auto", Budget(1.0))  # compile before timing
        synthetic(options.budget, options.seeds)
        bounds(largest)
        subproblems(profiles)
        three_processors([p for p in largest if p.model == "nasnet-large"], options.long_budget)
    except (BadProfile, PlanningError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()

"""Machines beyond HOPE's: core groups that share cores, a GPU that runs several ops at once, sixty processors.

    python -m benchmarks.machine DIR --json benchmarks/results/machine.json

Graphs and latencies are those of measured phones; what no phone has is made up by the rules below. Every schedule is
proven legal by the checker. Every line ends with what the figure must be.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks import cli
from benchmarks.profiles import CPU, GPU, BadProfile, PhoneProfile, find, phone_problem
from benchmarks.results import Measure, report, verdict
from planner_api.planning import Budget, Machine, PlanningError, Problem, check, optimise
from planner_api.planning.optimise import Outcome

NASNET = "nasnet-large"
GROUPS = ((4, ((0, 1, 2, 3),)), (2, ((0, 1), (2, 3))), (1, ((0,), (1,), (2,), (3,))))
"""Big cores a group has, and the groups of that size."""
AT_ONCE = 6
"""Ops that the synthetic GPU runs at once, if they are small."""
CORES = 16
MANY_OPS = 550
EFFICIENCY = {1: 1.0, 2: 0.66, 4: 0.49, 8: 0.42, 16: 0.45}
"""NASNet-mobile on so many of sixteen server cores, over one: small ops gain little from threads."""
SERVER = 0.2
"""A server's core over a phone's big one."""
SECONDS_GREEDY, SECONDS_AUTO, GIB = 0.3, 5.0, 1024.0**3


def core_groups(profile: PhoneProfile) -> Problem:
    """Four big cores as one group, two and four, which share one memory, and the GPU."""
    by_size = {
        int(cpu.rsplit("_", 1)[-1]): phone_problem(profile, cpu)
        for cpu in profile.cpus
        if cpu.rsplit("_", 1)[-1].isdigit()
    }
    base = by_size[4]
    names, columns, uses = [], [], []
    for size, groups in GROUPS:
        for cores in groups:
            names.append(f"cpu@{'-'.join(map(str, cores))}")
            columns.append(by_size[size].latency_us[:, CPU])
            uses.append([core in cores for core in range(4)] + [False])
    names.append("gpu")
    columns.append(base.latency_us[:, GPU])
    uses.append([False] * 4 + [True])
    p = len(names)
    machine = Machine(
        processors=tuple(names),
        uses=np.array(uses),
        places=base.machine.places,
        place=np.array([CPU] * (p - 1) + [GPU]),
        busy=base.machine.busy.copy(),
        queues=(),
        launch_us=np.zeros(p),
        end_us=np.zeros(p),
        slowdown=np.ones(p),
        memory=np.zeros(p, dtype=np.int64),
    )
    return replace(base, machine=machine, latency_us=np.column_stack(columns))


def shared_gpu(profile: PhoneProfile) -> Problem:
    """The GPU alone, of which an op takes the more, from a sixth to all, the longer it runs."""
    base = phone_problem(profile, profile.cpus[-1])
    latency = base.latency_us[:, GPU]
    finite = np.isfinite(latency)
    full = np.quantile(latency[finite], 0.9)
    latency = np.where(finite, latency, base.latency_us[:, CPU])
    return replace(
        base,
        machine=Machine.apart(("gpu",)),
        latency_us=latency[:, None],
        share=np.clip(latency / full, 1 / AT_ONCE, 1.0)[:, None],
        transfer_us=np.zeros((len(base.tensors), 2, 2)),
    )


def sixteen_cores(profile: PhoneProfile) -> Problem:
    """Two runtimes on all sixteen cores, on halves, quarters, pairs and single ones: 62 processors in two layouts."""
    base = phone_problem(profile, profile.cpus[0])
    order = base.lists.order[:MANY_OPS]
    index = {op: k for k, op in enumerate(order)}
    kept = [t for t, op in enumerate(base.producer.tolist()) if op in index or op < 0]
    tensor = {t: k for k, t in enumerate(kept)}
    random = np.random.default_rng(0)
    names, uses, place, columns = [], [], [], []
    single = base.latency_us[order, CPU] * SERVER
    for runtime in range(2):
        taste = np.exp(random.normal(0.0, 0.25, len(order)))
        for size, part in EFFICIENCY.items():
            grain = np.exp(random.normal(0.0, 0.1, len(order)))
            for first in range(0, CORES, size):
                names.append(f"{('ort', 'ov')[runtime]}@{first}-{first + size - 1}")
                uses.append([first <= core < first + size for core in range(CORES)])
                place.append(1 + runtime)
                columns.append(single * part * taste * grain)
    p = len(names)
    reads = [base.reads[op] for op in order]
    read = {t for row in reads for t in row}
    move = np.zeros((len(kept), 3, 3))
    move[:, 1, 2] = move[:, 2, 1] = random.uniform(3.0, 30.0, len(kept))
    return Problem(
        machine=Machine(
            processors=tuple(names),
            uses=np.array(uses),
            places=("host", "host/ort", "host/openvino"),
            place=np.array(place),
            busy=np.full((3, 3), -1),
            queues=(),
            launch_us=np.full(p, 8.0),
            end_us=np.full(p, 6.0),
            slowdown=np.full(p, 1.15),
            memory=np.zeros(p, dtype=np.int64),
        ),
        ops=tuple(base.ops[op] for op in order),
        latency_us=np.column_stack(columns),
        producer=np.array([index.get(int(base.producer[t]), -1) for t in kept]),
        reads=tuple(tuple(tensor[t] for t in row) for row in reads),
        is_output=np.array([base.producer[t] in index and t not in read for t in kept]),
        transfer_us=move,
        tensors=tuple(base.tensors[t] for t in kept),
    )


def planned(problem: Problem, method: str, budget: float) -> tuple[Outcome, float]:
    """A plan, proven legal, and the seconds it took."""
    began = time.perf_counter()
    outcome = optimise(problem, method, Budget(budget))
    seconds = time.perf_counter() - began
    check(problem, outcome.solution.schedule)
    return outcome, seconds


def run(profiles: Sequence[PhoneProfile], budget: float) -> list[Measure]:
    """Every figure."""
    found = []
    ratios = []
    for profile in [one for one in profiles if one.model == NASNET]:
        alone = min(
            planned(phone_problem(profile, cpu), "auto", budget)[0].solution.schedule.makespan_us
            for cpu in profile.cpus
        )
        outcome, _ = planned(core_groups(profile), "auto", budget)
        us = outcome.solution.schedule.makespan_us
        gap = us / outcome.bound.us - 1
        print(f"{profile.stem}: {us / 1e3:.1f} ms on groups, {alone / 1e3:.1f} ms on one, gap {gap:.1%}")
        ratios.append(us / alone)
    found.append(verdict("core groups + GPU / best plan with one group, nasnet-large, worst", max(ratios), 0.97))
    gaps = []
    for profile in [one for one in profiles if one.model == NASNET]:
        outcome, _ = planned(shared_gpu(profile), "auto", budget)
        us = outcome.solution.schedule.makespan_us
        serial = float(shared_gpu(profile).latency_us.sum())
        print(f"{profile.stem}: {us / 1e3:.1f} ms on a shared GPU, one after the other {serial / 1e3:.1f} ms")
        gaps.append(us / outcome.bound.us)
    found.append(verdict("GPU with shares, nasnet-large, plan / bound, worst", max(gaps), 1.15))
    wide = sixteen_cores(next(one for one in profiles if one.model == "pnasnet-mobile"))
    print(f"{len(wide.processors)} processors, {len(wide.ops)} super-ops")
    _, seconds = planned(wide, "greedy", 0.0)
    found.append(verdict("sixty processors: greedy, seconds", seconds, SECONDS_GREEDY))
    outcome, seconds = planned(wide, "auto", SECONDS_AUTO)
    us = outcome.solution.schedule.makespan_us
    best = min(plan.makespan_us for plan in outcome.singles.values())
    print(f"  auto: {us / 1e3:.2f} ms, best processor {best / 1e3:.2f} ms, bound {outcome.bound.us / 1e3:.2f} ms")
    found.append(verdict("sixty processors: auto, seconds", seconds, 1.1 * SECONDS_AUTO))
    found.append(verdict("sixty processors: auto / best processor", us / best, 1.0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
    found.append(verdict("peak memory of all this, GiB", peak, 1.0))
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every row."""
    parser = cli.measuring("machine", __doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of <phone>--<model>.json files")
    parser.add_argument("--budget", type=float, default=5.0, help="seconds per plan; default: 5")
    options = parser.parse_args(arguments)
    try:
        measures = run(find(options.folder), options.budget)
    except (BadProfile, PlanningError) as error:
        parser.error(str(error))
    report(options.json, measures)


if __name__ == "__main__":
    main()

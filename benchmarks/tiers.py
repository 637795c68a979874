"""Device, edge and cloud in simulated time: ours beside D3's HPA, DADS, Neurosurgeon and each tier alone.

    python -m benchmarks.tiers DIR --json tiers.json

The device is a measured phone, CPU and GPU. The edge is a desktop, all its cores or two halves, the cloud a GPU: the
phone's times on its cores over what they are faster by (``SPEED``), each op with a taste of its own, and launches.
Links are D3's Table III, each a queue that sends or receives; a move takes a fixed time and its bytes. All plans are
timed by the one simulator, with the network's input on the device and its output back there. What crosses *the
backbone* goes to or from the cloud.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np

from benchmarks import cli
from benchmarks.profiles import CPU, GPU, BadProfile, PhoneProfile, find, phone_problem
from benchmarks.results import Measure, Table, TableRow, report, verdict
from planner_api.planning import Budget, Machine, PlanningError, Problem, Schedule, check, optimise, simulate
from planner_api.planning.bound import quick_bound
from planner_api.planning.methods import solve
from planner_api.planning.problem.machine import routes
from planner_api.planning.search.search import Search

TIERS = ("device", "edge", "cloud")
EDGE = ("edge@0-5", "edge@0-2", "edge@3-5")
SPEED = (7.0, 4.5, 4.5, 60.0)
"""How much faster the edge's cores, each half of them and the cloud are than a phone's cores."""
LAUNCH_US = (0.0, 0.0, 5.0, 5.0, 5.0, 30.0)
CLOUD = 3
"""Where its memory stands among the places."""
TASTE = 0.25
"""Spread of what an op prefers, as the logarithm's standard deviation."""
LAN_MBPS = 84.95
BACKBONE_MBPS = {"Wi-Fi": (31.53, 18.75), "4G": (13.79, 6.12), "5G": (22.75, 11.64), "optical": (50.23, 18.75)}
"""Table III: edge to cloud, and device to cloud (beside an optical network the phone's own Wi-Fi)."""
FIXED_US = 300.0
"""Of every move over a link, however small."""
FLOAT_BYTES = 4
OTHERS = ("neurosurgeon", "dads", "hpa")
STEP = 0.25
"""What of its bandwidth is left of the backbone where links change."""


def three_hosts(profile: PhoneProfile, backbone: tuple[float, float], share: float = 1.0) -> Problem:
    """A phone's network over three hosts; of the backbone's bandwidth a ``share`` is there."""
    base = phone_problem(profile, profile.usual)
    random = np.random.default_rng(0)
    phone = base.latency_us[:, CPU]
    columns = [*base.latency_us.T, *(phone / speed * np.exp(random.normal(0.0, TASTE, len(phone))) for speed in SPEED)]
    edge_cloud, device_cloud = (mbps * share for mbps in backbone)
    host, gpu, edge, cloud = range(4)
    links = {(host, edge): LAN_MBPS, (edge, cloud): edge_cloud, (host, cloud): device_cloud}
    direct = np.full((len(base.tensors), 4, 4), np.inf)
    direct[:, range(4), range(4)] = 0.0
    direct[:, host, gpu], direct[:, gpu, host] = base.transfer_us[:, CPU, GPU], base.transfer_us[:, GPU, CPU]
    sizes = np.array([FLOAT_BYTES * np.prod(profile.shapes[name], dtype=float) for name in base.tensors])
    busy = np.full((4, 4), -1)
    for queue, ((one, other), mbps) in enumerate(links.items()):
        direct[:, one, other] = direct[:, other, one] = FIXED_US + sizes * 8 / mbps
        busy[one, other] = busy[other, one] = queue
    machine = Machine(
        processors=("cpu", "gpu", *EDGE, "cloud"),
        uses=np.array([[use in used for use in range(5)] for used in ((0,), (1,), (2, 3), (2,), (3,), (4,))]),
        places=("host", "gpu", "edge:host", "cloud:host"),
        place=np.array([host, gpu, edge, edge, edge, cloud]),
        busy=busy,
        queues=("device-edge", "edge-cloud", "device-cloud"),
        launch_us=np.array(LAUNCH_US),
        end_us=np.zeros(6),
        slowdown=np.ones(6),
        memory=np.array([0, 0, 1, 1, 1, 2]),
        hop=routes(direct.mean(axis=0), np.zeros((4, 4), dtype=bool)),
        owner=np.array([0, 0, 1, 2]),
    )
    return replace(base, machine=machine, latency_us=np.column_stack(columns), transfer_us=machine.along(direct))


def backbone_bytes(problem: Problem, profile: PhoneProfile, schedule: Schedule) -> float:
    """What a plan moves to and from the cloud."""
    moved = (move.tensor for move in schedule.transfers if CLOUD in (move.source, move.target))
    return sum(FLOAT_BYTES * float(np.prod(profile.shapes[problem.tensors[tensor]])) for tensor in moved)


def run(profiles: Sequence[PhoneProfile], budget: float) -> tuple[list[Measure], list[Table]]:
    """Every network at every bandwidth."""
    lines: list[TableRow] = []
    ratios: dict[str, list[float]] = {name: [] for name in ("single", "bytes", *OTHERS)}
    for profile in profiles:
        for name, backbone in BACKBONE_MBPS.items():
            problem = three_hosts(profile, backbone)
            n, owner = len(problem.ops), problem.machine.owner
            assert owner is not None
            each = [simulate(problem, [p] * n, problem.lists.order) for p in range(problem.host)]
            hosts = owner[problem.machine.place].tolist()
            alone = [
                min((each[p] for p in range(problem.host) if hosts[p] == host), key=lambda plan: plan.makespan_us)
                for host in range(3)
            ]
            others = {method: solve(problem, method, Budget(0.0)).schedule for method in OTHERS}
            ours = optimise(problem, "auto", Budget(budget)).solution.schedule
            for schedule in (*alone, *others.values(), ours):
                check(problem, schedule)
            best = min(plan.makespan_us for plan in alone)
            ratios["single"].append(ours.makespan_us / best)
            ratios["bytes"].append(backbone_bytes(problem, profile, ours) / backbone_bytes(problem, profile, alone[2]))
            for method, plan in others.items():
                ratios[method].append(ours.makespan_us / plan.makespan_us)
            shown = [plan.makespan_us / 1e3 for plan in (*alone, *others.values(), ours)]
            lines.append([profile.stem, name, *shown, ours.makespan_us / best, quick_bound(problem).us / best])
            print(f"{profile.stem:28} {name:8}", *(f"{ms:9.1f}" for ms in shown), flush=True)
    found = [
        verdict("ours / best single tier, mean", fmean(ratios["single"]), 0.60),
        verdict("ours / best single tier, worst", max(ratios["single"]), 1.02),
        *(verdict(f"ours / {method}, mean", fmean(ratios[method]), 0.95) for method in OTHERS),
        verdict("bytes over the backbone / cloud only, mean", fmean(ratios["bytes"]), 0.6),
    ]
    columns = ["network", "backbone", *TIERS, *OTHERS, "auto", "auto / best tier", "bound / best tier"]
    return found, [Table("Simulated: milliseconds over device, edge and cloud", columns, lines)]


def stepped(profile: PhoneProfile, budget: float) -> list[Measure]:
    """The backbone loses three quarters of its bandwidth: re-planned around its moves, and anew."""
    before, after = (three_hosts(profile, BACKBONE_MBPS["Wi-Fi"], share) for share in (1.0, STEP))
    old = optimise(before, "auto", Budget(budget)).solution.schedule
    began = time.perf_counter()
    anew = optimise(after, "auto", Budget(budget)).solution.schedule
    anew_s = time.perf_counter() - began
    began = time.perf_counter()
    crossing = {move.tensor for move in old.transfers if CLOUD in (move.source, move.target)}
    near = {op for tensor in crossing for op in (*after.lists.readers[tensor], after.lists.producer[tensor]) if op >= 0}
    start = simulate(after, old.assignment, old.sequence)
    search = Search(after, start, 0, near=near)
    search.run(Budget(0.08 * anew_s), 0.0)
    local_s = time.perf_counter() - began
    print(f"{profile.stem}: {start.value_us / 1e3:.1f} ms as it was, {search.value_us / 1e3:.1f} ms locally, "
          f"{anew.value_us / 1e3:.1f} ms anew")  # fmt: skip
    return [
        verdict(f"{profile.stem}: re-planned locally / anew, time", local_s / anew_s, 0.1),
        verdict(f"{profile.stem}: re-planned locally / anew, makespan", search.value_us / anew.value_us, 1.03),
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run every row."""
    parser = cli.measuring("tiers", __doc__)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of <phone>--<model>.json files")
    parser.add_argument("--models", type=cli.names, default=[], help="models or file stems; default: all")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds per plan; default: 2")
    options = parser.parse_args(arguments)
    try:
        profiles = find(options.folder, options.models)
        measures, tables = run(profiles, options.budget)
        for profile in profiles:
            if profile.model == "inception-v4":
                measures += stepped(profile, options.budget)
    except (BadProfile, PlanningError) as error:
        parser.error(str(error))
    report(options.json, measures, tables)


if __name__ == "__main__":
    main()

"""Device, edge and cloud in simulated time: ours beside D3's HPA, DADS, Neurosurgeon and each tier alone.

    python -m benchmarks.tiers DIR --json tiers.json

The device is a measured phone, CPU and GPU. The edge is a desktop, all its cores or two halves, the cloud a GPU: the
phone's times on its cores over what they are faster by (``SPEED``), each op with a taste of its own, and launches.
Links are D3's Table III, each a queue that sends or receives, and those from the phone to edges are one radio. A move
takes a fixed time and its bytes. All plans are timed by the one simulator, with the network's input on the device and
its output back there. What crosses *the backbone* goes to or from the cloud.

Single tiers and the methods of others send float32, as their papers have it. Ours may cut ops, and so send an input in
parts: parts take what `benchmarks.splits` says. It is planned three times: so, where float32 may cross as float16, and
where further the edge is four such desktops on Gigabit Ethernet (D3's Figure 12), all of them reached over the radio.
There `vsm`, D3's HPA with tiles, is planned as well, in float32. At last VGG-16's convolutions over four equal hosts
beside one, whatever they are linked by.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
import onnx

from agent_sdk.model import read_model
from agent_sdk.model.work import work
from benchmarks import cli
from benchmarks.profiles import CPU, GPU, BadProfile, PhoneProfile, find, phone_problem
from benchmarks.results import Measure, Table, TableRow, report, verdict
from benchmarks.splits import parts_by_share, phone_cutter
from hope_schema import LatencyColumns, Link, Overheads, Processor, Profile, TransferColumns, merge
from hope_zoo.network import Network
from planner_api.planning import (
    Budget,
    Machine,
    PlanningError,
    Problem,
    Schedule,
    build_problem,
    check,
    optimise,
    simulate,
)
from planner_api.planning.compose import compose
from planner_api.planning.construct.tiers import Tiers, offloaded_us, partition, partition_again, tiers_of
from planner_api.planning.methods import solve
from planner_api.planning.problem import FloatArray
from planner_api.planning.problem.choices import Shape
from planner_api.planning.problem.machine import routes
from planner_api.planning.search.search import Search

TIERS = ("device", "edge", "cloud")
EDGE = ("edge@0-5", "edge@0-2", "edge@3-5")
EDGES = 4
"""Desktops of D3's Figure 12."""
SPEED = (7.0, 4.5, 4.5, 60.0)
"""How much faster the edge's cores, each half of them and the cloud are than a phone's cores."""
EDGE_LAUNCH_US, CLOUD_LAUNCH_US = 5.0, 30.0
AT_HOST, AT_GPU, AT_CLOUD, AT_EDGE = range(4)
"""Where memories stand among the places; those of further edges stand behind the first one's."""
TASTE = 0.25
"""Spread of what an op prefers, as the logarithm's standard deviation."""
LAN_MBPS = 84.95
ETHERNET_MBPS = 1000.0
"""Between edges, of which the first one is at the device's end."""
BACKBONE_MBPS = {"Wi-Fi": (31.53, 18.75), "4G": (13.79, 6.12), "5G": (22.75, 11.64), "optical": (50.23, 18.75)}
"""Table III: edge to cloud, and device to cloud (beside an optical network the phone's own Wi-Fi)."""
FIXED_US = 300.0
"""Of every move over a link, however small."""
AS_FLOAT16 = 0.001
"""Microseconds per byte of float32 that becoming float16 and float32 again takes."""
FLOAT_BYTES = 4
TILED = "vsm"
"""HPA and tiles: float32 over all edges, beside which ours over as many stands."""
OTHERS = ("neurosurgeon", "dads", "hpa", TILED)
OURS = ("ours", "ours, float16", f"ours, float16, {EDGES} edges")
PER_US = 25_000.0
"""Multiply-adds in a microsecond: a core."""
STEP = 0.25
"""What of its bandwidth is left of the backbone where links change."""


def hosts_of(
    profile: PhoneProfile, backbone: tuple[float, float], *, halved: bool = False, edges: int = 1, share: float = 1.0
) -> Problem:
    """A phone's network over the phone, some edges and a cloud; of the backbone's bandwidth a ``share`` is there.

    ``halved``: float32 may cross links as float16.
    """
    base = phone_problem(profile, profile.usual)
    random = np.random.default_rng(0)
    phone = base.latency_us[:, CPU]
    *near, cloud = (phone / speed * np.exp(random.normal(0.0, TASTE, len(phone))) for speed in SPEED)
    edge_cloud, device_cloud = (mbps * share for mbps in backbone)
    links = {(AT_EDGE, AT_CLOUD): edge_cloud, (AT_HOST, AT_CLOUD): device_cloud}
    links |= {(AT_HOST, AT_EDGE + k): LAN_MBPS for k in range(edges)}
    links |= {(AT_EDGE, AT_EDGE + k): ETHERNET_MBPS for k in range(1, edges)}
    places = AT_EDGE + edges
    queues = ["radio" if one == AT_HOST and other >= AT_EDGE else f"{one}-{other}" for one, other in links]
    names = list(dict.fromkeys(queues))
    busy = np.full((places, places), -1)
    for queue, (one, other) in zip(queues, links, strict=True):
        busy[one, other] = busy[other, one] = names.index(queue)

    def crossing(shape: Sequence[int], phones: FloatArray) -> FloatArray:
        """(L, L) what channels take for a tensor; ``phones``: on the phone."""
        cost = np.full((places, places), np.inf)
        np.fill_diagonal(cost, 0.0)
        cost[AT_HOST, AT_GPU], cost[AT_GPU, AT_HOST] = phones[CPU, GPU], phones[GPU, CPU]
        size = FLOAT_BYTES * float(np.prod(shape))
        for (one, other), mbps in links.items():
            us = size * 8 / mbps
            cost[one, other] = cost[other, one] = FIXED_US + (min(us, us / 2 + size * AS_FLOAT16) if halved else us)
        return cost

    direct = np.stack(
        [crossing(profile.shapes[name], us) for name, us in zip(base.tensors, base.transfer_us, strict=True)]
    )
    processors = ["cpu", "gpu", "cloud", *(own.replace("edge", f"edge{k + 1}") for k in range(edges) for own in EDGE)]
    cores = [own for k in range(edges) for own in ((2 * k + 3, 2 * k + 4), (2 * k + 3,), (2 * k + 4,))]
    host = [0, 0, 1, *(2 + k for k in range(edges) for _ in EDGE)]
    machine = Machine(
        processors=tuple(processors),
        uses=np.array([[use in own for use in range(3 + 2 * edges)] for own in ((0,), (1,), (2,), *cores)]),
        places=("host", "gpu", "cloud:host", *(f"edge{k + 1}:host" for k in range(edges))),
        place=np.array([AT_HOST, AT_GPU, AT_CLOUD, *(AT_EDGE + k for k in range(edges) for _ in EDGE)]),
        busy=busy,
        queues=tuple(names),
        launch_us=np.array([0.0, 0.0, CLOUD_LAUNCH_US, *[EDGE_LAUNCH_US] * (len(EDGE) * edges)]),
        end_us=np.zeros(len(processors)),
        slowdown=np.ones(len(processors)),
        memory=np.array(host),
        hop=routes(direct.mean(axis=0), np.zeros((places, places), dtype=bool)),
        owner=np.array([0, 0, 1, *(2 + k for k in range(edges))]),
    )
    latency = np.column_stack([*base.latency_us.T, cloud, *near * edges])
    problem = replace(base, machine=machine, latency_us=latency, transfer_us=machine.along(direct))
    own = phone_cutter(profile, base)

    @cache
    def move_us(tensor: str, shape: Shape) -> FloatArray:
        return machine.along(crossing(shape, own.move_us(tensor, shape)))

    cutter = replace(
        own,
        part_us=parts_by_share(own.nodes, own.shapes, latency),
        glue_us=lambda *_: np.zeros(len(processors)),
        move_us=move_us,
    )
    return replace(problem, cutter=cutter)


def backbone_bytes(schedule: Schedule, backbone: tuple[float, float]) -> float:
    """What a plan in float32 over one edge moves to and from the cloud, by how long that takes."""
    mbps = dict(zip((AT_EDGE, AT_HOST), backbone, strict=True))
    crossing = [move for move in schedule.transfers if AT_CLOUD in (move.source, move.target)]
    return sum(
        (move.finish_us - move.start_us - FIXED_US) * mbps[move.source + move.target - AT_CLOUD] / 8
        for move in crossing
    )


def planned(problem: Problem, budget: float) -> tuple[Schedule, float]:
    """Our plan, proven legal, and what no plan takes less than."""
    outcome = optimise(problem, "auto", Budget(budget))
    found = outcome.solution
    check(found.cut or problem, found.schedule)
    return found.schedule, outcome.bound.us


def run(profiles: Sequence[PhoneProfile], budget: float) -> tuple[list[Measure], list[Table]]:
    """Every network at every bandwidth."""
    lines: list[TableRow] = []
    ratios: dict[str, list[float]] = {name: [] for name in (*OURS, "bytes", *OTHERS)}
    for profile in profiles:
        for name, backbone in BACKBONE_MBPS.items():
            problem = hosts_of(profile, backbone)
            n, owner = len(problem.ops), problem.machine.owners
            each = [simulate(problem, [p] * n, problem.lists.order) for p in range(problem.host)]
            hosts = owner[problem.machine.place].tolist()
            alone = [
                min((each[p] for p in range(problem.host) if hosts[p] == host), key=lambda plan: plan.makespan_us)
                for host in (owner[AT_HOST], owner[AT_EDGE], owner[AT_CLOUD])
            ]
            others: dict[str, Schedule] = {}
            for method in OTHERS:
                asked = hosts_of(profile, backbone, edges=EDGES) if method == TILED else problem
                found = solve(asked, method, Budget(0.0))
                check(found.cut or asked, found.schedule)
                others[method] = found.schedule
            for schedule in alone:
                check(problem, schedule)
            ours, bound = planned(problem, budget)
            halved, _ = planned(hosts_of(profile, backbone, halved=True), budget)
            tiled, _ = planned(hosts_of(profile, backbone, halved=True, edges=EDGES), EDGES * budget)
            best = min(plan.makespan_us for plan in alone)
            for label, plan in zip(OURS, (ours, halved, tiled), strict=True):
                ratios[label].append(plan.makespan_us / best)
            ratios["bytes"].append(backbone_bytes(ours, backbone) / backbone_bytes(alone[2], backbone))
            for method, plan in others.items():
                ratios[method].append((tiled if method == TILED else ours).makespan_us / plan.makespan_us)
            shown = [plan.makespan_us / 1e3 for plan in (*alone, *others.values(), ours, halved, tiled)]
            lines.append([profile.stem, name, *shown, bound / best, *(ratios[label][-1] for label in OURS)])
            print(f"{profile.stem:28} {name:8}", *(f"{ms:9.1f}" for ms in shown), flush=True)
    measures = [
        *(verdict(f"{label} / best single tier, mean", fmean(ratios[label]), 0.60) for label in OURS),
        verdict("ours / best single tier, worst", max(max(ratios[label]) for label in OURS), 1.02),
        *(verdict(f"{OURS[2 * (method == TILED)]} / {method}, mean", fmean(ratios[method]), 0.95) for method in OTHERS),
        verdict("bytes over the backbone / cloud only, mean", fmean(ratios["bytes"]), 0.6),
    ]
    shares = (f"{label} / best tier" for label in ("bound", *OURS))
    columns = ["network", "backbone", *TIERS, *OTHERS, *OURS, *shares]
    return measures, [Table("Simulated: milliseconds over device, edge and cloud", columns, lines)]


def touched(tiers: Tiers, tier: Sequence[int], there: int) -> set[int]:
    """The ops that write or read what moves to a tier or from it: those that a change of its link touches first."""
    lists = tiers.problem.lists
    found: set[int] = set()
    for tensor, readers in enumerate(lists.readers):
        made = tiers.made_on(tensor, tier)
        if any(there in (made, tier[op]) and made != tier[op] for op in readers):
            found |= {*readers, lists.producer[tensor]}
    return found - {-1}


def stepped(profile: PhoneProfile, budget: float) -> list[Measure]:
    """The backbone loses three quarters of its bandwidth: re-planned around its moves, and anew."""
    before, after = (hosts_of(profile, BACKBONE_MBPS["Wi-Fi"], share=share).whole for share in (1.0, STEP))
    was, now = tiers_of(before), tiers_of(after)
    tier = partition(was)
    again, looked = partition_again(now, tier, touched(now, tier, now.us.shape[1] - 1))
    sums = [offloaded_us(now, one) for one in (again, partition(now))]
    old = optimise(before, "auto", Budget(budget)).solution.schedule
    began = time.perf_counter()
    anew = optimise(after, "auto", Budget(budget)).solution.schedule
    anew_s = time.perf_counter() - began
    began = time.perf_counter()
    moved = {move.tensor for move in old.transfers if AT_CLOUD in (move.source, move.target)}
    near = {op for tensor in moved for op in (*after.lists.readers[tensor], after.lists.producer[tensor]) if op >= 0}
    start = simulate(after, old.assignment, old.sequence)
    search = Search(after, start, 0, near=near)
    search.run(Budget(0.08 * anew_s), 0.0)
    local_s = time.perf_counter() - began
    print(f"{profile.stem}: {start.value_us / 1e3:.1f} ms as it was, {search.value_us / 1e3:.1f} ms locally, "
          f"{anew.value_us / 1e3:.1f} ms anew")  # fmt: skip
    return [
        verdict(f"{profile.stem}: re-planned locally / anew, time", local_s / anew_s, 0.1),
        verdict(f"{profile.stem}: re-planned locally / anew, makespan", search.value_us / anew.value_us, 1.03),
        verdict(f"{profile.stem}: HPA locally / anew, ops looked at", len(looked) / len(tier), 0.1),
        verdict(f"{profile.stem}: HPA locally / anew, sum of times and moves", sums[0] / sums[1], 1.03),
    ]


def stacked(budget: float) -> list[Measure]:
    """VGG-16's convolutions over equal hosts, at the links' two speeds, beside one of them."""
    found = []
    for mbps, halved in ((ETHERNET_MBPS, False), (LAN_MBPS, False), (LAN_MBPS, True)):
        one = stack_of_hosts(mbps)
        alone = simulate(one, [1] * len(one.ops), one.lists.order)
        plan, bound = planned(stack_of_hosts(mbps, halved=halved), EDGES * budget)
        where = f"links of {mbps:.0f} Mbps{', float16' if halved else ''}"
        print(f"VGG-16's convolutions, {where}: one host {alone.makespan_us / 1e3:.1f} ms, "
              f"{EDGES} hosts {plan.makespan_us / 1e3:.1f} ms, bound {bound / 1e3:.1f} ms", flush=True)  # fmt: skip
        ratio = plan.makespan_us / alone.makespan_us
        found.append(verdict(f"VGG-16's convolutions, {EDGES} hosts / 1, {where}", ratio, 0.45))
    return found


def stack_of_hosts(mbps: float, *, halved: bool = False) -> Problem:
    """VGG-16's convolutions and pools over ``EDGES`` hosts with a core each, on one link, and a device far slower."""
    graph = read_model(vgg16_stack()).graph
    core = Processor(
        id="core", runtime="ort", version="1", threads=1, core_class="core", resources=("cpu0",), place="host"
    )

    def known(soc: str, per_us: float) -> Profile:
        us = {op.signature: sum(work(graph, own) for own in op.ops) / per_us for op in merge(graph)}
        rows = LatencyColumns(
            signature=tuple(us),
            kind=(core.kind,) * len(us),
            us=tuple(us.values()),
            spread_us=(0.0,) * len(us),
            count=(1,) * len(us),
        )
        return Profile(
            soc=soc,
            frequency="now",
            processors=(core,),
            channels=(),
            latencies=rows,
            transfers=TransferColumns(),
            overheads=Overheads(),
            version=1,
        )

    names = [f"edge{k + 1}" for k in range(EDGES)]
    links = [
        Link(
            source=source,
            target=target,
            fixed_us=FIXED_US,
            us_per_byte=8 / mbps,
            float16_us_per_byte=AS_FLOAT16 if halved else None,
            busy="link",
        )
        for name in names
        for source, target in (("host", name), (name, "host"))
    ]
    profile = compose(known("device", PER_US / 100), {name: known("edge", PER_US) for name in names}, links)
    return build_problem(graph, profile, cut=True)


def vgg16_stack() -> onnx.ModelProto:
    """What stands before VGG-16's first matrix."""
    net, x = Network("vgg16-convolutions", {"input": (1, 3, 224, 224)}), "input"
    for block, (channels, layers) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))):
        for layer in range(layers):
            x = net.conv_relu(x, channels, 3, f"conv{block}_{layer}")
        x = net.max_pool(x, 2, f"pool{block}", stride=2)
    return net.topology(x).draw(0)


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
        measures += stacked(options.budget)
    except (BadProfile, PlanningError) as error:
        parser.error(str(error))
    report(options.json, measures, tables)


if __name__ == "__main__":
    main()

"""Device, edge and cloud: one network over three hosts whose links are shaped, by every method that plans over hosts.

    sudo python -m benchmarks.namespaces [--models alexnet,resnet18] [--links wifi,4g,5g] [--minutes 20] [--json FILE]

The hosts are network namespaces of this machine, made for this and removed afterwards, which takes root; elsewhere it
says so and measures nothing. Their links have the bandwidths of D3's Table III (Mbps), shaped by ``tc`` (tbf) both
ways. Their speeds are shares of a core (cgroup quotas): ``SHARES``. Device and edge have a core each, the cloud shares
the edge's. All is so while runs are timed and links measured. Figures are measured at full speed, and count for what
they take at a host's share: a quota stops a host for as long as many ops take together, which the profiler takes for
a disturbance. Ours may let float32 cross links as float16; single tiers and the methods of others send float32, as
their papers have it. No row begins once ``--minutes`` are over.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import onnx

from agent_sdk import Agent
from agent_sdk.engine import Executor, build_program
from agent_sdk.engine.program import Program
from agent_sdk.engine.single import single_processor_plan
from agent_sdk.first.child import IDLE_S
from agent_sdk.journey.trial import hold_trial
from agent_sdk.model import Model, read_model
from agent_sdk.model.feeds import Feed, draw
from agent_sdk.planner.supplier import PlanSupplier
from agent_sdk.runtimes.remote.link import Way
from agent_sdk.runtimes.remote.processor import RemoteExecutable, RemoteProcessor
from agent_sdk.scheduling.job import Job
from benchmarks import cli
from benchmarks.results import Measure, Table, report, verdict
from hope_schema import LatencyColumns, Observations, Plan, TransferColumns
from hope_schema.plan import Method
from hope_zoo.network import Network

LINKS: Final = {"wifi": (84.95, 18.75), "4g": (84.95, 6.12), "5g": (84.95, 11.64)}
"""Megabits per second from the device to the edge and to the cloud; the edge's own way to the cloud is not used."""
SHARES: Final = {"device": 0.1, "edge": 0.5, "cloud": 0.8}
"""Of a core; edge and cloud share one, and are seldom busy at once."""
FULL: Final = -1
"""No quota."""
FIRST: Final = 2**18
"""The groups' weight beside all else that runs on this machine: niceness counts only within a group."""
METHODS: Final[tuple[Method, ...]] = ("auto", "hpa", "dads", "neurosurgeon")
TIERS: Final = {"edge": "10.77.1", "cloud": "10.77.2"}
ALONE: Final = {"device": "ort@0", "edge": "edge:ort@1", "cloud": "cloud:ort@1"}
PERIOD_US: Final = 10_000
"""Of the quotas: the kernel's usual tenth of a second would be seen in every run."""
PORT: Final = 8000
TOKEN: Final = "a-token-for-the-tiers"
CGROUP: Final = Path("/sys/fs/cgroup/cpu")
MEAN: Final = 0.60
NEVER: Final = 1.02
OTHERS: Final = 0.95
BACKBONE: Final = 0.6
TRUTH: Final = 0.10
FRAMES: Final = 30
"""A second."""
TAIL: Final = 3.0
SETTLING: Final = 100
"""Runs in which a session finds out who is fastest now."""
SOLVING_S: Final = 60.0
"""Longest time that the planner's last plan is waited for."""
Columns = TypeVar("Columns", LatencyColumns, TransferColumns)


def space(tier: str) -> str:
    """The network namespace of a tier."""
    return f"hope-{tier}"


def ran(*command: str) -> None:
    """Run a command of the system. Raises CalledProcessError."""
    subprocess.run(command, check=True, capture_output=True)


def inside(tier: str, *command: str) -> list[str]:
    """A command that runs in a tier's namespace, on its share of a core."""
    share = f'echo $$ > {CGROUP / space(tier) / "cgroup.procs"} && exec "$@"'
    return ["sh", "-c", share, "sh", "nsenter", f"--net=/run/netns/{space(tier)}", *command]  # quotas stay in reach


def slow(link: str | None) -> None:
    """Give the links their bandwidths, both ways, and the hosts their shares; None: as fast as the machine is."""
    for tier, share in SHARES.items():
        quota = FULL if link is None else round(share * PERIOD_US)
        (CGROUP / space(tier) / "cpu.cfs_quota_us").write_text(str(quota))
    for index, tier in enumerate(TIERS):
        for where, device in (("device", f"to-{tier}"), (tier, "to-device")):
            in_space = ["ip", "netns", "exec", space(where), "tc", "qdisc"]
            subprocess.run([*in_space, "del", "dev", device, "root"], capture_output=True, check=False)
            if link is not None:
                rate = f"{LINKS[link][index] * 1e3:.0f}kbit"
                ran(*in_space, "add", "dev", device, "root", "tbf", "rate", rate, "burst", "32kb", "latency", "400ms")


def remove(group: Path) -> None:
    """Remove a group of processes once they have ended, which takes a moment. Raises OSError where they do not."""
    end = time.monotonic() + 10
    while (group / "cgroup.procs").read_text() and time.monotonic() < end:
        time.sleep(0.1)
    group.rmdir()


@contextmanager
def tiers() -> Iterator[None]:
    """Namespaces, links and quotas, for the block."""
    with ExitStack() as ending:
        for tier in SHARES:
            ran("ip", "netns", "add", space(tier))
            ending.callback(ran, "ip", "netns", "del", space(tier))
            group = CGROUP / space(tier)
            group.mkdir(exist_ok=True)
            ending.callback(remove, group)
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.shares").write_text(str(FIRST))
            ran("ip", "-n", space(tier), "link", "set", "lo", "up")
        for tier, network in TIERS.items():
            ends = ("device", f"to-{tier}", 1), (tier, "to-device", 2)
            names = ["name", f"to-{tier}", "netns", space("device")]
            ran("ip", "link", "add", *names, "type", "veth", "peer", "name", "to-device", "netns", space(tier))
            for where, device, host in ends:
                ran("ip", "-n", space(where), "addr", "add", f"{network}.{host}/24", "dev", device)
                ran("ip", "-n", space(where), "link", "set", device, "up")
        yield


@contextmanager
def lending(tier: str, core: int, folder: Path) -> Iterator[None]:
    """A host of its own that lends a core."""
    (folder / "tokens").write_text(TOKEN)
    command = [sys.executable, "-m", "agent_sdk.cli", "serve", "--lend", "--grpc", "off", "--soc", tier]
    command += [
        "--listen",
        f"{TIERS[tier]}.2:{PORT}",
        "--processors",
        f"ort@{core}",
        "--tokens",
        str(folder / "tokens"),
    ]
    environment = {**os.environ, "HOPE_CACHE_DIR": str(folder / tier)}
    with subprocess.Popen(inside(tier, *command), stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            said = ""
            while " at http" not in said:
                line = process.stderr.readline()
                said += line
                if not line:
                    raise SystemExit(f"namespaces: the {tier} does not start: {said}")
            yield
        finally:
            process.terminate()
            process.wait(30)


def compared(executors: Mapping[str, Executor], feed: Feed, runs: int) -> dict[str, float]:
    """Median microseconds of runs that take turns, by name; the first of each does not count."""
    times: dict[str, list[float]] = {name: [] for name in executors}
    for _ in range(runs + 1):
        for name, executor in executors.items():
            began = time.perf_counter()
            executor.run(feed)
            times[name].append((time.perf_counter() - began) * 1e6)
    return {name: statistics.median(taken[1:]) for name, taken in times.items()}


def placement(program: Program) -> Hashable:
    """What computes where: programs that agree in that are one."""
    return tuple((one.processor, frozenset(one.segment.ops), one.segment.halved) for one in program.segments)


def over_backbone(executor: Executor) -> int:
    """Bytes that a run sends to the cloud and takes from there."""
    far = [one for one in executor.executables if isinstance(one, RemoteExecutable) and one.peer.name == "cloud"]
    return sum(one.types[name].bytes for one in far for name in (*one.sent, *one.received))


def named_hosts(folder: Path) -> tuple[Path, Path]:
    """Files that name the hosts, for float32 and with float16; their figures count from now on as ``at_share`` says."""
    send = PlanSupplier.send
    PlanSupplier.send = lambda own, found, tries=None: send(own, at_share(found), tries)  # type: ignore[assignment]
    found = folder / "hosts.toml", folder / "halved.toml"
    for file, precision in zip(found, ("fp32", "fp16"), strict=True):
        file.write_text(
            "".join(
                f'[{tier}]\naddress = "http://{net}.2:{PORT}"\ntoken = "{TOKEN}"\n'
                f'plain = true\nprecision = "{precision}"\n'
                for tier, net in TIERS.items()
            )
        )
    return found


class Frozen(Way):
    """A way as it was measured: what crosses it while the links are as fast as the machine teaches nothing."""

    def learn(self, sent: int, received: int, took_us: float, part: float = 0.0) -> None:
        """Nothing."""


def on_device(
    names: Sequence[str], links: Sequence[str], runs: int, end: float, hosts: tuple[Path, Path], folder: Path
) -> list[dict[str, Any]]:
    """What is measured in the device's namespace: a row for each network and link, until ``end``."""
    rows: list[dict[str, Any]] = []
    for link, name in itertools.product(links, names):
        if rows and time.monotonic() > end:
            print(f"namespaces: no time is left for {name} over {link}", flush=True)
            continue
        model, began = read_model(name), time.monotonic()
        plans: dict[str, Plan] = {method: planned(method, link, hosts[0], folder, model) for method in METHODS[1:]}
        with reached(link, hosts[1], folder) as agent:
            plans["auto"] = best(agent, model)
            planning = time.monotonic() - began
            row = {"network": name, "link": link} | measured(agent, model, link, plans, runs)
        row |= {"seconds of planning": round(planning), "seconds": round(time.monotonic() - began)}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def camera(hosts: Path, folder: Path, seconds: float) -> dict[str, Any]:
    """What became of so many seconds of pictures, ``FRAMES`` a second, over the Wi-Fi link: lost, and the latencies."""
    jobs: list[Job] = []
    network = picture_network()
    with reached("wifi", hosts, folder) as agent:
        best(agent, read_model(network))
        with agent.load(network, background=False, in_flight=2) as session:
            time.sleep(2 * IDLE_S)  # children that tried the network end, which takes the device's share for a second
            feed = draw(session.latest.model, 0)
            with slowed("wifi"):
                for _ in range(SETTLING):  # it notices that all has become slower, and compares who may answer
                    session.run(feed)
                with agent.stream(session, feed, every_ms=1e3 / FRAMES, told=jobs.append) as stream:
                    time.sleep(seconds)
                    stream.close()
                    session.run(feed)  # behind all that were asked for
    ms = [(job.ended_ns - job.release_ns) / 1e6 for job in jobs if job.exception() is None]
    lost = stream.refused + len(jobs) - len(ms)
    done = {"frames": len(jobs) + stream.refused, "lost": lost, "answered by": session.latest.said()}
    return done | {"p50 ms": float(np.percentile(ms, 50)), "p99 ms": float(np.percentile(ms, 99))}


def picture_network() -> onnx.ModelProto:
    """Convolutions on a picture of 110 KB: too much for the device, but sent and computed within a frame's time."""
    net = Network("camera", {"input": (1, 3, 96, 96)})
    x = "input"
    for layer, (channels, stride) in enumerate(((32, 2), (128, 1), (128, 2), (128, 1))):
        x = net.conv_relu(x, channels, 3, f"conv{layer}", stride=stride)
    return net.topology(net.classify(x, 10, "logits")).draw(0)


def planned(method: Method, link: str, hosts: Path, folder: Path, model: Model) -> Plan:
    """What a method plans for these links. Raises SystemExit where it plans nothing."""
    with reached(link, hosts, folder, method) as agent:
        return best(agent, model)


def best(agent: Agent, model: Model) -> Plan:
    """The plan that nothing better follows. Raises SystemExit where there is none over hosts."""
    end = time.monotonic() + SOLVING_S
    while True:
        found = agent.obtain(model)
        if found.served is None or not found.served.reply.plan.hosts:
            raise SystemExit(f"namespaces: no plan over hosts: {'; '.join(found.notes)}")
        if not found.served.reply.provisional or time.monotonic() > end:
            return found.served.reply.plan
        time.sleep(0.5)


def measured(agent: Agent, model: Model, link: str, plans: Mapping[str, Plan], runs: int) -> dict[str, Any]:
    """Microseconds of runs of each tier alone, of each plan, and of whoever answers a session; bytes to the cloud.

    A session is opened as fast as the machine is, which changes who is best, and how late a host may be: its trial is
    held anew once all is slow, by executors that have not run yet.
    """
    lent, feed = agent.device.processors, draw(model, 0)
    alone = {tier: whole_plan(model, processor) for tier, processor in ALONE.items()}
    programs = {name: build_program(plan, model, lent) for name, plan in {**alone, **plans}.items()}
    with ExitStack() as closing:
        with agent.load(model.name, background=False, all_rivals=True) as session:
            notes = session.notes
            rivals = {f"session's {name}": one.program for name, one in session.latest.serving.contenders.items()}
            both = {**programs, **rivals}
            first = {placement(program): name for name, program in reversed(both.items())}
            same = {name: first[placement(program)] for name, program in both.items()}
            executors = {
                name: closing.enter_context(Executor(both[name], agent.device)) for name in dict.fromkeys(same.values())
            }
        with slowed(link):
            for executor in executors.values():
                executor.run(feed)
            answers = hold_trial({same[name]: executors[same[name]] for name in rivals}, feed).best
            took = compared(executors, feed, runs)
        crossed = {name: over_backbone(executor) for name, executor in executors.items()}
    same = {name: same[name] for name in programs} | {"ours": answers}
    expected = {tier: plans["hpa"].single_processor_us[processor] for tier, processor in ALONE.items()}
    expected |= {name: plan.makespan_us for name, plan in plans.items()}
    expected["ours"] = expected.get(answers) or executors[answers].program.plan.makespan_us
    bound = plans["auto"].lower_bound_us
    figures: dict[str, Any] = {name: took[own] for name, own in same.items()}
    figures |= {f"{name} planned": us for name, us in expected.items()}
    figures |= {f"{name} bytes": crossed[own] for name, own in same.items()}
    figures |= {f"{name} on": " ".join(plan.processors_used) for name, plan in plans.items()}
    return figures | {"bound": bound, "answered by": answers, "notes": notes}


def whole_plan(model: Model, processor: str) -> Plan:
    """The whole network on one processor."""
    return single_processor_plan(model.graph, processor, soc="here", frequency="now")


@contextmanager
def reached(link: str, hosts: Path, folder: Path, method: Method = "auto") -> Iterator[Agent]:
    """An agent that has measured the links as they are under way; now all is as fast as the machine."""
    with Agent(
        method=method, soc="device", processors="ort@0", hosts=hosts, cache=folder / "own", wait_s=10, measuring_s=60
    ) as agent:
        with slowed(link):
            for processor in agent.device.processors.values():
                if isinstance(processor, RemoteProcessor):
                    way = processor.host.measured_way()
                    processor.host.way = Frozen(way.host, way.fixed_us, way.there, way.back, way.as_float16)
        yield agent


@contextmanager
def slowed(link: str) -> Iterator[None]:
    """The links' bandwidths and the hosts' speeds, for the block."""
    slow(link)
    try:
        yield
    finally:
        slow(None)


def at_share(found: Observations) -> Observations:
    """Figures that were measured at full speed, as a host with its share of a core would measure them."""
    share, costs = SHARES[found.soc], found.overheads

    def longer(columns: Columns) -> Columns:
        us = tuple(None if one is None else one / share for one in columns.us)
        return columns.model_copy(update={"us": us, "spread_us": tuple(one / share for one in columns.spread_us)})

    overheads = costs.model_copy(
        update={
            "launch_us": {kind: us / share for kind, us in costs.launch_us.items()},
            "end_us": {kind: us / share for kind, us in costs.end_us.items()},
            "handover_us": costs.handover_us / share,
        }
    )
    figures = {"latencies": longer(found.latencies), "transfers": longer(found.transfers), "overheads": overheads}
    return found.model_copy(update=figures)


def judged(rows: Sequence[dict[str, Any]], stream: Mapping[str, Any]) -> list[Measure]:
    """What has to hold of all rows, and of the pictures."""
    single = [row["ours"] / min(row[tier] for tier in SHARES) for row in rows]
    measures = [
        verdict("ours ÷ the best single tier, mean", statistics.mean(single), MEAN),
        verdict("ours ÷ the best single tier, worst", max(single), NEVER),
    ]
    for method in METHODS[1:]:
        ratio = statistics.mean(row["ours"] / row[method] for row in rows)
        measures.append(verdict(f"ours ÷ {method}, mean", ratio, OTHERS))
    backbone = statistics.mean(row["ours bytes"] / row["cloud bytes"] for row in rows)
    measures.append(verdict("bytes over the backbone ÷ cloud only, mean", backbone, BACKBONE))
    off = statistics.mean(abs(row["ours"] / row["ours planned"] - 1) for row in rows if row["ours planned"])
    measures.append(verdict("planned against measured, mean difference", off, TRUTH))
    measures.append(verdict(f"{FRAMES} pictures a second over Wi-Fi: lost of {stream['frames']}", stream["lost"], 0))
    measures.append(verdict("their latency, p99 ÷ p50", stream["p99 ms"] / stream["p50 ms"], TAIL))
    return measures


def main() -> None:
    parser = cli.measuring("namespaces", __doc__)
    parser.add_argument(
        "--models", type=cli.names, default=["alexnet", "resnet18", "vgg16", "darknet53", "inception_v4"]
    )
    parser.add_argument("--links", type=cli.names, default=list(LINKS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=14.0, help="after which no row begins; default: 14")
    parser.add_argument("--seconds", type=float, default=100.0, help="of pictures")
    parser.add_argument("--on-device", type=Path, help="what the program starts itself with, in the device's namespace")
    options = parser.parse_args()
    if options.on_device is not None:
        hosts = named_hosts(options.on_device)
        end = time.monotonic() + 60 * options.minutes
        rows = on_device(options.models, options.links, options.runs, end, hosts, options.on_device)
        stream = camera(hosts[0], options.on_device, options.seconds)
        print(json.dumps(stream), flush=True)
        (options.on_device / "rows.json").write_text(json.dumps({"rows": rows, "stream": stream}))
        return
    if os.geteuid() != 0 or not (CGROUP / "cpu.cfs_quota_us").exists():
        print(
            "namespaces: namespaces and quotas take root, and a kernel with cgroups of version 1: nothing was measured"
        )
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was made is removed then, too
    with tempfile.TemporaryDirectory() as name, tiers():
        folder = Path(name)
        with lending("edge", 1, folder), lending("cloud", 1, folder):
            command = [sys.executable, "-m", "benchmarks.namespaces", "--on-device", name, "--runs", str(options.runs)]
            command += ["--models", ",".join(options.models), "--links", ",".join(options.links)]
            command += ["--seconds", str(options.seconds), "--minutes", str(options.minutes)]
            subprocess.run(inside("device", *command), check=True)
        found = json.loads((folder / "rows.json").read_text())
        rows = found["rows"]
    columns = ["network", "link", *SHARES, *METHODS, "ours", "ours planned", "bound"]
    shown = [
        [row[column] if column in ("network", "link") else round(row[column] / 1e3, 1) for column in columns]
        for row in rows
    ]
    report(options.json, judged(rows, found["stream"]), [Table("Latency, ms", columns, shown)], shares=SHARES)


if __name__ == "__main__":
    main()

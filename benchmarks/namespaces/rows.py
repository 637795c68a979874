"""What is measured in the device's namespace: plans and tiers in turns, tiles over four hosts, pictures one by one."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest import mock

import numpy as np
import onnx

from agent_sdk import Agent
from agent_sdk.engine import Executor, build_program
from agent_sdk.engine.program import Program
from agent_sdk.engine.single import single_processor_plan, whole_run
from agent_sdk.errors import SegmentFailedError
from agent_sdk.first.child import IDLE_S
from agent_sdk.journey.trial import hold_trial
from agent_sdk.model import Model, read_model
from agent_sdk.model.feeds import Feed, draw
from agent_sdk.planner.supplier import PlanSupplier
from agent_sdk.runtimes.remote.link import Way
from agent_sdk.runtimes.remote.processor import RemoteExecutable, RemoteProcessor
from agent_sdk.scheduling.job import Job
from benchmarks.namespaces.hosts import AIR, DEVICE, EDGES, LENT, Scene, named, slowed
from benchmarks.tiers import vgg16_stack
from hope_schema import LatencyColumns, Observations, Plan, TransferColumns
from hope_schema.plan import Method
from hope_zoo.network import Network

DEVICE_SHARE: Final = 0.1
"""Of a core."""
EDGE_SHARE: Final = 0.5
"""Of a core, of which edges and cloud share one; they are seldom all busy at once."""
EDGES_SHARE: Final = 0.88
"""Of that core, all edges together at most."""
CLOUD_TIMES: Final = 1.6
"""How much faster the cloud is than an edge."""
AIR_MBPS: Final = 84.95
BACKBONE_MBPS: Final = {"wifi": 18.75, "4g": 6.12, "5g": 11.64}
"""Both are D3's Table III; the edges' own way to the cloud is not used."""
TIERS: Final = (DEVICE, "edge", "cloud")
SIDE_BY_SIDE: Final = Scene(dict.fromkeys(EDGES, 1000.0), {DEVICE: 0.5} | dict.fromkeys(EDGES, 0.22))
"""D3's Figure 12: edges on Gigabit Ethernet. All four together take less than the core that they share."""
OTHERS: Final[tuple[Method, ...]] = ("hpa", "dads", "neurosurgeon")
TILED: Final[Method] = "vsm"
"""Beside them where there are several edges."""
FRAMES: Final = 30
"""A second."""
SETTLING: Final = 500
"""Runs in which a session finds out who is fastest now: it asks those again that were faster before, ever more rarely,
and here each of them takes four times as long, and the next pictures wait for it."""
SOLVING_S: Final = 60.0
"""Longest time that the planner's last plan is waited for."""
TRIPS: Final = 30
FAR: Final = 3.0
"""Who takes so many times as long as the fastest is behind, and timed once."""
Columns = TypeVar("Columns", LatencyColumns, TransferColumns)


class Frozen(Way):
    """A way as it was measured: what crosses it while the links are as fast as the machine teaches nothing."""

    def learn(self, sent: int, received: int, took_us: float, part: float = 0.0) -> None:
        """Nothing."""


@contextmanager
def reached(scene: Scene, folder: Path, precision: str, method: Method = "auto") -> Iterator[Agent]:
    """An agent that has measured the links as they are under way; now all is as fast as the machine.

    What it and its hosts measure counts for what it would take at a host's share, as does what a request takes them.
    """
    send = PlanSupplier.send

    def at_share(own: PlanSupplier, found: Observations, tries: int | None = None) -> None:
        send(own, at(scene.shares[found.soc], found), tries)

    with (
        mock.patch.object(PlanSupplier, "send", at_share),
        Agent(
            method=method,
            soc=DEVICE,
            processors="ort@0",
            hosts=named(folder, scene, precision),
            cache=folder / "-".join(["own", *dict.fromkeys(map(str, scene.shares.values()))]),  # figures are at shares
            wait_s=10,
            measuring_s=20,
        ) as agent,
    ):
        lent = [own for own in agent.device.processors.values() if isinstance(own, RemoteProcessor)]
        fixed_us = [round_trip_us(agent, own, scene.shares) for own in lent]
        with slowed(scene):
            for own, us in zip(lent, fixed_us, strict=True):
                way = own.host.measured_way()
                change = way.as_float16 and way.as_float16 / scene.shares[DEVICE]  # measured before it was slow
                own.host.way = Frozen(way.host, us, way.there, way.back, change, way.link)
        yield agent


def round_trip_us(agent: Agent, lent: RemoteProcessor, shares: Mapping[str, float]) -> float:
    """What a request with next to nothing in it takes where both sides have shares of a core, microseconds.

    It is nearly all work of either side, and a quota is not felt by a single request, but by many.
    """
    model, found = read_model(picture_network(size=4)), list[float]()
    feed = draw(model, 0)
    with whole_run(model, lent, agent.device) as executor:
        for _ in range(TRIPS):
            began, worked = time.perf_counter(), time.thread_time()
            with suppress(SegmentFailedError):  # this machine stood still: a host that is late is nobody's figure
                span = executor.run(feed)[1].segments[0].elsewhere or (0.0, 0.0)
                took, own = time.perf_counter() - began, time.thread_time() - worked
                computed = (span[1] - span[0]) / 1e6
                found.append(own / shares[DEVICE] + (took - own - computed) / shares[lent.host.name])
    return statistics.median(found) * 1e6


def at(share: float, found: Observations) -> Observations:
    """Figures that were measured at full speed, as a host with so much of a core would measure them."""
    costs = found.overheads

    def longer(columns: Columns) -> Columns:
        us = tuple(None if one is None else one / share for one in columns.us)
        return columns.model_copy(update={"us": us, "spread_us": tuple(one / share for one in columns.spread_us)})

    overheads = costs.model_copy(
        update={
            "launch_us": {kind: us / share for kind, us in costs.launch_us.items()},
            "end_us": {kind: us / share for kind, us in costs.end_us.items()},
        }
    )
    figures = {"latencies": longer(found.latencies), "transfers": longer(found.transfers), "overheads": overheads}
    return found.model_copy(update=figures)


class NoPlanError(Exception):
    """A method has no plan over hosts."""


def best(agent: Agent, model: Model) -> Plan:
    """The plan that nothing better follows. Raises NoPlanError."""
    end = time.monotonic() + SOLVING_S
    while True:
        found = agent.obtain(model)
        if found.served is None or not found.served.reply.plan.hosts:
            raise NoPlanError("; ".join(found.notes))
        if not found.served.reply.provisional or time.monotonic() > end:
            return found.served.reply.plan
        time.sleep(0.5)


def whole_plan(model: Model, processor: str) -> Plan:
    """The whole network on one processor."""
    return single_processor_plan(model.graph, processor, soc="here", frequency="now")


def compared(executors: Mapping[str, Executor], feed: Feed, runs: int) -> dict[str, float]:
    """Median microseconds of runs that take turns, by name; of who is not ``FAR`` behind the first does not count."""
    times: dict[str, list[float]] = {name: [] for name in executors}
    for turn in range(runs + 1):
        fastest = min(taken[0] for taken in times.values()) if turn else 0.0
        for name, executor in executors.items():
            if turn and times[name][0] > FAR * fastest:
                continue
            began = time.perf_counter()
            executor.run(feed)
            times[name].append((time.perf_counter() - began) * 1e6)
    return {name: statistics.median(taken[1:] or taken) for name, taken in times.items()}


def methods_of(edges: int) -> tuple[Method, ...]:
    """The methods that ours is compared with over so many edges."""
    return OTHERS if edges == 1 else (*OTHERS, TILED)


def shares_of(edges: int) -> dict[str, float]:
    """What the device, so many edges and the cloud have of a core."""
    edge = round(min(EDGE_SHARE, EDGES_SHARE / edges), 2)
    return {DEVICE: DEVICE_SHARE, **dict.fromkeys(EDGES[:edges], edge), "cloud": round(CLOUD_TIMES * edge, 2)}


def scene_of(link: str, edges: int) -> Scene:
    """So many edges behind the device's radio, and a cloud over a link of the backbone."""
    return Scene({AIR: AIR_MBPS, "cloud": BACKBONE_MBPS[link]}, shares_of(edges))


def row(name: str, link: str, edges: int, runs: int, folder: Path) -> dict[str, Any]:
    """A network by all plans and tiers over a link, and by who wins a trial: microseconds, and backbone bytes.

    A method without a plan is left out. Raises NoPlanError where that is ours.
    """
    model, began, scene = read_model(name), time.monotonic(), scene_of(link, edges)
    plans: dict[str, Plan] = {}
    for method in methods_of(edges):
        try:
            with reached(scene, folder, "fp32", method) as agent:
                plans[method] = best(agent, model)
        except NoPlanError as error:
            print(f"{name}: {method} has no plan: {error}", file=sys.stderr, flush=True)
        print(f"{name}: {method} planned after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    with reached(scene, folder, "fp16") as agent:
        plans["auto"] = best(agent, model)
        planning = time.monotonic() - began
        print(f"{name}: planned after {planning:.0f} s", file=sys.stderr, flush=True)
        found = {"network": name, "link": link, "edges": edges} | timed(agent, model, scene, plans, runs)
    return found | {"seconds of planning": round(planning), "seconds": round(time.monotonic() - began)}


def timed(agent: Agent, model: Model, scene: Scene, plans: Mapping[str, Plan], runs: int) -> dict[str, Any]:
    """The figures of a row. Who answers is decided as at load: by a trial of our plan and each tier alone."""
    lent, feed = agent.device.processors, draw(model, 0)
    tiers = {tier: "ort@0" if tier == DEVICE else f"{tier}:{LENT}" for tier in TIERS}
    alone = {tier: whole_plan(model, processor) for tier, processor in tiers.items()}
    programs = {name: build_program(plan, model, lent) for name, plan in {**alone, **plans}.items()}
    first = {placement(program): name for name, program in reversed(programs.items())}
    same = {name: first[placement(program)] for name, program in programs.items()}
    with ExitStack() as closing:
        executors = {
            name: closing.enter_context(Executor(programs[name], agent.device)) for name in dict.fromkeys(same.values())
        }
        with slowed(scene):
            for executor in executors.values():
                executor.run(feed)
            answers = hold_trial({same[name]: executors[same[name]] for name in ("auto", *tiers)}, feed).best
            took = compared(executors, feed, runs)
        crossed = {name: over_backbone(executor) for name, executor in executors.items()}
    same["ours"] = answers
    expected = {tier: next(iter(plans.values())).single_processor_us[processor] for tier, processor in tiers.items()}
    expected |= {name: plan.makespan_us for name, plan in plans.items()}
    expected["ours"] = expected[answers]
    figures: dict[str, Any] = {name: took[own] for name, own in same.items()}
    figures |= {f"{name} planned": us for name, us in expected.items()}
    figures |= {f"{name} bytes": crossed[own] for name, own in same.items()}
    figures |= {f"{name} on": " ".join(plan.processors_used) for name, plan in plans.items()}
    return figures | {"bound": plans["auto"].lower_bound_us, "answered by": answers}


def placement(program: Program) -> Hashable:
    """What computes where: programs that agree in that are one."""
    return tuple((one.processor, frozenset(one.segment.ops), one.segment.halved) for one in program.segments)


def over_backbone(executor: Executor) -> int:
    """Bytes that a run sends to the cloud and takes from there."""
    far = [one for one in executor.executables if isinstance(one, RemoteExecutable) and one.peer.name == "cloud"]
    return sum(one.types[name].bytes for one in far for name in (*one.sent, *one.received))


def tiles(runs: int, folder: Path) -> dict[str, Any]:
    """VGG-16's convolutions in tiles over four hosts beside one of them, and what was planned."""
    file = folder / "vgg16-convolutions.onnx"
    onnx.save(vgg16_stack(), file)
    model = read_model(file)
    feed = draw(model, 0)
    with reached(SIDE_BY_SIDE, folder, "fp32") as agent:
        plan = best(agent, model)
        plans = {"one host": whole_plan(model, f"edge:{LENT}"), "four hosts": plan}
        with ExitStack() as closing:
            executors = {
                name: closing.enter_context(Executor(build_program(one, model, agent.device.processors), agent.device))
                for name, one in plans.items()
            }
            for executor in executors.values():
                executor.run(feed)
            with slowed(SIDE_BY_SIDE):
                took = compared(executors, feed, runs)
    cuts = sum(len(job.cuts) for job in plan.jobs)
    return took | {"planned": plan.makespan_us, "on": " ".join(plan.processors_used), "ops in tiles": cuts}


def camera(seconds: float, folder: Path) -> dict[str, Any]:
    """What became of so many seconds of pictures, ``FRAMES`` a second, over the Wi-Fi link: lost, and the latencies."""
    jobs: list[Job] = []
    network, scene = picture_network(), scene_of("wifi", 1)
    with reached(scene, folder, "fp32") as agent:
        best(agent, read_model(network))
        with agent.load(network, background=False, in_flight=2) as session:
            time.sleep(2 * IDLE_S)  # children that tried the network end, which takes the device's share for a second
            feed = draw(session.latest.model, 0)
            with slowed(scene):
                for _ in range(SETTLING):  # it notices that all has become slower, and compares who may answer
                    session.run(feed)
                with agent.stream(session, feed, every_ms=1e3 / FRAMES, told=jobs.append) as stream:
                    time.sleep(seconds)
                    stream.close()
                    session.run(feed)  # behind all that were asked for
    ms = [(job.ended_ns - job.release_ns) / 1e6 for job in jobs if job.exception() is None]
    failed = [str(job.exception()) for job in jobs if job.exception() is not None]
    return {
        "frames": len(jobs) + stream.refused,
        "lost": stream.refused + len(failed),
        "failed": failed[:3],
        "answered by": session.latest.said(),
        "p50 ms": float(np.percentile(ms, 50)),
        "p99 ms": float(np.percentile(ms, 99)),
    }


def picture_network(size: int = 96) -> onnx.ModelProto:
    """Convolutions on a picture of 110 KB: too much for the device, but sent and computed within a frame's time."""
    net = Network("camera", {"input": (1, 3, size, size)})
    x = "input"
    for layer, (channels, stride) in enumerate(((32, 2), (128, 1), (128, 2), (128, 1))):
        x = net.conv_relu(x, channels, 3, f"conv{layer}", stride=stride)
    return net.topology(net.classify(x, 10, "logits")).draw(0)

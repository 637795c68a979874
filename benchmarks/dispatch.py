"""What the engine adds to the work itself: launching, handing over, the arbiter, other sessions beside a run.

    nice python -m benchmarks.dispatch [--json benchmarks/results/dispatch.json]

The first rows use processors that compute nothing: their segments let a known time pass (``usleep``), scan memory for a
known time (``memchr``), or do nothing. Delivered times are held against what the plan says with each segment's own time
alone. Run it on a quiet machine; only ratios within one run mean anything on a shared one.
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from statistics import median, quantiles
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from agent_sdk import native
from agent_sdk.engine import Device, Executor, Program, Work, build_program
from agent_sdk.engine.arbiter import Arbiter
from agent_sdk.engine.code import Instruction
from agent_sdk.engine.lanes import NativeLoop
from agent_sdk.engine.single import single_processor_plan
from agent_sdk.engine.trace import Trace
from agent_sdk.engine.turn import Turn
from agent_sdk.model import Model, read_model
from agent_sdk.model.feeds import draw
from agent_sdk.native import LANES_VARIABLE, address
from agent_sdk.runtimes.base import BoundCall, Buffer, Executable, NativeCall, Processor, Segment
from agent_sdk.runtimes.host import HostPlace
from agent_sdk.runtimes.offered import discover
from benchmarks import cli
from benchmarks.results import report, verdict
from hope_schema import Cause, Plan, Step, merge
from hope_schema import Processor as Spec

RUNS = 24
LENGTH = 400
SEGMENTS = 20_000
MUST = {
    "same_lane_us": 1.0,
    "across_lanes_awake_us": 2.0,
    "across_lanes_asleep_us": 60.0,
    "passing_time_2_lanes": 1.05,
    "passing_time_4_lanes": 1.05,
    "passing_time_7_lanes": 1.05,
    "computing_8_lanes": 1.4,
    "computing_8_lanes_beside_a_busy_process": 3.0,
    "nasnet_mobile_in_turn_vs_sequence": 1.05,
    "arbiter_alone_us": 0.05,
    "sessions_on_disjoint_cores": 1.05,
    "small_beside_large_p99": 3.0,
    "gang_beside_idle_processors": 1.02,
}
LIBC = ctypes.CDLL(None)
BLOCK = np.zeros(2**19, np.uint8)
"""Scanned for a one that is not there; it fits into a core's cache."""


class Nothing(Processor):
    """A processor on resources of its own whose segments call ``work`` of libc, with one argument per op."""

    def __init__(self, name: str, resources: tuple[str, ...], work: str, amount: Mapping[str, int]) -> None:
        self.spec = Spec(
            id=name, runtime="nothing", version="1", threads=1, core_class="core", resources=resources, host="host"
        )
        self.place = HostPlace("host/nothing")
        self.work, self.amount = work, amount

    caller_cores: frozenset[int] = frozenset()

    def compile(self, segment: Segment) -> Executable:
        return NothingCompiled(self, segment, self.work)

    def close(self) -> None:
        pass


class NothingCompiled(Executable):
    """A segment of it."""

    processor: Nothing

    def bind(self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]) -> BoundCall:
        return NothingBound(self.processor.work, sum(self.processor.amount[op] for op in self.segment.ops))


class NothingBound(BoundCall):
    """Its launch: one call with this argument, or so many scans of the block."""

    def __init__(self, work: str, amount: int) -> None:
        self._function = getattr(LIBC, work)
        self._times = 1
        self._arguments: tuple[int, ...] = (amount,)
        if work == "memchr":
            self._times, self._arguments = amount, (BLOCK.ctypes.data, 1, BLOCK.nbytes)
            self._function.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
            self._function.restype = ctypes.c_void_p
        call = NativeCall(address(self._function), self._arguments, returns_pointer=work == "memchr")
        self.native = (call,) * self._times

    def __call__(self) -> None:
        for _ in range(self._times):
            self._function(*self._arguments)

    def rebind(self, name: str, buffer: Buffer) -> None:
        pass


def network(reads: Sequence[Sequence[int]]) -> Model:
    """An op per entry that reads what one or two earlier ops make; the rest are outputs."""
    nodes = []
    for index, before in enumerate(reads):
        names = [f"t{other}" for other in before] or ["x"]
        nodes.append(helper.make_node("Max", names, [f"t{index}"], name=f"op{index}"))
    read = {other for before in reads for other in before}
    ends = [f"t{index}" for index in range(len(reads)) if index not in read]

    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4))

    graph = helper.make_graph(nodes, "network", [info("x")], [info(name) for name in ends])
    return read_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


def plan_of(model: Model, where: Callable[[int, tuple[str, ...]], str], processors: Sequence[str]) -> Plan:
    """The super-ops in order, each on the processor that ``where`` names."""
    steps = tuple(
        Step(
            id=index,
            ops=tuple(op.id for op in super_op.ops),
            dtype="float32",
            processor=where(index, tuple(op.id for op in super_op.ops)),
            start_us=index,
            finish_us=index + 1,
            cause=Cause.FASTER,
        )
        for index, super_op in enumerate(merge(model.graph))
    )
    return single_processor_plan(model.graph, processors[0], soc="here", frequency="now").model_copy(
        update={"processors": tuple(processors), "steps": steps, "order": tuple(step.id for step in steps)}
    )


def traces(executor: Executor, runs: int = RUNS) -> list[Trace]:
    """Traces of some runs after two to warm up."""
    inputs = draw(executor.program.model, 0)
    return [executor.traced(inputs) for _ in range(runs + 2)][2:]


@contextmanager
def lanes(kind: str) -> Iterator[None]:
    """Devices opened meanwhile have ``native`` lanes, or run plans in ``sequence``."""
    before = os.environ.get(LANES_VARIABLE, "")
    os.environ[LANES_VARIABLE] = kind
    try:
        yield
    finally:
        os.environ[LANES_VARIABLE] = before


@contextmanager
def ready(processors: Sequence[Processor], model: Model, plan: Plan) -> Iterator[Executor]:
    """A session on a device of its own."""
    with Device(processors) as device, Executor(build_program(plan, model, device.processors), device) as executor:
        yield executor


def same_lane() -> float:
    """Microseconds a segment on one lane takes beyond its call, which does nothing here."""
    model = network([[index - 1] if index else [] for index in range(LENGTH)])
    amount = {op.id: 0 for op in model.graph.ops}
    names = ("a", "b")
    processors = [Nothing(name, ("core",), "labs", amount) for name in names]
    with ready(processors, model, in_turn(model, names)) as executor:
        assert len(executor.program.segments) == LENGTH
        return median((t.segments[-1].end_us - t.segments[0].start_us) / LENGTH for t in traces(executor))


def in_turn(model: Model, names: Sequence[str]) -> Plan:
    """Every super-op on another processor than the one before."""
    return plan_of(model, lambda index, ops: names[index % len(names)], names)


def across_lanes(work: str, amount: int, length: int) -> float:
    """Microseconds from the end of a segment to the start of the one on the other lane that waits for it."""
    model = network([[index - 1] if index else [] for index in range(length)])
    names = ("a", "b")
    processors = [Nothing(name, (name,), work, dict.fromkeys(model.graph.op, amount)) for name in names]
    with ready(processors, model, in_turn(model, names)) as executor:
        gaps = [after.start_us - before.end_us for t in traces(executor, 5) for before, after in pairwise(t.segments)]
    return median(gaps)


def several_lanes(count: int, work: str, unit: float, cores: int | None) -> float:
    """Delivered ÷ planned of random work on so many lanes: with ``cores``, ÷ the bound that so many cores allow.

    ``unit`` is the amount that takes a microsecond.
    """
    rng = random.Random(count)
    length = 30
    reads, where = [], []
    for step in range(length):
        for lane in range(count):
            before = [(step - 1) * count + lane] if step else []
            if step and rng.random() < 0.4:
                before.append((step - 1) * count + rng.choice([other for other in range(count) if other != lane]))
            reads.append(before)
            where.append(f"p{lane}")
    model = network(reads)
    amount = {f"op{index}": int(unit * rng.uniform(1000, 4000)) for index in range(len(reads))}
    by_op = {f"op{index}": name for index, name in enumerate(where)}
    names = [f"p{lane}" for lane in range(count)]
    ids = {op.id: f"op{op.outputs[0][1:]}" for op in model.graph.ops}
    amounts = {op: amount[ids[op]] for op in ids}
    plan = plan_of(model, lambda index, ops: by_op[ids[ops[0]]], names)
    with ready([Nothing(name, (name,), work, amounts) for name in names], model, plan) as executor:
        alone = {op: fastest_us(NothingBound(work, much)) for op, much in amounts.items()}
        planned = makespan(executor.program, alone)
        if cores is not None:
            planned = max(planned, sum(alone.values()) / cores)
        took = [max(s.end_us for s in t.segments) - min(s.start_us for s in t.spans) for t in traces(executor, 7)]
    return median(took) / planned


def fastest_us(call: Callable[[], object]) -> float:
    """The shortest of three calls."""
    took = []
    for _ in range(3):
        started = time.perf_counter_ns()
        call()
        took.append(time.perf_counter_ns() - started)
    return min(took) / 1e3


def makespan(program: Program, us: Mapping[str, float]) -> float:
    """When the last segment ends if each op takes so long and waiting costs nothing."""
    finish = [0.0] * len(program.segments)
    free = [0.0] * len(program.lanes)
    for segment in program.segments:
        awaited = [finish[program.by_lane[wait.lane][wait.count - 1].index] for wait in segment.waits]
        finish[segment.index] = max([free[segment.lane], *awaited]) + sum(us[op] for op in segment.ops)
        free[segment.lane] = finish[segment.index]
    return max(finish)


def calm(times: Sequence[float]) -> float:
    """The first quartile: what other work on a shared machine makes longer is left out."""
    return quantiles(times, n=4)[0]


@contextmanager
def two_cores() -> Iterator[int]:
    """Keep this process and what it starts on two cores; how many it got."""
    before = os.sched_getaffinity(0)
    chosen = set(sorted(before)[:2])
    os.sched_setaffinity(0, chosen)
    try:
        yield len(chosen)
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def busy_process() -> Iterator[None]:
    """Somebody else's program that never sleeps."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def nasnet_in_turn() -> tuple[float, float]:
    """Milliseconds of nasnet_mobile in single super-ops in turn on two cores: over two lanes, and in sequence."""
    model = read_model("nasnet_mobile")
    inputs = draw(model, 0)
    names = ("ort@0", "ort@1")
    with ExitStack() as opened:
        executors = []
        for kind in ("native", "sequence"):
            with lanes(kind):
                executors.append(opened.enter_context(ready(discover(",".join(names)), model, in_turn(model, names))))
        outputs = [executor.run(inputs)[0] for executor in executors]
        assert all(np.array_equal(outputs[0][name], outputs[1][name]) for name in outputs[0])
        took: list[list[float]] = [[], []]
        for _ in range(RUNS):
            for found, executor in zip(took, executors, strict=True):
                executor.run(inputs)
                found.append(executor.traced(inputs).total_us / 1e3)
    return calm(took[0]), calm(took[1])


def arbiter_alone() -> float:
    """Microseconds that entering and leaving the arbiter adds to a segment, where nobody else is."""
    library = native.library()
    assert library is not None

    def a_segment(resources: Sequence[tuple[str, ...]]) -> float:
        """Nanoseconds of each of many segments that compute nothing, which hold these resources in turn."""
        row = [
            Instruction(Work(lane=0, position=at, processor="x", resources=resources[at % len(resources)]))
            for at in range(SEGMENTS)
        ]
        loop = NativeLoop([row], [frozenset()], Arbiter(library))
        took = []
        for _ in range(RUNS):
            began = time.perf_counter_ns()
            loop.alone(0)
            took.append((time.perf_counter_ns() - began) / SEGMENTS)
        return calm(took)

    return (a_segment([("x",), ("x", "y")]) - a_segment([()])) / 1e3


def on_disjoint_cores() -> float:
    """Two sessions of squeezenet, each on a core of its own, at once ÷ each alone: the worse of the two."""
    model = read_model("squeezenet")
    inputs = draw(model, 0)
    names = ("ort@0", "ort@1")
    with Device(discover(",".join(names))) as device, ExitStack() as opened:
        sessions = [opened.enter_context(whole(model, name, device)) for name in names]

        def takes(session: Executor) -> float:
            return calm([session.traced(inputs).total_us for _ in range(2 * RUNS)])

        alone = [takes(session) for session in sessions]
        with ThreadPoolExecutor(2) as pool:
            both = [*pool.map(takes, sessions)]
    return max(here / apart for here, apart in zip(both, alone, strict=True))


def small_beside_large() -> float:
    """The 99th percentile of squeezenet on both cores, urgent, beside nasnet_mobile in 648 segments there ÷ alone."""
    small, large = read_model("squeezenet"), read_model("nasnet_mobile")
    feeds, other = draw(small, 0), draw(large, 0)
    with Device(discover("ort@0,ort@1,ort@0-1")) as device, ExitStack() as opened:
        session = opened.enter_context(whole(small, "ort@0-1", device))
        plan = in_turn(large, ("ort@0", "ort@1"))
        background = opened.enter_context(Executor(build_program(plan, large, device.processors), device))

        def p99() -> float:
            took = []
            for _ in range(100):
                began = time.perf_counter()
                session.run(feeds, turn=Turn(0))
                took.append(time.perf_counter() - began)
                time.sleep(0.002)
            return quantiles(took, n=100)[-1]

        session.run(feeds)
        alone = p99()
        over = threading.Event()

        def keep_running() -> None:
            while not over.is_set():
                background.run(other)

        beside = threading.Thread(target=keep_running)
        beside.start()
        try:
            return p99() / alone
        finally:
            over.set()
            beside.join()


def whole(model: Model, processor: str, device: Device) -> Executor:
    """A session of a whole network on one processor of a device."""
    plan = single_processor_plan(model.graph, processor, soc="here", frequency="now")
    return Executor(build_program(plan, model, device.processors), device)


def gang_beside_idle() -> float:
    """A gang of all cores while a dozen other compiled networks wait beside it ÷ just before and after, median."""
    model = read_model("squeezenet")
    inputs = draw(model, 0)
    everything = {processor.id: processor for processor in discover()}
    gang = max((p for p in everything.values() if p.spec.runtime == "ort"), key=lambda p: p.spec.threads)
    others = [p for p in everything.values() if p is not gang]
    with Device([gang, *others]) as device, ExitStack() as opened:

        def opened_on(name: str) -> Executor:
            executor = whole(model, name, device)
            executor.run(inputs)
            return executor

        measured = opened.enter_context(opened_on(gang.id))

        def takes() -> float:
            return calm([measured.traced(inputs).total_us for _ in range(2 * RUNS)])

        alone, beside = [takes()], []
        for _ in range(RUNS // 2):
            with ExitStack() as idle:
                for index in range(12):
                    idle.enter_context(opened_on(others[index % len(others)].id))
                beside.append(takes())
            alone.append(takes())
    return median(2 * here / sum(around) for here, around in zip(beside, pairwise(alone), strict=True))


def measure() -> dict[str, Any]:
    """Every row, by name."""
    found: dict[str, Any] = {"same_lane_us": same_lane()}
    with lanes("sequence"):
        found["same_lane_sequence_us"] = same_lane()
    found["arbiter_alone_us"] = arbiter_alone()
    found["across_lanes_awake_us"] = across_lanes("memchr", round(scans(150)), 100)
    found["across_lanes_asleep_us"] = across_lanes("usleep", 6000, 30)
    for count in (2, 4, 7):
        found[f"passing_time_{count}_lanes"] = several_lanes(count, "usleep", 1.0, None)
    with two_cores() as cores:
        found["computing_8_lanes"] = several_lanes(8, "memchr", scans(1), cores)
        with busy_process():
            found["computing_8_lanes_beside_a_busy_process"] = several_lanes(8, "memchr", scans(1), cores)
    native, sequence = nasnet_in_turn()
    found |= {"nasnet_mobile_in_turn_ms": native, "nasnet_mobile_in_turn_sequence_ms": sequence}
    found["nasnet_mobile_in_turn_vs_sequence"] = native / sequence
    found["sessions_on_disjoint_cores"] = on_disjoint_cores()
    found["small_beside_large_p99"] = small_beside_large()
    found["gang_beside_idle_processors"] = gang_beside_idle()
    return {name: round(value, 3) for name, value in found.items()}


def scans(us: float) -> float:
    """How many scans take a core so many microseconds."""
    return us / fastest_us(NothingBound("memchr", 100)) * 100


def main() -> int:
    options = cli.measuring("dispatch", __doc__).parse_args()
    found = measure()
    rows = [verdict(name, found[name], must) for name, must in MUST.items()]
    beside = {name: value for name, value in found.items() if name not in MUST}
    for name, value in beside.items():
        print(f"{name:64} {value:8.4f}")
    report(options.json, rows, beside=beside)
    return 0


if __name__ == "__main__":
    sys.exit(main())

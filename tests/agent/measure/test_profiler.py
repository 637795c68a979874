"""The profiler measures what is missing, once, says what is unsupported, and stops in time."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from onnx import TensorProto, helper

from agent_sdk.engine import Executor
from agent_sdk.engine.trace import Trace
from agent_sdk.errors import OutOfMemory, ProcessorLost
from agent_sdk.machine import timing
from agent_sdk.machine.soc import Soc
from agent_sdk.machine.timing import Turn, Turns
from agent_sdk.machine.witness import SLOW
from agent_sdk.measure import profiler
from agent_sdk.measure.profiler import profile
from agent_sdk.measure.truth import Sample
from agent_sdk.model import Model, read_model, weights
from agent_sdk.model.cutting import cut_model
from agent_sdk.model.weights import UNKNOWN_BYTES, available_bytes, copies_at_once
from agent_sdk.runtimes.base import Processor, Segment
from agent_sdk.runtimes.ort.graph import FrozenGraphs
from agent_sdk.runtimes.ort.processor import OrtProcessor
from hope_schema import HOST, Cut, Missing, MissingLatency, MissingTransfer, Observations, TensorType, merge
from hope_schema.cutgraph import part_super_op
from hope_schema.cutting import Region
from tests.agent.haste import measure_hastily
from tests.agent.models import BRANCHING, one_op_model
from tests.agent.runtimes.networks import bfloat16_model, random_model


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done with figures is looked at here, not how good they are."""
    measure_hastily(monkeypatch)


def everything(model: Model, processors: list[Processor]) -> Missing:
    """All latencies on all kinds, and all transfers of all tensor types between all sides."""
    kinds = list(dict.fromkeys(processor.spec.kind for processor in processors))
    super_ops = merge(model.graph)
    signatures = dict.fromkeys(super_op.signature for super_op in super_ops)
    types = dict.fromkeys(model.graph.tensor[name].type for super_op in super_ops for name in super_op.inputs)
    sides = [HOST, *dict.fromkeys(processor.spec.place for processor in processors)]
    return Missing(
        profile_version=0,
        latencies=tuple(MissingLatency(signature=s, kind=kind) for s in signatures for kind in kinds),
        transfers=tuple(
            MissingTransfer(tensor=t, source=a, target=b) for t in types for a in sides for b in sides if a != b
        ),
    )


def measured(model: Model, processors: list[Processor], missing: Missing, budget_s: float = 60.0) -> Observations:
    """Run the profiler."""
    return profile(model, processors, missing, soc="soc", frequency="fixed", device_id="device", budget_s=budget_s)


def ran(turn: Turn) -> Turn:
    """A turn with the record of a run of one segment that took so long."""
    span = SimpleNamespace(us=turn.us, kind="segment", start_us=0.0, end_us=turn.us)
    program = SimpleNamespace(model=SimpleNamespace(outputs={}))
    return replace(turn, result=SimpleNamespace(program=program, segments=(span,), spans=(span,), total_us=turn.us,
                                                load_us=0.0, store_us=0.0))  # fmt: skip


def script_turns(monkeypatch: pytest.MonkeyPatch, turn: Callable[[str], Turn]) -> None:
    """Have whole networks take what a script says, by kind of processor."""

    def scripted(run: Executor, _: object) -> Turn:
        [processor] = run.program.processors.values()
        return ran(turn(processor.spec.kind))

    monkeypatch.setattr(Executor, "traced", scripted)
    monkeypatch.setattr(timing, "_turn", lambda call, witness, crowded: call())
    monkeypatch.setattr(profiler, "rehearse", lambda *_: [])


def test_parts_are_measured_like_any_op(processors: list[Processor]) -> None:
    """The parts of a cut op are profiled under the signatures by which the planner knows them."""
    model = read_model(BRANCHING)
    [stem] = [one for one in merge(model.graph) if one.id == "stem_r"]
    parts = [part_super_op(stem, Region.along(1, start, start + 4)).signature for start in (0, 4)]
    kind = processors[0].spec.kind
    missing = Missing(
        profile_version=0, latencies=tuple(MissingLatency(signature=one, kind=kind) for one in set(parts))
    )
    found = measured(cut_model(model, [Cut(op="stem_r", axes=(1,), at=((4,),))]), processors[:1], missing)
    assert set(found.latencies.signature) == set(parts)
    assert all(us is not None and us > 0 for us in found.latencies.us)


def test_everything_missing_is_measured_once(processors: list[Processor]) -> None:
    """Each signature once per kind, each transfer once per type and pair of sides; launch costs for every kind."""
    model = random_model(21, steps=10)
    missing = everything(model, processors)
    said: list[str] = []
    found = profile(
        model, processors, missing, soc="soc", frequency="fixed", device_id="device",
        progress=said.append,
    )  # fmt: skip
    rows = list(zip(found.latencies.signature, found.latencies.kind, strict=True))
    assert sorted(rows) == sorted((row.signature, row.kind) for row in missing.latencies)
    moves = list(zip(found.transfers.tensor, found.transfers.source, found.transfers.target, strict=True))
    assert set(moves) == {(row.tensor, row.source, row.target) for row in missing.transfers}
    assert len(set(moves)) == len(moves)
    assert all(us is not None and us > 0 for us in found.latencies.us)
    assert set(found.overheads.launch_us) == {processor.spec.kind for processor in processors}
    assert {f"{tensor} from {source} to {target}" for tensor, source, target in moves} <= set(said)
    first = {processor.spec.kind: processor.id for processor in reversed(processors)}
    assert all(any(name in text for text in said) for name in first.values())


def test_an_output_is_there_when_its_caller_has_it(
    processors: list[Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its way to the host is what runs of the network say of it, where there were some, and else a copy by itself."""
    model, processor = random_model(21, steps=10), processors[0]
    output, place = model.graph.tensor[model.graph.outputs[0]].type, processor.spec.place
    asked = (MissingTransfer(tensor=output, source=place, target=HOST),)
    latencies = everything(model, [processor]).latencies
    told: list[float] = []
    deliveries = Trace.deliveries

    def slow(trace: Trace) -> list[tuple[TensorType, str, float]]:
        found = [(tensor, where, us + 1e6) for tensor, where, us in deliveries(trace)]
        told.extend(us for _, _, us in found)
        return found

    monkeypatch.setattr(Trace, "deliveries", slow)
    whole, alone = (
        measured(model, [processor], Missing(profile_version=0, latencies=rows, transfers=asked)).transfers
        for rows in (latencies, ())
    )
    assert (whole.tensor, whole.source, whole.target) == (alone.tensor, alone.source, alone.target)
    assert min(told) <= whole.us[0] <= max(told)
    assert 0 < alone.us[0] < 1e6


def test_the_first_profile_knows_what_a_rehearsal_told(
    processors: list[Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches, slowdown and spread of the kinds that it told of; the others' launches are timed by themselves."""
    model, ours = random_model(25, steps=8), [own for own in processors if own.spec.runtime == "ort"]
    single = next(own.spec.kind for own in ours if own.spec.threads == 1)
    told = [Sample(single, 9.0 + us * (1.0 + 0.8 * us / 60), us, 1, us / 60, steps_us=us) for us in range(20, 60)]
    monkeypatch.setattr(profiler, "rehearse", lambda own, *_: told if own.spec.kind == single else [])
    asked = Missing(profile_version=0, latencies=everything(model, ours).latencies)
    found = measured(model, ours, asked).overheads
    assert found.launch_us[single] == pytest.approx(9.0)
    assert found.slowdown[single] == pytest.approx(1.8)
    assert found.spread == pytest.approx({single: 0.0}, abs=1e-6)
    assert set(found.launch_us) == {own.spec.kind for own in ours}


def test_only_what_is_missing_is_measured(processors: list[Processor]) -> None:
    """Two figures asked for, two given; what this device or this model does not have is left alone."""
    model = random_model(22, steps=8)
    full = everything(model, processors)
    asked = full.latencies[:2]
    foreign = (
        MissingLatency(signature="Conv:0000000000000000", kind=asked[0].kind),
        MissingLatency(signature=asked[0].signature, kind="npu-1/1xnpu"),
    )
    moves = (MissingTransfer(tensor=full.transfers[0].tensor, source="npu", target=HOST),)
    found = measured(model, processors, Missing(profile_version=0, latencies=asked + foreign, transfers=moves))
    assert set(zip(found.latencies.signature, found.latencies.kind, strict=True)) == {
        (row.signature, row.kind) for row in asked
    }
    assert found.transfers.us == ()


def test_a_spent_budget_leaves_figures_absent(processors: list[Processor]) -> None:
    """Without time nothing is measured, nothing invented, and what is left is still a legal upload."""
    model = random_model(23, steps=8)
    found = measured(model, processors, everything(model, processors), budget_s=0.0)
    assert (found.latencies.us, found.transfers.us) == ((), ())


def test_unsupported_is_explicit(processors: list[Processor]) -> None:
    """An op that a runtime refuses is reported as a row without a figure; its neighbours are measured all the same."""
    infos = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [1, 2, 4, 4]) for name in ("x", "y", "z")]
    weights = helper.make_tensor("w", TensorProto.DOUBLE, [2, 2, 1, 1], [1.0] * 4)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("LRN", ["x"], ["z"], size=3)]
    nodes = [nodes[0], helper.make_node("Add", ["c", "x"], ["y"]), helper.make_node("Neg", ["y"], ["z"])]
    graph = helper.make_graph(nodes, "double", infos[:1], infos[1:], [weights])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = read_model(proto)
    ours = [processor for processor in processors if processor.spec.runtime == "ort"]
    found = measured(model, ours, everything(model, ours))
    figures = {signature.partition(":")[0]: us for signature, us in zip(
        found.latencies.signature, found.latencies.us, strict=True)}  # fmt: skip
    assert figures["Conv"] is None
    assert figures["Neg"] is not None


def test_types_that_numpy_has_not_are_unsupported_alone(processors: list[Processor]) -> None:
    """What begins or ends in bfloat16 cannot run as a segment of its own; that ends no profiling."""
    model = read_model(bfloat16_model())
    ours = [processor for processor in processors if processor.spec.runtime == "ort"]
    found = measured(model, ours, everything(model, ours))
    assert len(found.latencies.us) == len(found.latencies.signature) > 0
    assert set(found.latencies.us) == {None}


@pytest.mark.parametrize("failure", [OutOfMemory("no room"), ProcessorLost("gone")])
def test_a_device_in_trouble_says_nothing_about_ops(
    failure: Exception, processors: list[Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a processor could not measure for want of memory, or because it is gone, is absent, not unsupported."""
    victim, other, *_ = {processor.spec.kind: processor for processor in processors}.values()

    def fail(segment: Segment) -> None:
        raise failure

    monkeypatch.setattr(victim, "compile", fail)
    model = read_model(one_op_model("Relu"))
    found = measured(model, [victim, other], everything(model, [victim, other]))
    assert found.latencies.kind == (other.spec.kind,)
    assert found.latencies.us != (None,)


def test_transfers_inside_a_layout_family_cost_nothing(processors: list[Processor]) -> None:
    """A pointer is handed over between cores of one runtime; between runtimes a blocked tensor is converted."""
    place = next(p.spec.place for p in processors if p.spec.runtime == "ort")
    tensor = TensorType(shape=(1, 64, 56, 56), dtype="float32")
    ways = [(HOST, place), (place, place), (place, HOST)]
    asked = tuple(MissingTransfer(tensor=tensor, source=a, target=b) for a, b in ways)
    found = measured(random_model(1, steps=2), processors, Missing(profile_version=0, transfers=asked))
    us = dict(zip(zip(found.transfers.source, found.transfers.target, strict=True), found.transfers.us, strict=True))
    for (source, target), cost in us.items():
        assert (cost == 0) == (HOST not in (source, target)), (source, target)


@pytest.mark.parametrize("together", [1, 2, 100])
def test_whole_network_runs_add_up(together: int, processors: list[Processor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the profilers say, and however many networks fit beside one another, a network's super-ops cost
    together what the network was measured to cost.
    """
    model = random_model(24, steps=20)
    monkeypatch.setattr(profiler, "copies_at_once", lambda model: together)
    missing = everything(model, processors)
    counts = Counter(super_op.signature for super_op in merge(model.graph))
    assert max(counts.values()) > 1
    wholes = {processor.spec.kind: 1e6 * (1 + index) for index, processor in enumerate(processors)}
    script_turns(monkeypatch, lambda kind: Turn(wholes[kind]))
    found = measured(model, processors, Missing(profile_version=0, latencies=missing.latencies)).latencies
    totals = dict.fromkeys(wholes, 0.0)
    for signature, kind, us in zip(found.signature, found.kind, found.us, strict=True):
        totals[kind] += counts[signature] * (us or 0.0)
    assert totals == pytest.approx(wholes, rel=1e-3)


@pytest.mark.parametrize(("budget_s", "turns"), [(0.0, 0), (0.3, 1)])
def test_whole_networks_keep_to_the_budget(
    budget_s: float, turns: int, processors: list[Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one run of each takes all the time there is, no kind runs a second time."""
    calls: Counter[str] = Counter()

    def one(kind: str) -> Turn:
        calls[kind] += 1
        time.sleep(budget_s)
        return Turn(1e6)

    script_turns(monkeypatch, one)
    monkeypatch.setattr(profiler, "SHORT_S", 0.0)
    model = random_model(9, steps=8)
    asked = Missing(profile_version=0, latencies=everything(model, processors).latencies)
    measured(model, processors, asked, budget_s=budget_s)
    assert set(calls.values()) <= {turns}


def test_a_kind_that_fails_a_whole_run_spoils_no_other(
    processors: list[Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor lost between two turns is left out; the others' whole runs count, and its ops are tried alone."""
    lost = processors[0].spec.kind
    turns: list[str] = []

    def one(kind: str) -> Turn:
        turns.append(kind)
        if kind == lost and turns.count(lost) == 2:
            raise ProcessorLost("gone")
        return Turn(1e6)

    script_turns(monkeypatch, one)
    monkeypatch.setattr(profiler, "SHORT_S", 0.0)
    model = random_model(9, steps=8)
    found = measured(model, processors, Missing(profile_version=0, latencies=everything(model, processors).latencies))
    assert turns.count(lost) == 2
    totals = dict.fromkeys(turns, 0.0)
    for us, kind in zip(found.latencies.us, found.latencies.kind, strict=True):
        totals[kind] += us or 0.0
    assert 0 < totals.pop(lost) < 5e5
    assert list(totals.values()) == pytest.approx([1e6] * len(totals), rel=1e-3)


def test_networks_too_large_to_stand_side_by_side_share_the_time(
    processors: list[Processor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where kinds cannot take turns, the first one does not use up the time of those behind it."""
    shares: list[float] = []

    def take(calls: dict[str, Callable[[], None]], *, share: float, deadline: float, **_: object) -> Turns:
        shares.append(deadline - share)
        return Turns({kind: [ran(Turn(1e6))] for kind in calls})

    monkeypatch.setattr(profiler, "take_turns", take)
    monkeypatch.setattr(profiler, "copies_at_once", lambda model: 1)
    model = random_model(9, steps=8)
    measured(model, processors, Missing(profile_version=0, latencies=everything(model, processors).latencies))
    assert len(shares) == len({processor.spec.kind for processor in processors})
    assert shares == sorted(set(shares), reverse=True)


@pytest.mark.parametrize(("slowness", "said"), [(1.0, False), (2 * SLOW, True)])
def test_a_profile_of_a_disturbed_machine_says_so(
    slowness: float,
    said: bool,
    processors: list[Processor],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One sentence, and only where not even the rounds that count were calm."""
    script_turns(monkeypatch, lambda kind: Turn(1e6, slowness=slowness))
    model = random_model(9, steps=8)
    with caplog.at_level("INFO", logger=profiler.__name__):
        measured(model, processors, Missing(profile_version=0, latencies=everything(model, processors).latencies))
    assert sum("even the calmest rounds" in record.getMessage() for record in caplog.records) == said


MEMINFO = "MemTotal: 9 kB\nMemAvailable:     4096 kB\n"
GROUP, GROUP_1 = "sys/fs/cgroup", "sys/fs/cgroup/memory"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/meminfo": MEMINFO}, 4096 * 1024),
        ({"proc/meminfo": MEMINFO, f"{GROUP}/memory.max": "max", f"{GROUP}/memory.current": "5"}, 4096 * 1024),
        ({f"{GROUP}/memory.max": "3000000", f"{GROUP}/memory.current": "1000000"}, 2_000_000),
        (
            {"proc/self/cgroup": "0::/a/b\n"}
            | {f"{GROUP}/a/b/memory.max": "max", f"{GROUP}/a/b/memory.current": "9"}
            | {f"{GROUP}/a/memory.max": "3000000", f"{GROUP}/a/memory.current": "2000000"},
            1_000_000,
        ),
        (
            {"proc/self/cgroup": "9:memory:/a\n4:cpu:/\n"}
            | {f"{GROUP_1}/a/memory.limit_in_bytes": "9000", f"{GROUP_1}/a/memory.usage_in_bytes": "1000"},
            8_000,
        ),
        ({f"{GROUP}/memory.max": "3000", f"{GROUP}/memory.current": "5000"}, 0),
        ({"proc/meminfo": "MemAvailable:\n"}, UNKNOWN_BYTES),
        ({}, UNKNOWN_BYTES),
    ],
)
def test_available_memory_is_what_linux_tells(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    """The machine's, or what its group or one above leaves it, if that is less; a guess where nobody tells."""
    for name, text in {"proc/self/cgroup": "0::/\n", **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_bytes(tmp_path) == expected


def test_what_fits_is_compiled_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many copies of the weights as an eighth of the available memory holds, and one in any case."""
    model = read_model("squeezenet")
    size = sum(tensor.ByteSize() for tensor in model.proto.graph.initializer)
    for available, copies in ((8 * 3 * size, 3), (8 * 3 * size - 8, 2), (0, 1)):
        monkeypatch.setattr(weights, "available_bytes", lambda available=available: available)
        assert copies_at_once(model) == copies


@pytest.mark.parametrize(("large_us", "expected_us"), [(2_010.0, 1_000.0), (0.0, None)])
def test_a_move_to_an_accelerator_is_never_free(
    large_us: float, expected_us: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what a call takes longer on a large tensor; where that is nothing, what its bytes take to be copied."""
    soc, frozen = Soc("test", "test", {0: "core"}), FrozenGraphs(Path(os.devnull))
    cores, npu = (OrtProcessor(soc, frozenset({0}), frozen=frozen) for _ in range(2))
    npu.spec = npu.spec.model_copy(update={"id": "npu", "runtime": "npu", "resources": ("npu0",), "place": "host/npu"})
    monkeypatch.setattr(npu, "conversion", lambda tensor, *, outwards: None)
    monkeypatch.setattr(profiler, "launch_us", lambda own, rows, deadline: large_us if rows > profiler.ROWS else 10.0)
    tensor = TensorType(shape=(1, 64, 56, 56), dtype="float32")
    sides = [HOST, cores.spec.place, npu.spec.place]
    model = random_model(1, steps=2)
    run = profiler._Profiling(model, [cores, npu], Missing(profile_version=0), time.monotonic() + 30, lambda *_: None)
    for side in sides[:2]:
        for source, target in ((side, npu.spec.place), (npu.spec.place, side)):
            found = run._transfer(tensor, source, target).us
            assert found > 0
            if expected_us is not None:
                assert found >= expected_us

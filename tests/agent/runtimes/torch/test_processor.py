"""The torch runtime behind the engine's interface, on torch's CPU device; streams and events are simulated."""

from __future__ import annotations

import gc
import math
import weakref
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_sdk.errors import CompilationFailed, OutOfMemory, ProcessorLost, UnsupportedOp
from agent_sdk.machine.soc import Soc, accelerator_names
from agent_sdk.model import read_model
from agent_sdk.model.feeds import draw
from agent_sdk.model.united import united
from agent_sdk.runtimes import offered
from agent_sdk.runtimes.base import Timed, segment_of, whole_network
from agent_sdk.runtimes.torch.choice import Choice, choices, parsed
from agent_sdk.runtimes.torch.driver import Recording
from agent_sdk.runtimes.torch.executable import Way, narrowest, ways_of
from agent_sdk.runtimes.torch.kernel import build, drawn, recipes, translated
from agent_sdk.runtimes.torch.place import DevicePlace
from agent_sdk.runtimes.torch.precision import Precision
from agent_sdk.runtimes.torch.schedule import Schedule
from agent_sdk.runtimes.torch.shares import Occupancy
from hope_schema import merge
from tests.agent.model.random_models import RandomModel
from tests.agent.models import BRANCHING, one_op_model
from tests.agent.runtimes.networks import run_once
from tests.agent.runtimes.torch.samples import SOC, computed, encoder, images, processor, timed, turned
from tests.agent.runtimes.torch.simulated import Simulated


@pytest.mark.parametrize("source", [images(), encoder(), BRANCHING], ids=["images", "encoder", "branching"])
@pytest.mark.parametrize(
    ("precision", "last", "tolerance"), [("fp32", False, 1e-4), ("fp32", True, 1e-4), ("fp16", True, 1e-2)]
)
def test_a_network_gives_what_onnx_runtime_gives(source: bytes, precision: str, last: bool, tolerance: float) -> None:
    """Folded, in either layout and in either precision, the outputs agree."""
    error, _ = computed(processor(precision, channels_last=last), read_model(source))
    assert error <= tolerance


@pytest.mark.parametrize("seed", range(6))
def test_streams_do_not_change_the_outputs(seed: int) -> None:
    """Random networks, timed at random as plans do, come out right on simulated streams in any legal order."""
    model = read_model(RandomModel(seed, 25).proto)
    own = processor()
    own.driver = Simulated(seed)
    error, _ = computed(own, model, timed(model, seed))
    assert error <= 1e-4


@pytest.mark.parametrize("far", [False, True], ids=["host", "far"])
@pytest.mark.parametrize("seed", range(3))
def test_networks_in_one_recording_answer_as_alone(seed: int, far: bool) -> None:
    """However a device orders what is in it, nothing races, all of it is over at the end, and floats are looked at."""
    members = [read_model(source) for source in (images(), encoder(), images())]
    model = united(members)
    own = processor()
    own.driver = Simulated(seed)
    if far:
        own.place = DevicePlace("cpu", own.device)
    executable = own.compile(replace(whole_network(model), times=timed(model, seed)))
    feeds = [draw(member, place) for place, member in enumerate(members)]
    inputs = {name: own.place.from_host(array) for name, array in model.feed(feeds).items()}
    outputs = {name: own.place.allocate(kind) for name, kind in executable.output_types.items()}
    call = executable.bind(inputs, outputs)
    assert call.recording.races() == []
    assert call.recording.finished()
    call()
    found = model.answers({name: own.place.to_host(buffer) for name, buffer in outputs.items()})
    for member, feed, answers in zip(members, feeds, found, strict=True):
        session = ort.InferenceSession(member.proto.SerializeToString(), providers=["CPUExecutionProvider"])
        for name, right in zip(member.graph.outputs, session.run(list(member.graph.outputs), feed), strict=True):
            assert np.allclose(answers[name], right, atol=1e-4)
    assert call.looked == (frozenset(inputs) | frozenset(outputs) if far else frozenset())
    assert not call.odd


def test_every_way_to_carry_out_a_plan_computes_the_same() -> None:
    """Where a plan overlaps ops, other ways to start them stand beside it, of as many streams, and all answer alike."""
    model = read_model(BRANCHING)
    rows = [Timed(tuple(op.id for op in super_op.ops), float(place // 2), place // 2 + 1.0)
            for place, super_op in enumerate(merge(model.graph))]  # fmt: skip
    own = processor()
    own.driver = Simulated(1)
    segment = replace(whole_network(model), times=tuple(rows))
    kernels = [own.kernel(super_op, model) for super_op in merge(model.graph)]
    ways = ways_of(kernels, segment, (1, 3, 4, 6))  # over 4 and 6 as over 3
    assert [way.schedule.streams for way in ways[:2]] == [2, 1]
    assert len(ways) == 3
    for way in ways:
        executable = own.compile(segment)
        executable.compiled[:] = [way]
        error, _ = computed(own, model, executable=executable)
        assert error <= 1e-4


def test_without_times_ops_follow_each_other() -> None:
    """Networks side by side have streams of their own where a plan times them, and else one for all."""
    model = united([read_model(BRANCHING)] * 2)
    own = processor()
    kernels = [own.kernel(super_op, model) for super_op in merge(model.graph)]
    segment = whole_network(model)
    [way] = ways_of(kernels, segment, (1, 3))
    assert way.schedule.streams == 1
    assert way.kernels == tuple(kernels)
    assert len(ways_of(kernels, replace(segment, times=timed(model, 0)), (1, 3))) > 1


def test_of_ways_as_fast_the_one_on_fewest_streams_is_kept() -> None:
    """A stream costs memory, so another is taken only for what can be measured."""
    ways = [Way((), Schedule((), streams, ())) for streams in (4, 1, 3, 6)]
    assert narrowest(ways, [100.5, 140.0, 100.9, 100.0]).schedule.streams == 3
    assert narrowest(ways, [100.0, 100.5, 100.0, 99.9]).schedule.streams == 1
    assert narrowest(ways, [104.0, 140.0, 103.0, 100.0]).schedule.streams == 6


@pytest.mark.parametrize(("precision", "rtol", "atol"), [("fp32", 1e-4, 1e-5), ("fp16", 1e-2, 2e-3)])
def test_every_recipe_computes_the_same(precision: str, rtol: float, atol: float) -> None:
    """Whatever way of running a super-op turns out to be fastest, the numbers do not depend on it."""
    own, model = Precision(precision, channels_last=True), read_model(images())
    several: dict[str, int] = {}
    for super_op in merge(model.graph):
        count = recipes(super_op, model, own, torch.device("cpu"))
        kernels = [build(super_op, model, own, torch.device("cpu"), recipe) for recipe in range(count)]
        read = drawn(kernels[0], own, torch.device("cpu"))
        for kernel in kernels[1:]:
            for one, other in zip(kernels[0](*read), kernel(*read), strict=True):
                torch.testing.assert_close(one, other, rtol=rtol, atol=atol)
        several[super_op.ops[0].type] = max(several.get(super_op.ops[0].type, 0), count)
    assert several["AveragePool"] == 3  # torch's own, one mean over all windows, and a convolution
    assert several["MaxPool"] == 2


@given(shape=st.lists(st.integers(0, 5), max_size=5), precision=st.sampled_from(["fp32", "tf32", "fp16"]))
@example(shape=[1, 1, 1, 1], precision="fp32")  # all its layouts are one
@settings(max_examples=40, deadline=None)
def test_what_is_taken_is_the_same_tensor_as_it_is_held(shape: list[int], precision: str) -> None:
    """In the precision's type and layout, whatever its rank; what is so already is not copied."""
    own = Precision(precision, channels_last=True)
    plain = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    taken = own.taken(plain)
    assert torch.equal(taken, own.laid_out(plain.to(own.dtype(plain.dtype))))
    assert taken.is_contiguous(memory_format=torch.channels_last if len(shape) == 4 else torch.contiguous_format)
    assert own.taken(taken).data_ptr() == taken.data_ptr()


def test_what_is_folded_becomes_one_call() -> None:
    """Scale, shift and batch norm behind a convolution cost no call of their own."""
    model = read_model(images())
    super_op = next(one for one in merge(model.graph) if len(one.ops) == 5)
    kernel = build(super_op, model, Precision("fp32"), torch.device("cpu"))
    assert [op.type for op in super_op.ops] == ["Conv", "BatchNormalization", "Mul", "Add", "Relu"]
    assert len(kernel.lines) == 2


def test_views_are_found() -> None:
    """An output that shares memory with an input is known to."""
    model = read_model(encoder())
    kernels = [build(one, model, Precision("fp32"), torch.device("cpu")) for one in merge(model.graph)]
    assert {"q3", "h1", "h2"} & {name for kernel in kernels for name in kernel.views}


@pytest.mark.parametrize("seed", range(4))
def test_what_relabels_a_turned_tensor_is_known_to_copy_it(seed: int) -> None:
    """How a tensor comes decides who shares its memory: a copy waits for what it reads, and has memory of its own."""
    model = read_model(turned())
    own = processor()
    own.driver = Simulated(seed)
    executable = own.compile(replace(whole_network(model), times=timed(model, seed)))
    call = executable.bind(
        {name: own.place.allocate(kind) for name, kind in executable.input_types.items()},
        {name: own.place.allocate(kind) for name, kind in executable.output_types.items()},
    )
    assert executable.way.schedule.streams > 1
    assert call.recording.races() == []


def test_precision_leaves_torch_as_it_was() -> None:
    """The process's switches are set while kernels are launched, and given back."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with Precision("fp32").switched():
            assert torch.backends.cuda.matmul.fp32_precision == "ieee"
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"


def test_ids_say_device_precision_and_part() -> None:
    """What stands in ``--processors`` is read, and written the same way; anything else is no torch processor."""
    for text in ("cuda:0", "cuda:12/tf32", "cuda:0/fp16/8sm", "cuda:0/16sm", "cpu", "cpu/fp16", "xpu:1", "mps"):
        choice = parsed(text)
        assert choice is not None
        assert choice.id == text
    assert parsed("cuda:0", "fp16") == Choice("cuda:0", "fp16")
    assert parsed("cuda:0/fp32", "fp16") == Choice("cuda:0")
    for text in ("cuda", "cuda:", "cuda:0/bf16", "cpu/8sm", "cuda:0/0sm", "ort@0", "cuda:0/8sm/fp16", ""):
        assert parsed(text) is None
        assert choices(text, "mixed") == []
    assert [one.id for one in choices("cuda:0/8sm", "mixed")] == ["cuda:0/8sm", "cuda:0/tf32/8sm", "cuda:0/fp16/8sm"]
    assert [one.id for one in choices("cpu", "mixed")] == ["cpu", "cpu/fp16"]
    assert choices("cuda:0/tf32", "mixed") == [Choice("cuda:0", "tf32")]


def test_shares_are_slopes() -> None:
    """A kernel whose copies do not feel each other has the least share; one whose copies take turns, all of it."""
    assert Occupancy({1: 10.0, 2: 10.0, 4: 10.0}).share == 1 / 16
    assert Occupancy({1: 10.0, 2: 20.0, 4: 40.0}).share == 1.0
    assert Occupancy({1: 10.0, 2: 12.0, 4: 25.0}).share == pytest.approx(0.5)


def test_an_op_without_a_call_is_unsupported() -> None:
    """The planner is told, not surprised."""
    own = processor()
    known, unknown = (read_model(one_op_model(kind, shape=(3, 3))) for kind in ("Relu", "EyeLike"))
    own.compile(segment_of(merge(known.graph)[0], known)).close()
    with pytest.raises(UnsupportedOp, match="EyeLike"):
        own.compile(segment_of(merge(unknown.graph)[0], unknown))


def test_torchs_errors_are_told_apart() -> None:
    """Memory, missing kernels and failures of the runtime each mean something else to the planner."""
    assert isinstance(translated(torch.OutOfMemoryError("CUDA out of memory."), "x", ProcessorLost), OutOfMemory)
    missing = NotImplementedError("\"add_stub\" not implemented for 'UInt16'")
    assert isinstance(translated(missing, "x", CompilationFailed), UnsupportedOp)
    assert isinstance(translated(RuntimeError("illegal access"), "x", ProcessorLost), ProcessorLost)


def test_a_recording_that_fails_says_so() -> None:
    """A device that refuses to record is a refused segment; one that fails while replaying is lost."""

    class Broken(Simulated):
        def signal(self, stream: int) -> int:
            raise RuntimeError("operation not permitted when stream is capturing")

    own, model = processor(), read_model(BRANCHING)
    executable = own.compile(whole_network(model))
    call = executable.bind(
        {name: own.place.allocate(kind) for name, kind in executable.input_types.items()},
        {name: own.place.allocate(kind) for name, kind in executable.output_types.items()},
    )
    call.recording.replay = lambda: (_ for _ in ()).throw(RuntimeError("illegal memory access"))
    with pytest.raises(ProcessorLost, match="illegal memory access"):
        call()
    own.driver = Broken()
    with pytest.raises(CompilationFailed, match="stream is capturing"):
        run_once(executable, {name: own.place.allocate(kind) for name, kind in executable.input_types.items()})
    executable.close()
    with pytest.raises(ProcessorLost, match="closed"):
        executable.bind({}, {})


def test_what_a_rehearsal_took_is_given_back_before_recording() -> None:
    """A graph cannot take what torch keeps for later, so the device would hold everything twice."""
    said: list[str] = []

    class Telling(Simulated):
        def recording(self, streams: int, *, rehearsal: bool = False) -> AbstractContextManager[Recording]:
            said.append("rehearsal" if rehearsal else "recording")
            return super().recording(streams, rehearsal=rehearsal)

        def release(self) -> None:
            said.append("release")

    own = processor()
    own.driver = Telling()
    computed(own, read_model(BRANCHING))
    assert "rehearsal release recording" in " ".join(said)


def test_without_torch_or_a_gpu_there_is_one_clear_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who names a processor that cannot be had is told what it needs; nobody else notices."""
    if not torch.cuda.is_available():
        with pytest.raises(ProcessorLost, match="cuda:0"):
            offered.discover("cuda:0", soc=SOC)
    monkeypatch.setattr(offered, "installed", lambda: False)
    with pytest.raises(ProcessorLost, match=r"hope-inference\[torch\]"):
        offered.discover("cuda:0", soc=SOC)
    assert all(one.spec.runtime != "torch" for one in offered.discover("ort", soc=SOC))


def test_a_gpu_that_does_not_start_is_left_out(monkeypatch: pytest.MonkeyPatch, caplog) -> None:
    """Where nobody asked for it by name, the others are planned with."""

    def broken(soc: Soc, choice: Choice) -> None:
        raise ProcessorLost(f"{choice.id}: the driver does not answer")

    monkeypatch.setattr(offered, "accelerators", lambda precision: [Choice("cuda:0")])
    monkeypatch.setattr(offered, "_torch", broken)
    with caplog.at_level("WARNING"):
        assert offered.discover(soc=SOC)
    assert "the driver does not answer" in caplog.text


def test_nothing_stays_behind() -> None:
    """Compiled and run a hundred times over, a network leaves no kernel behind once it is gone."""
    own = processor()
    seen = []
    for _ in range(100):
        model = read_model(one_op_model("Relu"))
        executable = own.compile(whole_network(model))
        run_once(executable, {name: own.place.allocate(kind) for name, kind in executable.input_types.items()})
        seen.append(weakref.ref(executable.way.schedule))
        executable.close()
    del model, executable
    gc.collect()
    assert sum(one() is not None for one in seen) == 0
    assert not own._kernels


def test_the_socs_name_tells_its_gpus(tmp_path: Path) -> None:
    """Devices with different GPUs keep different profiles."""
    for slot, model in enumerate(["NVIDIA H200", "NVIDIA H200", "NVIDIA T4"]):
        folder = tmp_path / f"0000:0{slot}:00.0"
        folder.mkdir()
        (folder / "information").write_text(f"Model: \t\t {model}\nIRQ:   \t\t 41\n")
    assert accelerator_names(tmp_path) == ["2xNVIDIA H200", "NVIDIA T4"]
    assert accelerator_names(tmp_path / "none") == []

"""What a runtime is trusted with, it computes as ONNX Runtime does, whatever the values."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

import hope_zoo as zoo
from agent_sdk.errors import ModelError, ProcessorError
from agent_sdk.model import Model, read_model
from agent_sdk.model.bounds import ordinary
from agent_sdk.runtimes.base import Processor, whole_network
from agent_sdk.runtimes.host import aligned_empty
from agent_sdk.runtimes.offered import discover
from agent_sdk.runtimes.openvino.trusted import OPENVINO
from agent_sdk.runtimes.torch.trusted import TORCH
from agent_sdk.runtimes.trust import Trust
from hope_schema import ModelGraph, Op, Tensor, TensorType
from tests import CAMPAIGN
from tests.agent.model.test_shipped import SHIPPED, file_of
from tests.agent.runtimes.hard_cases import Feed, Hard, hidden, pairs, single_ops

EVERY = 1 if CAMPAIGN else 12
"""Operators in so many are tried, and types."""
STEPS = ("Quantize", "QLinear")
"""What makes quantised numbers may round to the next one."""
EPSILON = {"float16": 4e-3, "float32": 1e-4, "float64": 1e-12}
"""By how much of its value a float may be off, and by a tenth of that of the largest one."""
ROUGH = {"LRN": 5e-4}
"""The same where ONNX Runtime itself is farther from the exact value: its power is off by 2e-4."""
RUNTIMES = ("ov@0", "cpu")
"""A processor of each runtime that has a table; torch on the cores stands for torch."""


def by_onnxruntime(hard: Hard) -> list[list[np.ndarray] | None] | None:
    """What ONNX Runtime answers each feed, None where it refuses; None where it does not run the network at all."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    answers: list[list[np.ndarray] | None] = []
    try:
        session = ort.InferenceSession(hard.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # noqa: BLE001  the runtime raises its own unrelated classes
        return None
    for feed in hard.feeds:
        try:
            answers.append(session.run(None, feed))
        except Exception:  # noqa: BLE001  the same
            answers.append(None)
    return answers if any(answer is not None for answer in answers) else None


def runs(processor: Processor, model: Model) -> Callable[[Feed], list[np.ndarray]]:
    """The model on a processor, whatever that is trusted with. Raises ProcessorError."""
    executable = processor.compile(whole_network(model))

    def run(feed: Feed) -> list[np.ndarray]:
        inputs = {name: aligned_empty(kind) for name, kind in executable.input_types.items()}
        outputs = {name: processor.place.allocate(kind) for name, kind in executable.output_types.items()}
        for name, array in inputs.items():
            array[...] = feed[name]
        executable.bind({name: processor.place.from_host(array) for name, array in inputs.items()}, outputs)()
        return [np.array(processor.place.to_host(outputs[name])) for name in model.graph.outputs]

    return run


def difference(got: np.ndarray, right: np.ndarray, *, steps: int, rough: float = 0.0) -> str:
    """How an answer differs from the right one beyond what its type rounds to; empty where it does not."""
    if got.shape != right.shape or got.dtype != right.dtype:
        return f"{got.dtype}{list(got.shape)} for {right.dtype}{list(right.shape)}"
    if right.dtype.kind in "biu":
        apart = np.abs(got.astype(np.longdouble) - right.astype(np.longdouble)) > steps
    else:
        a, b = got.astype(np.float64), right.astype(np.float64)
        eps = max(EPSILON[right.dtype.name], rough)
        with np.errstate(all="ignore"):
            scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
            near = np.abs(a - b) <= eps * (np.abs(b) + scale / 10) + eps / 5000
        apart = np.atleast_1d(~(near | (a == b) | (np.isnan(a) & np.isnan(b))))
    if not np.any(apart):
        return ""
    first = int(np.argmax(apart))
    return f"{got.ravel()[first]} for {right.ravel()[first]}"


def compared(processor: Processor, hard: Hard) -> tuple[bool, str] | None:
    """Whether a processor is trusted with a network, and how its answers differ; None where there are none.

    What the guard does not admit, or an answer that is not ordinary, is answered by ONNX Runtime.
    """
    answers = by_onnxruntime(hard)
    if answers is None:
        return None
    trust = type(processor).trusted
    assert isinstance(trust, Trust)
    try:
        model = read_model(hard.model)
    except ModelError:
        return None
    taken = not trust.refusals(model.graph.ops, model.graph)
    try:
        run = runs(processor, model)
    except ProcessorError:
        return None
    steps = int(any(mark in op.type for op in model.graph.ops for mark in STEPS))
    for feed, right in zip(hard.feeds, answers, strict=True):
        fits = all(model.graph.tensor[name].shape == feed[name].shape for name in model.graph.inputs)
        if not fits or not model.guard.admits(feed):
            continue
        if right is None:
            return taken, "an answer where ONNX Runtime refuses"
        try:
            got = run(feed)
        except ProcessorError:
            continue  # another one answers
        if not all(map(ordinary, got)):
            continue
        for ours, theirs in zip(got, right, strict=True):
            if found := difference(ours, theirs, steps=steps, rough=ROUGH.get(hard.op, 0.0)):
                return taken, found
    return taken, ""


def tried(processor: Processor, hards: Iterable[Hard]) -> dict[str, dict[tuple[str, str], str]]:
    """By op and type what is ``wrong`` though it is taken, ``right`` and taken, or ``refused`` though it is right."""
    found: dict[str, dict[tuple[str, str], str]] = {"wrong": {}, "right": {}, "refused": {}}
    differs: dict[tuple[str, str], set[bool]] = defaultdict(set)
    taken_at: dict[tuple[str, str], bool] = {}
    for hard in hards:
        result = compared(processor, hard)
        if result is None:
            continue
        taken, apart = result
        key = hard.op, hard.dtype
        differs[key].add(bool(apart))
        taken_at[key] = taken_at.get(key, False) or taken
        if taken and apart:
            found["wrong"][key] = f"{hard.name}: {apart}"
        elif taken:
            found["right"][key] = ""
    for key, apart_in in differs.items():
        if apart_in == {False} and not taken_at[key]:
            found["refused"][key] = ""
    return found


@pytest.fixture(params=RUNTIMES)
def trusting(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Processor:
    """A processor that refuses nothing of itself."""
    [processor] = discover(request.param)
    monkeypatch.setattr(processor, "refuse_untrusted", lambda ops, graph: None)
    return processor


def test_what_a_runtime_is_trusted_with_it_means_the_same(trusting: Processor) -> None:
    """Every operator in every type at hard values: no difference in what the table takes; it says what it refuses."""
    found = tried(trusting, (*single_ops(EVERY), *pairs()))
    for word, rows in found.items():
        for (op, dtype), what in sorted(rows.items()):
            print(f"{word:8} {op:28} {dtype:8} {what}")
    compared_ops = {op for ops, _ in found["right"] for op in ops.split(", ")}
    named = {op for row in trusting.trusted.rows for op in row.ops.split()} if trusting.trusted else set()
    assert len(compared_ops & named) > len(named) / EVERY / 2
    assert not CAMPAIGN or not named - compared_ops - {"Cast"}, "what nobody compares nobody can trust"
    assert not found["wrong"], found["wrong"]


@pytest.mark.parametrize(("trusting", "share"), [("ov@0", 0.5), ("cpu", 0.1)], indirect=["trusting"])
def test_what_is_no_number_and_was_made_inside_is_hidden_by_the_reference_alone(
    trusting: Processor, share: float
) -> None:
    """However it is made, and whatever hands it on: where a runtime makes another value of it, it is not taken."""
    found = {hard.op: compared(trusting, hard) for hard in hidden()}
    assert not {op: result for op, result in found.items() if result and result[0] and result[1]}
    assert sum(bool(result and result[1]) for result in found.values()) > share * len(found), "many of them do differ"


@pytest.mark.parametrize("trust", [OPENVINO, TORCH], ids=["OpenVINO", "torch"])
@pytest.mark.parametrize(("dtype", "taken"), [("bool", True), ("uint64", False)])
def test_an_op_of_constants_alone_is_judged_by_their_type(trust: Trust, dtype: str, taken: bool) -> None:
    """It reads no activation, so the table is asked of what it does read."""
    made = tuple(Tensor(name=name, shape=(2,), dtype="bool") for name in ("cast", "equal"))
    two = (TensorType(shape=(2,), dtype=dtype),) * 2
    ops = (
        Op(type="Cast", inputs=(), outputs=("cast",), parameters=two[:1]),
        Op(type="Equal", inputs=(), outputs=("equal",), parameters=two),
    )
    graph = ModelGraph(name="g", tensors=made, ops=ops, inputs=(), outputs=("cast", "equal"))
    assert trust.refusals(ops, graph).keys() == (set() if taken else {"cast", "equal"})


def written(runtime: str, trust: Trust) -> list[str]:
    """A table as the documentation has it."""
    return [
        f"| {runtime} | {' '.join(sorted(row.ops.split()))} | {row.reads} | {row.makes or 'the same'} | {row.but} |"
        for row in trust.rows
    ]


def test_the_documentation_says_what_is_trusted() -> None:
    """Its table is the tables of the code, row by row; what to write stands in the failure."""
    rows = [*written("OpenVINO", OPENVINO), *written("torch", TORCH)]
    text = (Path(__file__).parents[3] / "docs" / "agent.md").read_text()
    found = [line for line in text.splitlines() if line.startswith(("| OpenVINO |", "| torch |"))]
    assert found == rows, "\n".join(rows)


HEAVY = {"darknet53", "hrnet_w18", "vgg16", "vgg19", "nasnet_large", "pnasnet_large", "alexnet", "zfnet512"}
"""Reading their weights takes seconds."""
BRANCHING = {"silero_vad.onnx", "silero_vad_op18_ifless.onnx"}
"""Their branches hide ops."""


@pytest.mark.parametrize("name", [*sorted({*zoo.names(), *SHIPPED} - BRANCHING - (set() if CAMPAIGN else HEAVY))])
def test_networks_of_floats_lose_nothing(name: str) -> None:
    """Of the networks to try and of those that packages ship, OpenVINO is trusted with every op on float32 alone."""
    graph = (read_model(file_of(name), shapes=SHIPPED[name][1]) if name in SHIPPED else read_model(name)).graph
    refused = OPENVINO.refusals(graph.ops, graph)
    kinds = {
        op: {graph.tensor[tensor].dtype for tensor in (*graph.op[op].inputs, *graph.op[op].outputs)} for op in refused
    }
    foreign = {op for op in refused if ":" in graph.op[op].type}
    assert not {op: refused[op] for op, types in kinds.items() if types == {"float32"} and op not in foreign}
    assert name in SHIPPED or not refused

"""Is the answer right? Ours against the whole model on ONNX Runtime with one thread."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnxruntime as ort

from agent_sdk.engine import Executor, build_program
from agent_sdk.model import Model, extract, pre_softmax_outputs
from agent_sdk.rounding import FLOAT32, rounding
from agent_sdk.runtimes.base import WrongOutput
from hope_schema import ModelGraph


def reference(model: Model, values: Mapping[str, np.ndarray], tensors: Sequence[str]) -> dict[str, np.ndarray]:
    """Return the named tensors as ONNX Runtime computes them on one thread from inputs, or tensors inside the model."""
    graph = model.graph
    ops: set[str] = set()
    left = tuple(dict.fromkeys(name for name in tensors if name not in values))
    wanted = list(left)
    for name in wanted:
        if name not in values and graph.producer[name] not in ops:
            op = graph.op[graph.producer[name]]
            ops.add(op.id)
            wanted += op.inputs
    found = {name: values[name] for name in tensors if name in values}
    if not left:
        return found
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    piece = extract(model, ops, tuple(values), left).SerializeToString()
    session = ort.InferenceSession(piece, options, providers=["CPUExecutionProvider"])
    return found | dict(zip(left, session.run(list(left), dict(values)), strict=True))


@dataclass(frozen=True)
class Verdict:
    """Whether an answer is right.

    Attributes:
        error: the largest difference, relative to the largest value that is right; infinite where the answers cannot be
            compared.
        tolerance: how far right answers may differ.
        cause: what differences within the tolerance are due to.
    """

    error: float
    tolerance: float
    cause: str

    @property
    def correct(self) -> bool:
        """Whether it is right."""
        return self.error <= self.tolerance

    def __str__(self) -> str:
        if math.isinf(self.error):
            return "wrong: an output is missing, of another shape or not finite"
        if self.correct:
            found = f"within {self.error:.1e} of the largest value" if self.error else "the same numbers"
            return f"right: {found} ({self.cause}: up to {self.tolerance:.1e})"
        return f"wrong: {self.error:.1e} of the largest value, more than {self.tolerance:.1e} ({self.cause})"


def verdict(
    model: Model, inputs: Mapping[str, np.ndarray], executors: Collection[Executor], tolerance: float | None = None
) -> Verdict:
    """Judge executors, of which the worst counts, by the uncut model on one thread of ONNX Runtime."""
    used = {own.spec.precision for executor in executors for own in executor.program.processors.values()}
    coarsest = max((rounding(model.graph, precision) for precision in used), key=lambda one: one.tolerance)
    expected = reference(model, inputs, pre_softmax_outputs(model.graph))
    error = max(executor_error(executor, model, inputs, expected) for executor in executors)
    return Verdict(error, coarsest.tolerance if tolerance is None else tolerance, coarsest.cause)


@dataclass(frozen=True)
class Agreement:
    """How the answers of several executors go together.

    Attributes:
        wrong: whose is further from ONNX Runtime's than rounding explains, and how far.
        apart: the most that a change of who answers may change an answer in float32, relative to its largest value.
    """

    wrong: Mapping[str, WrongOutput]
    apart: float


def agreement(
    graph: ModelGraph, contenders: Mapping[str, Executor], answers: Mapping[str, Mapping[str, np.ndarray]]
) -> Agreement:
    """Compare answers with ONNX Runtime's; where that did not answer itself nobody is wrong, and nothing is known."""
    programs = {name: contenders[name].program for name in answers}
    by_ort = [
        name for name, own in programs.items() if all(each.spec.runtime == "ort" for each in own.processors.values())
    ]
    if not by_ort:
        return Agreement({}, 0.0)
    # The whole network before one in pieces, and one that needed no planner before a plan.
    trusted = min(by_ort, key=lambda name: (len(programs[name].segments), programs[name].plan.profile_version > 0))
    wrong: dict[str, WrongOutput] = {}
    errors = [0.0]
    for name, own in programs.items():
        tolerance = max(rounding(graph, each.spec.precision).tolerance for each in own.processors.values())
        error = relative_error(answers[name], answers[trusted])
        if error > tolerance:
            wrong[name] = WrongOutput(
                f"its answer is {error:.1e} of the largest value away from ONNX Runtime's, which rounding does not "
                f"explain beyond {tolerance:.1e}"
            )
        elif tolerance == FLOAT32:
            errors.append(error)
    return Agreement(wrong, sum(sorted(errors)[-2:]))  # the two that are furthest off may be so in opposite directions


def executor_error(
    executor: Executor, model: Model, inputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> float:
    """Return how far an executor's answer is from the tensors of ``pre_softmax_outputs`` as they should be.

    A final softmax hides differences of what enters it, or magnifies them. So the plan is carried out once more to
    compare that, and what is served must be what ONNX Runtime makes of it.
    """
    served = executor.run(inputs)[0]
    outputs = model.graph.outputs
    watched = tuple(name for name in expected if name not in outputs)
    inner = served
    if watched:
        graph = model.graph
        wider = ModelGraph(
            name=graph.name, tensors=graph.tensors, ops=graph.ops, inputs=graph.inputs, outputs=(*outputs, *watched)
        )
        opened = replace(model, graph=wider)
        planned = executor.program.plan
        job = planned.jobs[0].model_copy(update={"model_hash": opened.graph.model_hash})
        plan = planned.model_copy(update={"jobs": (job,)})
        device = executor.device
        with Executor(build_program(plan, opened, device.processors), device) as again:
            inner = again.run(inputs)[0]
    error = relative_error(inner, expected)
    if math.isinf(error):
        return error
    return max(error, relative_error(served, reference(model, {name: inner[name] for name in expected}, outputs)))


def relative_error(ours: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Return max |Δ| ÷ max |reference| over all expected outputs; the worst one counts.

    A missing output, another shape, other text, or NaN where the reference has none gives infinity. Where the reference
    is all zero, the largest absolute difference counts.
    """
    return max((_error(ours.get(name), right) for name, right in expected.items()), default=0.0)


def _error(got: Any, right: Any) -> float:
    if right is None or got is None:
        return 0.0 if right is got else math.inf
    if isinstance(right, Sequence) and not isinstance(right, str | bytes):
        if not isinstance(got, Sequence) or len(got) != len(right):
            return math.inf
        return max((_error(*pair) for pair in zip(got, right, strict=True)), default=0.0)
    got, right = np.asarray(got), np.asarray(right)
    if got.shape != right.shape:
        return math.inf
    if right.dtype.kind not in "biufc":
        return 0.0 if (got.astype(str) == right.astype(str)).all() else math.inf
    wide = np.complex128 if right.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), right.astype(wide)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return 0.0
    if not (np.isfinite(a[~same]).all() and np.isfinite(b[~same]).all()):
        return math.inf
    scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
    return float(np.abs(a - b)[~same].max()) / float(scale or 1.0)

"""Is the answer right? Ours against what the network's file says."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from agent_sdk.engine import Executor, build_program
from agent_sdk.errors import ExecutionError, ModelError, UnplannableError, WrongOutput
from agent_sdk.journey.reference import Reference
from agent_sdk.journey.rounding import FLOAT32, WIDEST, rounding
from agent_sdk.model import Model, pre_softmax_outputs
from hope_schema import ModelGraph

NORMALISED: Final = 3.0
"""Times a difference of what enters a softmax or sigmoid, the most that leaves it, relative to the largest value.

It is twice where one value rises and others fall; of the logarithm the largest value is 0.69 or more.
"""

INSIDE: Final = 4.0
"""Times what rounding weights and inputs alone changes: what is computed between them is rounded as well."""


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
        return self.error <= self.tolerance

    def __str__(self) -> str:
        if not math.isfinite(self.error):
            return "wrong: an output is missing, of another shape or not finite"
        if self.correct:
            found = f"within {self.error:.1e} of the largest value" if self.error else "the same numbers"
            return f"right: {found} ({self.cause}: up to {self.tolerance:.1e})"
        return f"wrong: {self.error:.1e} of the largest value, more than {self.tolerance:.1e} ({self.cause})"


@dataclass(frozen=True)
class Agreement:
    """How the answers of several executors go together.

    Attributes:
        wrong: whose is further from the right one than rounding explains, and how far.
        errors: of the others, relative to the largest value.
        apart: the most that a change of who answers may change an answer in float32, relative to its largest value.
    """

    wrong: Mapping[str, WrongOutput]
    errors: Mapping[str, float]
    apart: float


class Judge:
    """Judges answers to one feed by the network's file, which is loaded once, and once more for each precision."""

    def __init__(self, model: Model, feed: Mapping[str, Any], reference: Reference) -> None:
        self.feed = feed
        self._model, self._reference = model, reference
        self._moved: dict[str, float] = {}

    @cached_property
    def outputs(self) -> Mapping[str, Any]:
        """What the file computes. Raises like ``Reference.outputs``."""
        return self._reference.outputs(self.feed)

    @cached_property
    def entering(self) -> Mapping[str, tuple[str, np.ndarray]]:
        """What enters a final softmax, by the output behind it: the tensor's name, and its values."""
        graph = self._model.graph
        before = zip(graph.outputs, pre_softmax_outputs(graph), strict=True)
        names = {output: name for output, name in before if name != output}
        found = self._reference.inside(self.feed, names.values())
        return {output: (name, found[name]) for output, name in names.items() if name in found}

    def verdict(self, executors: Collection[Executor], tolerance: float | None = None) -> Verdict:
        """Judge executors, of which the worst counts. Raises like ``Reference.outputs``."""
        used = {precision for executor in executors for precision in executor.program.precisions}
        coarsest = max((rounding(self._model.graph, precision) for precision in used), key=lambda one: one.tolerance)
        error = max(map(self.error_of, executors))
        if tolerance is None:
            tolerance = coarsest.tolerance
            if error > tolerance:
                tolerance = max(tolerance, self.magnified(used))
        return Verdict(error, tolerance, coarsest.cause)

    def agreement(
        self, contenders: Mapping[str, Executor], answers: Mapping[str, Mapping[str, np.ndarray]]
    ) -> Agreement:
        """Compare answers of several executors with the right one."""
        wrong: dict[str, WrongOutput] = {}
        errors: dict[str, float] = {}
        exact = [0.0]
        for name, answer in answers.items():
            used = contenders[name].program.precisions
            tolerance = max(rounding(self._model.graph, precision).tolerance for precision in used)
            error = relative_error(answer, self.outputs)
            if error > tolerance and used != {"model"}:
                # A final softmax, or the network itself, may magnify what is rounded.
                with suppress(ExecutionError, ModelError):
                    closer = self.verdict([contenders[name]])
                    error, tolerance = closer.error, closer.tolerance
            if error > tolerance:
                wrong[name] = WrongOutput(
                    f"its answer is {error:.1e} of the largest value away from ONNX Runtime's, which rounding does not "
                    f"explain beyond {tolerance:.1e}"
                )
                continue
            errors[name] = error
            if tolerance == FLOAT32:
                exact.append(error)
        apart = sum(sorted(exact)[-2:])  # the two that are furthest off may be so in opposite directions
        return Agreement(wrong, errors, apart)

    def magnified(self, precisions: Iterable[str]) -> float:
        """How far right answers may differ where a network magnifies what the precisions round: asked of its file.

        Where rounding weights and inputs alone makes more than ``WIDEST``, a precision is not fit for the network, and
        explains nothing.
        """
        moved = max((self._moved_by(precision) for precision in {*precisions} - {"model"}), default=0.0)
        return INSIDE * moved if moved <= WIDEST else 0.0

    def _moved_by(self, precision: str) -> float:
        """How far the file's own answer is off that is rounded so; infinite where it is none that could be changed."""
        if precision not in self._moved:
            try:
                narrowed = Judge(self._model, self.feed, self._reference.narrowed(precision))
                self._moved[precision] = self._error(narrowed.outputs, dict(narrowed.entering.values()))
            except (ModelError, UnplannableError):
                self._moved[precision] = math.inf
        return self._moved[precision]

    def error_of(self, executor: Executor) -> float:
        """How far an executor's answer is from the right one; its plan is carried out again for what is inside."""
        served = executor.run(self.feed)[0]
        names = [name for name, _ in self.entering.values()]
        return self._error(served, self._run_wider(executor, names) if names else {})

    def _error(self, outputs: Mapping[str, Any], inside: Mapping[str, np.ndarray]) -> float:
        """How far outputs are from the right ones, relative to the largest value of the worst one.

        A final softmax hides differences of what enters it, or magnifies them. So what enters is compared, and what is
        served may differ by no more than what these differences make of it.
        """
        worst = 0.0
        for output, expected in self.outputs.items():
            error = relative_error(outputs, {output: expected})
            if output in self.entering:
                name, entered = self.entering[output]
                before = relative_error(inside, {name: entered})
                scale = float(np.abs(entered[np.isfinite(entered)]).max(initial=0.0)) or 1.0
                error = max(before, error - NORMALISED * before * scale) if math.isfinite(before) else before
            worst = max(worst, error)
        return worst

    def _run_wider(self, executor: Executor, watched: Sequence[str]) -> Mapping[str, np.ndarray]:
        """Carry an executor's plan out once more, with further outputs."""
        graph = self._model.graph
        outputs = tuple(dict.fromkeys((*graph.outputs, *watched)))
        wider = ModelGraph(name=graph.name, tensors=graph.tensors, ops=graph.ops, inputs=graph.inputs, outputs=outputs)
        opened = replace(self._model, graph=wider)
        planned = executor.program.plan
        job = planned.jobs[0].model_copy(update={"model_hash": opened.graph.model_hash})
        plan = planned.model_copy(update={"jobs": (job,)})
        device = executor.device
        with Executor(build_program(plan, opened, device.processors), device) as again:
            return again.run(self.feed)[0]


def relative_error(ours: Mapping[str, Any], expected: Mapping[str, Any]) -> float:
    """Return max |Δ| ÷ max |reference| over all expected outputs; the worst one counts.

    A missing output, another shape or kind of numbers, other text, or NaN where the reference has none gives infinity.
    Where the reference is all zero, the largest absolute difference counts.
    """
    return max((_error(ours.get(name), right) for name, right in expected.items()), default=0.0)


def all_finite(values: Iterable[Any]) -> bool:
    arrays = [np.asarray(value) for value in values]
    return all(bool(np.isfinite(array).all()) for array in arrays if array.dtype.kind in "fc")


def _error(got: Any, right: Any) -> float:
    if right is None or got is None:
        return 0.0 if right is got else math.inf
    if isinstance(right, Sequence) and not isinstance(right, str | bytes):
        if not isinstance(got, Sequence) or len(got) != len(right):
            return math.inf
        return max((_error(*pair) for pair in zip(got, right, strict=True)), default=0.0)
    got, right = np.asarray(got), np.asarray(right)
    if got.shape != right.shape or got.dtype.kind != right.dtype.kind:
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

"""Every operator test of the ``onnx`` package that ONNX Runtime passes, ours passes: planned, or as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.errors import UnplannableError
from agent_sdk.model import read_model
from agent_sdk.selection.single import single_processor_plan
from agent_sdk.selection.whole import open_whole
from tests import CAMPAIGN
from tests.agent.onnx_cases import Case, cases

PARTS = 8
"""The suite is run in so many parts."""
EVERY = 1 if CAMPAIGN else 4
"""Tests of one operator in so many are run."""


def agrees(got: Any, right: Any, rtol: float, atol: float) -> bool:
    """Whether an output is what the suite expects, by the suite's own tolerances."""
    if isinstance(right, list):
        return (
            isinstance(got, list)
            and len(got) == len(right)
            and all(agrees(*pair, rtol, atol) for pair in zip(got, right, strict=True))
        )
    if right is None or got is None:
        return got is right
    got, right = np.asarray(got), np.asarray(right)
    if got.shape != right.shape:
        return False
    if right.dtype.kind in "biufc":
        wide = np.complex128 if right.dtype.kind == "c" else np.float64
        return np.allclose(got.astype(wide), right.astype(wide), rtol=rtol, atol=atol, equal_nan=True)
    return bool((got.astype(str) == right.astype(str)).all())


def passes(case: Case, run: Any) -> bool:
    """Whether ``run(feed)`` gives what the suite expects, for each of its inputs."""
    names = [info.name for info in case.model.graph.input]
    ends = [info.name for info in case.model.graph.output]
    for given, right in case.data_sets:
        got = run(dict(zip(names, given, strict=False)))
        if not all(agrees(got[name], value, case.rtol, case.atol) for name, value in zip(ends, right, strict=True)):
            return False
    return True


def runtime_passes(case: Case) -> bool:
    """Whether ONNX Runtime itself passes."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(case.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        ends = [info.name for info in session.get_outputs()]
        return passes(case, lambda feed: dict(zip(ends, session.run(None, feed), strict=True)))
    except Exception:  # noqa: BLE001  the runtime raises its own unrelated classes
        return False


def ours_passes(case: Case, core: Device) -> bool:
    """Whether a plan on one processor passes; or the whole, where there is nothing to plan."""
    source = case.model.SerializeToString()
    given = zip((info.name for info in case.model.graph.input), case.data_sets[0][0], strict=False)
    try:
        model = read_model(source, shapes={name: np.shape(v) for name, v in given if isinstance(v, np.ndarray)})
    except UnplannableError:
        return passes(case, open_whole(source, ["onnxruntime"], 1).run)
    plan = single_processor_plan(model.graph, next(iter(core.processors)), soc="here", frequency="now")
    with Executor(build_program(plan, model, core.processors), core) as executor:
        return passes(case, lambda feed: executor.run(feed)[0])


@pytest.mark.parametrize("part", range(PARTS))
def test_what_onnx_runtime_passes_ours_passes(part: int, core: Device) -> None:
    """No operator, type or shape that the runtime takes is refused or computed wrong."""
    own = cases(EVERY)[part::PARTS]
    possible = [case for case in own if runtime_passes(case)]
    failed = []
    for case in possible:
        try:
            if not ours_passes(case, core):
                failed.append(f"{case.name}: wrong")
        except Exception as error:  # noqa: BLE001  collected, so that one run tells all
            failed.append(f"{case.name}: {type(error).__name__}: {error}")
    assert not failed, "\n".join(failed)
    assert 2 * len(possible) > len(own), "the runtime passes too few for this to prove anything"

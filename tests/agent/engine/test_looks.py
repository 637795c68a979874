"""Whether a run says truly that its floats were ordinary, where a processor is trusted with no others."""

from __future__ import annotations

import random
import weakref
from collections.abc import Iterator, Mapping

import numpy as np
import onnxruntime as ort
import pytest
from onnx import parser

from agent_sdk.engine import Device, Executor, build_program
from agent_sdk.engine.single import whole_run
from agent_sdk.model import Model, read_model
from agent_sdk.model.bounds import ORDINARY
from agent_sdk.runtimes.offered import discover
from hope_schema import Cut
from tests.agent.engine.generate import random_legal_plan

ODD = (np.inf, -np.inf, np.nan, 2e19, -2e19)
HIDING = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[1,3,128,128] x, float[8] y, int64[8] i) => (float[1,3,128,128] b, float[8] z, float[8] w, int64[8] j) {
    six = Constant <value_float = 6.0> ()
    r = Relu (x)
    a = Sigmoid (r)
    b = Min (a, six)
    z = Mul (y, y)
    w = Tanh (z)
    j = Identity (i)
}
"""
"""Of ``x``, which is read where it stands, nothing odd comes out; of ``y`` squares come out that may be too large."""


MAXIMA = {
    "MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]>": 4,
    "GlobalMaxPool": 4,
    "ReduceMax <axes = [2, 3]>": 5,
    "ReduceMin <axes = [2, 3]>": 5,
}
"""What looks for the largest or smallest of eight channels, and where parts of it make other values of NaN."""


@pytest.fixture
def both() -> Iterator[Device]:
    """ONNX Runtime and OpenVINO on every core."""
    with Device(discover("ort,ov")) as opened:
        yield opened


@pytest.fixture(scope="module")
def hiding() -> Model:
    """The network."""
    return read_model(parser.parse_model(HIDING))


def plain(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether all floats are finite and small enough, as NumPy has it."""
    with np.errstate(invalid="ignore"):
        return all(bool((np.abs(own) <= ORDINARY).all()) for own in arrays.values() if own.dtype.kind == "f")


@pytest.mark.parametrize("seed", range(12))
def test_a_run_says_whether_what_came_and_went_was_ordinary(seed: int, both: Device, hiding: Model) -> None:
    """Of arrays that are new, the same again, or changed where they stand; the caller's own are written if it was."""
    rng = random.Random(seed)
    program = build_program(random_legal_plan(hiding, list(both.processors.values()), rng), hiding, both.processors)
    trusting = any(own.trusted is not None for own in program.processors.values())
    draw = np.random.default_rng(seed)
    x, y = draw.standard_normal((1, 3, 128, 128)).astype(np.float32), draw.standard_normal(8).astype(np.float32)
    with Executor(program, both) as executor:
        for _ in range(20):
            if rng.random() < 0.5:
                x, y = x.copy(), y.copy()
            np.nan_to_num(x, copy=False, nan=1.0, posinf=1.0, neginf=1.0)
            np.clip(x, -9, 9, out=x)
            np.clip(np.nan_to_num(y, copy=False), -9, 9, out=y)
            if rng.random() < 0.3:
                x.reshape(-1)[rng.randrange(x.size)] = rng.choice(ODD)
            if rng.random() < 0.3:
                y[rng.randrange(8)] = rng.choice((*ODD, 1e10))
            into = {name: np.full(8, 7, np.float32) for name in ("z", "w") if rng.random() < 0.5}
            feeds = {"x": x, "y": y, "i": np.arange(8)}
            outputs, trace = executor.run(feeds, into=into, timeout_s=60 if rng.random() < 0.2 else None)
            assert trace.ordinary == (not trusting or (plain(feeds) and plain(outputs)))
            for name, array in into.items():
                assert (outputs[name] is array) == trace.ordinary
                assert trace.ordinary or (array == 7).all()


@pytest.mark.parametrize("parts", [False, True], ids=["whole", "parts"])
@pytest.mark.parametrize("maximum", MAXIMA)
def test_what_is_believed_of_a_maximum_is_what_the_whole_makes(maximum: str, parts: bool, both: Device) -> None:
    """ONNX Runtime's kernel over some of eight channels makes other values of NaN than the one over all of them."""
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,7,7] x) => (float[1,8,M,N] y) {{ y = {maximum} (x) }}'
    )
    model = read_model(proto)
    whole = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    cuts = [Cut(op="y", axes=(1,), at=((MAXIMA[maximum],),))] if parts else []
    plan = random_legal_plan(model, [both.processors["ort@0"]], random.Random(0), cuts)
    draw = np.random.default_rng(0)
    with Executor(build_program(plan, model, both.processors), both) as executor:
        for share in (0, 0.05, 0.15, 0.5):
            x = draw.standard_normal((1, 8, 7, 7)).astype(np.float32)
            assert executor.run({"x": x})[1].ordinary
            x[draw.random(x.shape) < share] = np.nan
            outputs, trace = executor.run({"x": x})
            assert not trace.ordinary or np.array_equal(outputs["y"], whole.run(None, {"x": x})[0], equal_nan=True)


def test_a_closed_session_keeps_nothing_that_it_looked_at(both: Device, hiding: Model) -> None:
    """An input that was read where it stands belongs to its caller alone again."""
    trusted = next(own for own in both.processors.values() if own.trusted is not None)
    x = np.ones((1, 3, 128, 128), np.float32)
    with whole_run(hiding, trusted, both) as executor:
        executor.run({"x": x, "y": np.ones(8, np.float32), "i": np.arange(8)})
    watch = weakref.ref(x)
    del x
    assert watch() is None

"""Beside layers that OpenVINO is fastest at, whatever a network holds: the answer is ONNX Runtime's, or its refusal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import numpy_helper, parser

from agent_sdk import Agent, Session
from agent_sdk.errors import HopeError
from agent_sdk.model.bounds import Guard

LAYERS = 3
WIDTH = 64
Feed = dict[str, np.ndarray]


def beside_layers(inputs: str, outputs: str, body: str) -> bytes:
    """A network of some ops beside a few layers of matrices on ``x``, which end in ``last``."""
    lines, last = [], "x"
    for layer in range(LAYERS):
        lines += [f"m{layer} = MatMul ({last}, w{layer})", f"r{layer} = Relu (m{layer})"]
        last = f"r{layer}"
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[8,{WIDTH}] x{inputs}) => (float[8,{WIDTH}] last{outputs}) '
        f"{{ {' '.join(lines)} last = Identity ({last}) {body} }}"
    )
    rng = np.random.default_rng(0)
    for layer in range(LAYERS):
        weights = (rng.standard_normal((WIDTH, WIDTH)) / 8).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, f"w{layer}"))
    return bytes(model.SerializeToString())


WHOLE = beside_layers(
    ", int64[2] i, double[2] d, uint8[2] u, int64[2] m",
    ", int64[2] sum, bool[2] same, int64[2] rest, double[2] less, float[2] single, int64[2] cut, uint8[2] wrapped, "
    "int64[1] picked, float[2] mask",
    """
    one = Constant <value = int64[1] {1}> ()
    big = Constant <value = int64[2] {1732500000123456789, 7}> ()
    three = Constant <value = int64[1] {3}> ()
    tenth = Constant <value = double[1] {0.1}> ()
    seven = Constant <value = uint8[1] {200}> ()
    zero = Constant <value = int64[1] {0}> ()
    sum = Add (i, one)
    same = Equal (i, big)
    rest = Mod (i, three)
    less = Sub (d, tenth)
    single = Cast <to = 1> (d)
    cut = Cast <to = 7> (d)
    wrapped = Add (u, seven)
    picked = Gather (big, zero)
    mask = Cast <to = 1> (m)
    """,
)
"""Whole numbers of 64 bits, doubles, sums that wrap."""
WIDE = [1_732_500_000_123_456_789, -9_223_372_036_854_775_808]
WHOLE_FEEDS: list[Feed] = [
    {
        "i": np.array(whole, np.int64),
        "d": np.array(doubles, np.float64),
        "u": np.array(bytes_, np.uint8),
        "m": np.array(whole[::-1], np.int64),
    }
    for whole, doubles, bytes_ in (
        ([1, 0], [0.5, 2.5], [1, 2]),
        (WIDE, [0.1 + 1e-12, 2.0**53 + 1], [100, 255]),
        ([2**31, 2**53 + 1], [1e300, -1e300], [56, 0]),
        ([2**24 + 1, -(2**31) - 1], [-0.0, 5e-324], [255, 255]),
    )
]

PICKS = beside_layers(
    ", int64[2] a, int64[2,4] b, int64[1,1] c, int64[1] d, int64[1,1] e",
    ", float[2,4] f0, float[2,4] f1, float[1,4] f2, float[1,5] f3, float[5,4] f4",
    """
    table = Constant <value = float[5,4] {0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19}> ()
    depth = Constant <value = int64[1] {5}> ()
    ends = Constant <value = float[2] {0.5, 2.0}> ()
    row = Constant <value = float[1,4] {-1,-2,-3,-4}> ()
    f0 = Gather (table, a)
    f1 = GatherElements (table, b)
    f2 = GatherND (table, c)
    f3 = OneHot (d, depth, ends)
    f4 = ScatterND (table, e, row)
    """,
)
"""Whatever picks by an index."""
INSIDE = {
    "a": np.array([1, 4]),
    "b": np.zeros((2, 4), np.int64),
    "c": np.array([[2]]),
    "d": np.array([3]),
    "e": np.array([[1]]),
}
PICKS_FEEDS: list[Feed] = [
    INSIDE,
    *(INSIDE | {name: np.full_like(INSIDE[name], value)} for name in INSIDE for value in (-1, -5, -6, 5, 1000, 2**33)),
]

SPECIAL = beside_layers(
    ", float[2,8] y",
    ", float[2,8] clipped, float[2,8] grown, bool[2,8] none, bool[2,8] endless, bool[2,8] more, bool[2,8] even, "
    "float[2,8] sign, float[2,8] least, float[2,8] most, int64[2,1] first, float[2,2] top, int64[2,2] at, "
    "float[2,8] positive, float[1,2,4] pooled, float[2,8] soft",
    """
    low = Constant <value_float = -1.0> ()
    high = Constant <value_float = 6.0> ()
    two = Constant <value = int64[1] {2}> ()
    rows = Constant <value = int64[3] {1, 2, 8}> ()
    clipped = Clip (y, low, high)
    grown = Exp (y)
    none = IsNaN (y)
    endless = IsInf (y)
    more = Greater (y, high)
    even = Equal (y, high)
    sign = Sign (y)
    least = Min (y, high)
    most = Max (y, low)
    first = ArgMax <axis = 1> (y)
    top, at = TopK (y, two)
    positive = Relu (y)
    image = Reshape (y, rows)
    pooled = MaxPool <kernel_shape = [2], strides = [2]> (image)
    soft = Softmax (y)
    """,
)
"""What floats that are no ordinary numbers pass through."""
NAN, INF = np.nan, np.inf
SPECIAL_FEEDS: list[Feed] = [
    {"y": np.array([row, row[::-1]], np.float32)}
    for row in (
        [0.5, 1.5, 2.5, -0.5, 6.0, 6.0, -1.0, 0.0],
        [7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0, 7.0],
        [NAN, 1.0, -1.0, 2.0, NAN, 3.0, 0.0, -0.0],
        [INF, -INF, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        [3.4e38, -3.4e38, 1e-45, -1e-45, 1e20, -1e20, 88.0, 89.0],
    )
]

INNER = beside_layers(
    ", float[2,4] y",
    ", float[2,4] a, float[2,4] b, float[2,4] c",
    """
    one = Constant <value_float = 1.0> ()
    inverse = Div (one, y)
    a = HardSigmoid (inverse)
    logarithm = Log (y)
    b = Max (logarithm, one)
    root = Sqrt (y)
    c = Clip (root, one)
    """,
)
"""What is no number inside, and hidden before it comes out."""
INNER_FEEDS: list[Feed] = [
    {"y": np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)},
    {"y": np.array([[-1, 0, -0.0, 4], [5, -6, 7, 8]], np.float32)},
]

NETWORKS = {
    "whole numbers": (WHOLE, WHOLE_FEEDS),
    "indices": (PICKS, PICKS_FEEDS),
    "special values": (SPECIAL, SPECIAL_FEEDS),
    "special values inside": (INNER, INNER_FEEDS),
}


@pytest.fixture(params=["ov@0", "ort@0,ov@0"])
def mixed(request: pytest.FixtureRequest, tmp_path: Path, hasty: None) -> Iterator[Agent]:
    """An agent that has OpenVINO, alone or beside ONNX Runtime."""
    with Agent(processors=request.param, cache=tmp_path) as made:
        yield made


def same(session: Session, right: ort.InferenceSession, feed: Feed) -> None:
    """Both refuse, or both give the same, special values included."""
    try:
        wanted = right.run(None, feed)
    except Exception:  # noqa: BLE001  the runtime raises its own unrelated classes
        with pytest.raises(HopeError):
            session.run(feed)
        return
    got = session.run(None, feed)
    for port, ours, theirs in zip(right.get_outputs(), got, wanted, strict=True):
        assert ours.dtype == theirs.dtype
        if theirs.dtype.kind == "f":
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=port.name)
        else:
            np.testing.assert_array_equal(ours, theirs, err_msg=port.name)


@pytest.mark.parametrize("what", NETWORKS)
def test_the_answer_is_onnxruntimes_whatever_the_values(what: str, mixed: Agent) -> None:
    """Before a plan answers and after, on ordinary feeds and hard ones, in any order."""
    source, feeds = NETWORKS[what]
    options = ort.SessionOptions()
    options.log_severity_level = 4
    right = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    x = {"x": np.random.default_rng(1).standard_normal((8, WIDTH)).astype(np.float32)}
    with mixed.load(source, background=False) as session:
        for feed in (*feeds, feeds[0]):
            same(session, right, x | feed)
        for odd in (np.nan, np.inf, 1e38):
            holes = {"x": x["x"].copy()}
            holes["x"][3, 5] = odd
            same(session, right, holes | feeds[0])


def test_where_one_answer_has_to_stay_an_odd_feed_changes_no_other(
    mixed: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole network answers each odd feed and nothing else; until there is one, a feed is not looked at twice."""
    x = np.random.default_rng(1).standard_normal((8, WIDTH)).astype(np.float32)
    holes = np.full_like(x, np.nan)
    with mixed.load(beside_layers("", "", ""), background=False, deterministic=True) as session:
        with monkeypatch.context() as patched:
            patched.setattr(Guard, "finite", lambda *_: pytest.fail("it is looked at before the run"))
            (first,) = session.run(None, {"x": x})
        trusting = session.latest.executor.program.trusting
        for odd in range(1, 4):
            np.testing.assert_array_equal(session.run(None, {"x": holes})[0], holes)
            assert session.stats.answered.get("whole:onnxruntime", 0) == (odd if trusting else 0)
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], first)
            assert session.stats.answered.get("whole:onnxruntime", 0) == (odd if trusting else 0)


def test_what_answers_ordinary_feeds_goes_on_after_an_odd_one(mixed: Agent) -> None:
    """Where OpenVINO answers, the whole network answers a feed that the guard does not admit, and no other."""
    x = np.random.default_rng(1).standard_normal((8, WIDTH)).astype(np.float32)
    with mixed.load(beside_layers("", "", ""), background=False) as session:
        session.run({"x": x})
        others = [name for name in session.get_providers() if name.startswith("ov")]
        session.run({"x": np.full_like(x, np.nan)})
        assert ("whole:onnxruntime" in session.stats.answered) == bool(others)
        session.run({"x": x})
        session.run({"x": x})
        before = session.stats.answered.get("whole:onnxruntime", 0)
        session.run({"x": x})
        assert session.stats.answered.get("whole:onnxruntime", 0) == before

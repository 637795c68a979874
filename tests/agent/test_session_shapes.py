"""A session at any shapes: plans made behind the first runs, the whole meanwhile, and what it says of that."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from agent_sdk import Agent, Session
from agent_sdk.errors import DeviceClosedError, InputError, ModelError, OpenShapeError, UnplannableError
from agent_sdk.journey import plans
from agent_sdk.journey.demand import USES
from agent_sdk.journey.opening import Opening
from agent_sdk.journey.verify import relative_error
from tests import CAMPAIGN
from tests.agent.haste import measure_hastily
from tests.agent.models import BRANCHING, branching_model, expected, one_op_model

Feed = dict[str, np.ndarray]
CALLS = 2000 if CAMPAIGN else 80
TYPES = {"float16": TensorProto.FLOAT16, "float32": TensorProto.FLOAT}


def open_model(dtype: int = TensorProto.FLOAT) -> bytes:
    """Return a small network for images of any size and number, in one type."""
    weights = numpy_helper.from_array(
        np.random.default_rng(3).standard_normal((4, 3, 3, 3)).astype(helper.tensor_dtype_to_np_dtype(dtype)), "w"
    )
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Sigmoid", ["c"], ["s"]),
        helper.make_node("Mul", ["r", "s"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, dtype, ["n", c, "h", "w_"]) for name, c in (("x", 3), ("y", 4))]
    graph = helper.make_graph(nodes, "open", ends[:1], ends[1:], [weights])
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )


def right(source: bytes, feed: Feed) -> Feed:
    """Return what ONNX Runtime makes of the file as it is."""
    session = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    return dict(zip((info.name for info in session.get_outputs()), session.run(None, feed), strict=True))


def image(*shape: int, dtype: str = "float32") -> Feed:
    """Return an input."""
    return {"x": np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)}


def until(condition: Callable[[], bool]) -> None:
    """Wait for what goes on behind."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def planned(session: Session, feed: Feed) -> Feed:
    """Run these shapes until they have a plan, and return the first answer."""
    before = len(session.plans.ready())
    answers = [session.run(feed) for _ in range(USES)]
    until(lambda: len(session.plans.ready()) > before)
    return answers[0]


def test_what_no_plan_can_answer_the_whole_network_answers(agent: Agent) -> None:
    """A file may declare a size that depends on data; whatever comes out, it is what ONNX Runtime answers."""
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [6]),
        helper.make_tensor_value_info("y", TensorProto.INT64, [1, 6]),
    ]
    nodes = [helper.make_node("Greater", ["x", "least"], ["more"]), helper.make_node("NonZero", ["more"], ["y"])]
    least = numpy_helper.from_array(np.array(-100, np.float32), "least")
    graph = helper.make_graph(nodes, "chosen", ends[:1], ends[1:], [least])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    source = model.SerializeToString()
    with agent.load(source, background=False) as session:
        assert session.stats.prepared == 1
        for count in (6, 4):
            feed = {"x": np.where(np.arange(6) < count, 3.0, -300.0).astype(np.float32)}
            answer = session.run(feed)
            np.testing.assert_array_equal(answer["y"], right(source, feed)["y"])
            assert answer["y"].shape == (1, count)
        assert any(who.startswith("whole:") for who in session.stats.answered)
        assert "is asked what all others fail" in session.notes[-1]


@pytest.mark.parametrize("size", [2, "n"])
def test_other_shapes_for_a_scalar_are_answered_as_before_the_plan(agent: Agent, size: int | str) -> None:
    """ONNX Runtime takes any shape where the file has a scalar: a plan does not, so the whole network answers."""
    shapes: dict[str, list[int | str]] = {"x": [size, 3], "s": [], "y": [size, 3]}
    x, s, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    nodes = [helper.make_node("Mul", ["x", "s"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    graph = helper.make_graph(nodes, "scaled", [x, s], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    source, feed = model.SerializeToString(), {"x": np.ones((2, 3), np.float32), "s": np.float32(2)}
    with agent.load(source, shapes={"x": (2, 3)}, background=False) as session:
        np.testing.assert_array_equal(session.run(feed)["y"], np.full((2, 3), 2))
        for _ in range(USES + 1):
            for scale in (np.float32([3]), np.float32([1, 2, 3]), [4.0]):
                odd = {**feed, "s": scale}
                np.testing.assert_array_equal(session.run(odd)["y"], right(source, odd)["y"])
        assert session.stats.answered["whole:onnxruntime"] == 3 * (USES + 1)
        assert session.verify({**feed, "s": np.float32([3])}).correct
        assert [note for note in session.notes if "s" in note.split()] == []
        with pytest.raises(InputError, match=r"'s' is float32\[2, 2\], the model wants float32\[\]"):
            session.run({**feed, "s": np.ones((2, 2), np.float32)})


def test_a_shape_that_comes_again_is_planned_behind(agent: Agent) -> None:
    """The whole network answers the first runs, a plan the later ones, with the same answer; both are counted."""
    source = open_model()
    with agent.load(source, background=False) as session:
        assert session.plans.ready() == []
        assert session.get_providers() == ["onnxruntime"]
        for feed in (image(1, 3, 8, 8), image(2, 3, 6, 10)):
            first = planned(session, feed)
            assert relative_error(first, right(source, feed)) < 1e-5
            assert relative_error(session.run(feed), first) < 1e-4
        stats = session.stats
        assert (stats.prepared, stats.switches) == (2, 2)
        assert stats.answered["whole:onnxruntime"] == 2 * USES
        assert sum(stats.answered.values()) == 2 * (USES + 1)
        hashes = {prepared.model.graph.model_hash for prepared in session.plans.ready()}
        assert len(hashes) == 2
        assert not [note for note in session.notes if "whole" in note]


def test_shapes_can_be_given_and_prepared_before_the_first_run(agent: Agent) -> None:
    """With shapes, at load or later, a plan answers from the first run on; nothing runs as a whole."""
    source = open_model()
    with agent.load(source, shapes={"x": (1, 3, 8, 8)}, background=False) as session:
        session.prepare({"x": (4, 3, 8, 8)})
        for batch in (1, 4):
            feed = image(batch, 3, 8, 8)
            assert relative_error(session.run(feed), right(source, feed)) < 1e-5
        assert session.prepare({"x": (4, 3, 8, 8)}) is session.plans.ready()[-1]
        assert not [who for who in session.stats.answered if who.startswith("whole")]
        assert session.verify().correct
        assert session.verify(image(4, 3, 8, 8)).correct


@pytest.mark.parametrize("background", [True, False])
def test_shapes_may_be_numpys(agent: Agent, background: bool) -> None:
    """Its whole numbers are sizes as others are, and what the caller does to an array afterwards changes none."""
    sizes = np.array([1, 3, 8, 8])
    with agent.load(open_model(), shapes={"x": sizes}, background=background) as session:
        sizes[:] = 0
        session.run(image(1, 3, 8, 8))
        assert session.wait(60)
        assert session.prepare({"x": [*map(np.int32, (1, 3, 8, 8))]}) is session.latest
        assert [prepared.model.graph.tensor["x"].shape for prepared in session.plans.ready()] == [(1, 3, 8, 8)]


def test_a_load_in_the_background_answers_at_once(agent: Agent) -> None:
    """The whole network answers until its plan is there; the answer stays the same."""
    feed, wanted = expected(BRANCHING, seed=1)
    with agent.load(BRANCHING, background=True) as opened:
        assert opened.stats.prepared == 0
        assert relative_error(opened.run(feed), wanted) < 1e-5
        until(lambda: opened.stats.prepared == 1)
        assert relative_error(opened.run(feed), wanted) < 1e-5
        assert opened.stats.answered["whole:onnxruntime"] == 1
        assert opened.stats.switches == 1
        assert opened.latest.model.name == "branching"


def test_only_so_many_plans_are_kept(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan used longest ago makes room, and its shapes are planned again when they come back."""
    monkeypatch.setattr(plans, "KEPT", 2)
    with agent.load(open_model(), shapes={"x": (1, 3, 4, 4)}, background=False) as opened:
        for size in (5, 6):
            opened.prepare({"x": (1, 3, size, size)})
        assert [p.model.graph.tensor["x"].shape[2] for p in opened.plans.ready()] == [5, 6]
        for _ in range(USES):
            opened.run(image(1, 3, 4, 4))
        until(lambda: [p.model.graph.tensor["x"].shape[2] for p in opened.plans.ready()] == [6, 4])


def test_it_stands_where_an_inference_session_stood(agent: Agent) -> None:
    """Names and a feed give a list in the order of the names; inputs and outputs are described alike."""
    theirs = ort.InferenceSession(BRANCHING, providers=["CPUExecutionProvider"])
    feed, wanted = expected(BRANCHING, seed=1)
    with agent.load(BRANCHING, background=False) as ours:
        for mine, other in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
            assert [(p.name, p.type, p.shape) for p in mine] == [(p.name, p.type, p.shape) for p in other]
        for names in (None, [], ["y"]):
            (y,) = ours.run(names, feed)
            assert relative_error({"y": y}, wanted) < 1e-5
        with pytest.raises(InputError, match=r"no output 'z'; outputs: y"):
            ours.run(["z"], feed)
        with pytest.raises(InputError, match="mapping"):
            ours.run(["y"])
        assert "branching" in repr(ours)
        assert ours.get_providers()[0] in repr(ours)


def test_bound_arrays_stay_put(agent: Agent) -> None:
    """What is written into a bound input is read by the next run; outputs go to the caller's array, or to new ones."""
    (feed, wanted), (other, second) = (expected(BRANCHING, seed) for seed in (1, 2))
    x, y = feed["x"].copy(), np.empty_like(wanted["y"])
    with agent.load(BRANCHING, background=False) as opened:
        bound = opened.io_binding()
        bound.bind_cpu_input("x", x)
        bound.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(y))
        for given, right_ in ((feed, wanted), (other, second), (feed, wanted), (other, second)):
            x[...] = given["x"]
            opened.run_with_iobinding(bound)
            (made,) = bound.copy_outputs_to_cpu()
            assert not np.shares_memory(made, y)
            assert np.array_equal(made, y)
            assert relative_error({"y": y}, right_) < 1e-5
        bound.bind_output("y")
        made = []
        for _ in range(2):
            opened.run_with_iobinding(bound)
            made += bound.copy_outputs_to_cpu()
        assert not any(np.shares_memory(*pair) for pair in ((made[0], made[1]), (made[0], y), (made[1], y)))
        assert relative_error({"y": made[0]}, second) < 1e-5
        bound.bind_output("y", "cpu", 0, np.float32, [3], y.ctypes.data)
        with pytest.raises(InputError, match=r"output 'y' is float32.*the array given for it is float32\[3\]"):
            opened.run_with_iobinding(bound)
        with pytest.raises(InputError, match="no input 'q'; inputs: x"):
            bound.bind_cpu_input("q", x)


def test_bound_arrays_of_a_whole_network(agent: Agent) -> None:
    """While no plan is there, the caller's arrays are written all the same."""
    with agent.load(text_model(), background=False) as opened:
        bound, y = opened.io_binding(), np.empty(2, np.float32)
        bound.bind_cpu_input("x", np.array(["1.5", "2"], object))
        bound.bind_output("y", "cpu", 0, np.float32, [2], y.ctypes.data)
        opened.run_with_iobinding(bound)
        assert y.tolist() == [1.5, 2.0]
        bound.bind_output("y", "cpu", 0, np.float32, [1], y.ctypes.data)
        with pytest.raises(InputError, match="output 'y'"):
            opened.run_with_iobinding(bound)


def test_runs_beside_the_callers_own_work(agent: Agent) -> None:
    """``run_async`` calls back with outputs or the error; ``aload`` and ``arun`` leave the event loop free."""
    feed, wanted = expected(BRANCHING, seed=1)
    told: list[tuple[list[np.ndarray], object, str]] = []
    done = threading.Event()

    def callback(outputs: list[np.ndarray], data: object, error: str) -> None:
        told.append((outputs, data, error))
        if len(told) == 2:
            done.set()

    async def main() -> tuple[dict[str, np.ndarray], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)

        ticking = asyncio.create_task(tick())
        opened = await agent.aload(BRANCHING, background=False)
        outputs = await opened.arun(feed)
        opened.run_async(["y"], feed, callback, "mine")
        opened.run_async(["y"], {"x": feed["x"][0]}, callback, "mine")
        with pytest.raises(InputError, match="missing inputs: x"):
            opened.run_async(["y"], {}, callback, "mine")
        await asyncio.to_thread(done.wait, 60)
        ticking.cancel()
        opened.close()
        return outputs, ticks

    outputs, ticks = asyncio.run(main())
    assert relative_error(outputs, wanted) < 1e-5
    assert ticks > 5
    assert sorted(bool(error) for _, _, error in told) == [False, True]
    assert all(data == "mine" for _, data, _ in told)


def text_model() -> onnx.ModelProto:
    """Return a network that takes text, which no plan can."""
    ends = [helper.make_tensor_value_info("x", TensorProto.STRING, [2])]
    ends.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [2]))
    graph = helper.make_graph([helper.make_node("Cast", ["x"], ["y"], to=1)], "text", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_what_cannot_be_planned_runs_as_a_whole_and_says_why(agent: Agent) -> None:
    """Text as an input is answered by a runtime, with one note that names the input; no plan is ever tried."""
    with agent.load(text_model(), background=False) as opened:
        assert np.array_equal(opened.run({"x": np.array(["1.5", "2"], object)})["y"], np.array([1.5, 2], np.float32))
        assert opened.verify({"x": np.array(["1.5", "2"], object)}).correct
        (note,) = opened.notes
        assert "the model input 'x'" in note
        assert opened.get_inputs()[0].type == "tensor(string)"
        with pytest.raises(UnplannableError, match="'x'"):
            opened.prepare({"x": (2,)})
        with pytest.raises(InputError, match="give inputs"):
            opened.verify()
        for tolerance in (math.nan, math.inf, -1e-9):  # no answer would be wrong, or none right
            with pytest.raises(InputError, match="tolerance"):
                opened.verify({"x": np.array(["1.5", "2"], object)}, tolerance=tolerance)


def test_what_no_runtime_loads_is_refused_with_both_reasons(agent: Agent) -> None:
    """An operator that nobody knows is named, and what the runtime says of it."""
    with pytest.raises(ModelError, match=r"'y' \(Warp\).*nor does a runtime load it.*Warp"):
        agent.load(one_op_model("Warp"), background=False)


def test_a_runtimes_refusal_is_said_once(agent: Agent) -> None:
    """An op that the runtime has no kernel for, an older release of one say, is named with no word of plans."""
    model = one_op_model("Relu")
    model.opset_import[0].version = 1
    with pytest.raises(ModelError) as caught:
        agent.load(model, background=False)
    assert str(caught.value).count("Relu(1)") == 1


def test_bad_shapes_and_feeds_are_said_in_one_line(agent: Agent) -> None:
    """Contradicting shapes, shapes that leave something open, an input of another rank, type or name."""
    source = open_model()
    with pytest.raises(InputError, match="4 dimensions"):
        agent.load(source, shapes={"x": (1, 3)}, background=False)
    with pytest.raises(InputError, match="no input 'q'"):
        agent.load(source, shapes={"q": (1, 3)}, background=False)
    for background in (True, False):
        for none in ({"x": 3}, {"x": None}, {"x": "1"}, {"x": (1.0, 3, 8, 8)}, "x"):
            with pytest.raises(InputError, match="whole numbers"):
                agent.load(source, shapes=none, background=background)  # type: ignore[arg-type]
    two = one_op_model("Relu", shape=("n", "k"))
    two.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", "m"]))
    with pytest.raises(OpenShapeError, match="'m'"):
        agent.load(two, shapes={"x": (1, 3)}, background=False)
    with agent.load(source, background=False) as opened:
        for feed in (
            {"x": np.zeros((1, 3), np.float32)},
            {},
            {"x": None},
            {"x": np.zeros((1, 3, 4, 4), np.int8)},
            {"q": np.zeros(1)},
        ):
            for _ in range(USES):
                with pytest.raises(InputError) as caught:
                    opened.run(feed)
                assert "\n" not in str(caught.value)
        planned(opened, image(1, 3, 8, 8))
        assert opened.plans.notes == []  # nor does anybody try to plan for them
        assert len(opened.plans.ready()) == 1


def test_an_input_without_a_shape_takes_any(agent: Agent) -> None:
    """The plan answers at the shape that was given for it, and whatever else comes is answered as by the runtime."""
    model = one_op_model("Neg")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with agent.load(model, shapes={"x": (3, 4)}, background=False) as opened:
        for shape in ((3, 4), (), (2,)):
            feed = {"x": np.full(shape, 2, np.float32)}
            np.testing.assert_array_equal(opened.run(feed)["y"], -feed["x"])
        assert opened.stats.answered["whole:onnxruntime"] == 2


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.FLOAT])
def test_an_answer_that_would_change_does_not(agent: Agent, dtype: int) -> None:
    """Where types round differently, or with ``deterministic``, who answered first goes on, bit for bit."""
    name = helper.tensor_dtype_to_np_dtype(dtype).name
    feed = image(1, 3, 8, 8, dtype=name)
    with agent.load(open_model(dtype), deterministic=dtype == TensorProto.FLOAT, background=False) as opened:
        first, *_ = (opened.run(feed) for _ in range(USES))
        until(lambda: bool(opened.notes))
        assert "goes on answering" in opened.notes[0]
        for _ in range(50):
            np.testing.assert_array_equal(opened.run(feed)["y"], first["y"])
        assert (opened.stats.switches, opened.stats.prepared) == (0, 0)


def test_no_plan_that_is_asked_for_changes_an_answer(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ``deterministic`` a plan answers what nobody has answered before, and makes room for no other."""
    monkeypatch.setattr(plans, "KEPT", 1)
    for planned_first in (True, False):
        with agent.load(open_model(), deterministic=True, background=False) as opened:
            if planned_first:
                opened.prepare({"x": (1, 3, 8, 8)})
            first = opened.run(image(1, 3, 8, 8))["y"]
            (answering,) = opened.stats.answered
            with monkeypatch.context() as patched:
                patched.setattr(Opening, "done", None)  # nor is it tried
                with pytest.raises(UnplannableError, match="one answer"):
                    opened.prepare({"x": (1, 3, 5, 5) if planned_first else (1, 3, 8, 8)})
            np.testing.assert_array_equal(opened.run(image(1, 3, 8, 8))["y"], first)
            assert opened.stats.answered == {answering: 2}
            assert opened.stats.prepared == planned_first


def test_a_plan_that_changes_no_answer_is_made(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was refused is no answer, no plan takes what overrides an initialiser, and other shapes have other answers;
    of more shapes than are remembered each counts as answered.
    """
    model = onnx.load_from_string(open_model())
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3, 3, 3]))
    with agent.load(model, deterministic=True, background=False) as opened:
        with pytest.raises(InputError):
            opened.run({"nonsense": np.ones(1, np.float32)})
        with pytest.raises(InputError):
            opened.run({"x": np.ones((1, 3, 8, 8), np.int8)})
        opened.run({**image(1, 3, 8, 8), "w": np.ones((4, 3, 3, 3), np.float32)})
        first = opened.run(image(1, 3, 7, 7))["y"]
        opened.prepare({"x": (1, 3, 8, 8)})
        opened.run(image(1, 3, 8, 8))
        np.testing.assert_array_equal(opened.run(image(1, 3, 7, 7))["y"], first)
        assert opened.stats.answered.keys() == {"whole:onnxruntime", opened.plans.ready()[0].current}
        monkeypatch.setattr(plans, "MOST_SHAPES", 1)
        opened.run(image(1, 3, 6, 6))
        with pytest.raises(UnplannableError, match="one answer"):
            opened.prepare({"x": (1, 3, 5, 5)})


def test_a_run_under_way_is_an_answer(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is asked for meanwhile is refused, and one that has made room answers nobody."""

    def meanwhile(owner: object, method: str, asks: Callable[[], object]) -> None:
        """Do something when a method is called the next time."""
        begins = getattr(owner, method)

        def called(*given: Any, **named: Any) -> Any:
            monkeypatch.setattr(owner, method, begins)
            asks()
            return begins(*given, **named)

        monkeypatch.setattr(owner, method, called)

    def refused(size: int) -> None:
        with pytest.raises(UnplannableError, match="one answer"):
            opened.prepare({"x": (1, 3, size, size)})

    monkeypatch.setattr(plans, "KEPT", 1)
    with agent.load(open_model(), deterministic=True, background=False) as opened:
        meanwhile(opened.plans.whole.get(), "run", lambda: refused(8))
        opened.run(image(1, 3, 8, 8))
        gone = opened.prepare({"x": (1, 3, 7, 7)})
        meanwhile(gone, "takes", lambda: opened.prepare({"x": (1, 3, 6, 6)}))
        opened.run(image(1, 3, 7, 7))
        assert opened.stats.answered == {"whole:onnxruntime": 2}
        (pinned,) = opened.plans.ready()
        meanwhile(pinned, "run", lambda: refused(5))
        opened.run(image(1, 3, 6, 6))
        assert opened.stats.answered == {"whole:onnxruntime": 2, pinned.current: 1}


def test_a_pinned_plan_is_never_compared(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow it becomes, nobody else answers."""
    with agent.load(open_model(), shapes={"x": (1, 3, 8, 8)}, deterministic=True, background=False) as opened:
        serving = opened.latest
        monkeypatch.setattr(serving, "_reference_us", 1e-9)
        feed = image(1, 3, 8, 8)
        first = opened.run(feed)["y"]
        for _ in range(100):
            np.testing.assert_array_equal(opened.run(feed)["y"], first)
        assert serving.switches == 0
        assert list(serving.answered) == [serving.current]


def test_closing_ends_what_goes_on_behind(agent: Agent) -> None:
    """A session closed while a plan is made waits for it, keeps nothing, and answers no more."""
    opened = agent.load(open_model(), background=False)
    opened.run(image(1, 3, 8, 8))
    opened.close()
    opened.close()
    for call in (lambda: opened.run(image(1, 3, 8, 8)), lambda: opened.run(image(1, 3, 5, 5)), opened.plans.ready):
        with pytest.raises(DeviceClosedError):
            call()


def test_threads_at_many_shapes_get_right_answers(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans come and go beneath four threads, and every answer is right."""
    monkeypatch.setattr(plans, "KEPT", 2)
    source = open_model()
    feeds = [image(1, 3, size, 4) for size in (3, 4, 5)]
    answers = [right(source, feed) for feed in feeds]

    def worst(opened: Session) -> float:
        return max(relative_error(opened.run(feeds[turn % 3]), answers[turn % 3]) for turn in range(60))

    with agent.load(source, background=False) as opened, ThreadPoolExecutor(4) as threads:
        errors = list(threads.map(worst, [opened] * 4))
    assert max(errors) <= 1e-4


def test_weights_too_large_to_be_cut_run_as_a_whole(
    agent: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More weights beside the file than a plan can cut are the runtime's to load, at the shapes that are given."""
    proto = branching_model()
    onnx.save(proto, tmp_path / "big.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    feed, wanted = expected(BRANCHING, seed=1)
    monkeypatch.setattr("agent_sdk.model.source.MAX_MODEL_BYTES", 2500)
    with agent.load(tmp_path / "big.onnx", background=False) as opened:
        assert relative_error(opened.run(feed), wanted) < 1e-5
        assert "bytes of weights" in opened.notes[0]
        assert opened.verify().correct
        assert opened.get_inputs()[0].shape == [1, 3, 16, 16]
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(proto, tmp_path / "open.onnx", save_as_external_data=True, location="o.bin", size_threshold=0)
    with agent.load(tmp_path / "open.onnx", background=False) as opened, pytest.raises(InputError, match="'n'"):
        opened.verify()
    with agent.load(tmp_path / "open.onnx", shapes={"x": (2, 3, 16, 16)}, background=False) as opened:
        assert opened.draw()["x"].shape == (2, 3, 16, 16)
        assert opened.verify().correct


def quantised_model() -> bytes:
    """Return a network of two quantised convolutions, each between its QuantizeLinear and DequantizeLinear."""
    rng = np.random.default_rng(5)
    weights = [numpy_helper.from_array(np.array(0.03, np.float32), "s"), numpy_helper.from_array(np.uint8(128), "o")]
    nodes, last = [], "x"
    for layer, (filters, channels) in enumerate(((8, 3), (8, 8))):
        weights.append(
            numpy_helper.from_array(rng.integers(-127, 127, (filters, channels, 3, 3)).astype(np.int8), f"w{layer}")
        )
        weights.append(numpy_helper.from_array(np.array(0.002, np.float32), f"ws{layer}"))
        nodes += [
            helper.make_node("QuantizeLinear", [last, "s", "o"], [f"q{layer}"]),
            helper.make_node("DequantizeLinear", [f"q{layer}", "s", "o"], [f"d{layer}"]),
            helper.make_node("DequantizeLinear", [f"w{layer}", f"ws{layer}"], [f"wd{layer}"]),
            helper.make_node("Conv", [f"d{layer}", f"wd{layer}"], [f"c{layer}"], pads=[1, 1, 1, 1]),
        ]
        last = f"c{layer}"
    nodes += [helper.make_node("QuantizeLinear", [last, "s", "o"], ["qy"])]
    nodes += [helper.make_node("DequantizeLinear", ["qy", "s", "o"], ["y"])]
    ends = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])]
    graph = helper.make_graph(nodes, "quantised", ends, [onnx.ValueInfoProto(name="y")], weights)
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )


@pytest.mark.parametrize("kind", ["int8", "float16", "float32"])
def test_the_answer_stays_under_load_that_comes_and_goes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two runtimes: to the bit for quantised integers and float16, to 1e-4 of the largest value for float32."""
    monkeypatch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
    measure_hastily(monkeypatch)
    source = quantised_model() if kind == "int8" else open_model(TYPES[kind])
    feed = image(1, 3, 32, 32, dtype="float32" if kind == "int8" else kind)
    with (
        Agent(processors="ort,ov", cache=tmp_path) as agent,
        agent.load(source, shapes={"x": (1, 3, 32, 32)}, background=False) as opened,
    ):
        assert opened.verify(feed).correct
        first, busy = opened.run(feed), None
        for call in range(CALLS):
            if call % (CALLS // 8) == 0:
                if busy is None:
                    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                else:
                    busy.kill()
                    busy.wait()
                    busy = None
            answer = opened.run(feed)
            assert relative_error(answer, first) <= (1e-4 if kind == "float32" else 0.0)
        assert kind == "float32" or opened.stats.switches == 0
        assert sum(opened.stats.answered.values()) >= CALLS

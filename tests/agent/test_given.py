"""What a feed may hold: a form of numbers means the same whoever answers, and what is none is the caller's to mend."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from agent_sdk import Agent
from agent_sdk.errors import InputError
from agent_sdk.session import Session
from tests.agent.haste import hasten

DATA, INDEX = np.array([0.5, -2], np.float32), np.array([4, 0], np.int32)


class Made:
    """What makes an array of itself."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return DATA


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another byte order": ({"x": DATA.astype(">f4"), "i": INDEX.astype(">i4")}, {"x": DATA, "i": INDEX}),
    "lists": ({"x": [1, 2**70], "i": [1.9, True]}, {"x": [1, 2**70], "i": [1.9, True]}),
    "text": ({"x": ["1", "2"], "i": ["4", "-5"]}, {"x": ["1", "2"], "i": ["4", "-5"]}),
    "memory": ({"x": memoryview(DATA), "i": memoryview(INDEX)}, {"x": DATA, "i": INDEX}),
    "an object": ({"x": Made(), "i": INDEX}, {"x": DATA, "i": INDEX}),
}
"""A feed, and the same as ONNX Runtime takes it."""
REFUSED: dict[str, dict[Any, Any]] = {
    "an index too far in a list": {"x": DATA, "i": [7, 0]},
    "an index too far in text": {"x": DATA, "i": ["7", "0"]},
    "an index too far in memory": {"x": DATA, "i": memoryview(np.array([7, 0], np.int32))},
    "a number too large": {"x": DATA, "i": [2**40, 0]},
    "lists of several lengths": {"x": [[1.0, 2.0], [3.0]], "i": INDEX},
    "nothing": {"x": [object(), 1.0], "i": INDEX},
    "a number": {"x": 1.0, "i": INDEX},
    "a name that is a number": {1: DATA, "i": INDEX},
}


def source() -> bytes:
    """A table, from which an input picks, and another input is added."""
    table = numpy_helper.from_array(np.arange(5, dtype=np.float32), "table")
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2]),
        helper.make_tensor_value_info("i", TensorProto.INT32, [2]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [2]),
    ]
    nodes = [helper.make_node("Gather", ["table", "i"], ["picked"]), helper.make_node("Add", ["picked", "x"], ["y"])]
    graph = helper.make_graph(nodes, "picks", ends[:2], ends[2:], [table])
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )


@pytest.fixture(scope="module")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Session]]:
    """A network that its plan answers, on a runtime that looks at no index; and one that is answered as a whole."""
    cache: Path = tmp_path_factory.mktemp("given")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOPE_SOLVE_BUDGET_S", "0.3")
        hasten(patch)
        with Agent(processors="ov@0", cache=cache, measuring_s=0.3) as agent:
            planned = agent.load(source(), background=False)
            patch.setattr("agent_sdk.journey.preparing.Preparing._begin_behind", lambda *_: None)
            yield [planned, agent.load(source())]


@pytest.mark.parametrize("form", FORMS)
def test_numbers_are_taken_in_every_form(sessions: list[Session], form: str) -> None:
    """What ONNX Runtime answers for them, before there is a plan and after."""
    given, as_taken = FORMS[form]
    right = ort.InferenceSession(source()).run(None, as_taken)[0]
    for session in sessions:
        np.testing.assert_array_equal(session.run(["y"], given)[0], right)


@pytest.mark.parametrize("feed", [[], 3, "x"])
def test_a_feed_is_a_mapping(sessions: list[Session], feed: Any) -> None:
    """Anything else is refused, with what is expected."""
    for session in sessions:
        with pytest.raises(InputError, match="a mapping of inputs"):
            session.run(None, feed)


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_feed_is_refused_as_such(sessions: list[Session], what: str) -> None:
    """By whoever answers, as what the caller gave: nobody takes what ONNX Runtime does not."""
    for session in sessions:
        with pytest.raises(InputError):
            session.run(REFUSED[what])


def test_a_sequence_of_several_shapes_is_no_mistake(agent: Agent) -> None:
    """A list, or a value of ONNX Runtime's: also before it is known that nothing can be planned."""
    inputs = [
        helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, None),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n"]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [
        helper.make_node("ConcatFromSequence", ["x"], ["all"], axis=0),
        helper.make_node("Add", ["all", "z"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "joins", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    parts = [np.ones((2, 4), np.float32), np.zeros((3, 4), np.float32)]
    single = helper.make_graph([helper.make_node("SequenceConstruct", ["t"], ["x"])], "one", [inputs[1]], [inputs[0]])
    single.input[0].name = "t"
    made = ort.InferenceSession(
        helper.make_model(single, opset_imports=model.opset_import, ir_version=8).SerializeToString()
    )
    (value,) = made.run_with_ort_values(None, {"t": ort.OrtValue.ortvalue_from_numpy(np.zeros(4, np.float32))})
    with agent.load(model) as session:
        assert session.plans.network.is_open
        for given, right in ((parts, np.concatenate(parts)), (value, np.zeros(4, np.float32))):
            answer = session.run(["y"], {"x": given, "z": np.zeros(4, np.float32)})[0]
            np.testing.assert_array_equal(answer, right)

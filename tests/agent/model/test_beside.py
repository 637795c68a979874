"""Whether weights stand in other files is told from a network's file, and never wrongly denied."""

from __future__ import annotations

import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.external_data_helper import set_external_data

from agent_sdk.model.beside import MOST_FIELDS, WINDOW_BYTES, may_refer
from tests.agent.model.test_content import network


def found(data: bytes) -> bool:
    """What is said of a file."""
    return may_refer(lambda offset, length: data[offset : offset + length], len(data))


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1000), st.sampled_from(["raw", "floats", "elsewhere"])), max_size=4),
    st.sampled_from(["initializer", "constant", "branch", "sparse"]),
)
def test_weights_elsewhere_are_seen_and_numbers_are_not_taken_for_them(
    drawn: list[tuple[int, str]], place: str
) -> None:
    """Wherever a tensor stands that says so, also in a file that is cut short."""
    proto = network(1.0)
    for index, (count, kind) in enumerate(drawn):
        tensor = TensorProto(name=f"t{index}", data_type=TensorProto.FLOAT, dims=[4 * count])
        if kind == "floats":
            tensor.float_data.extend([1.0] * count)
        elif kind == "raw":
            tensor.raw_data = b"location........" * count
        else:
            tensor.raw_data = bytes(16)  # without which it is refused
            set_external_data(tensor, "w.bin", 0, 16)
        if place == "initializer":
            proto.graph.initializer.append(tensor)
        elif place == "sparse":
            proto.graph.sparse_initializer.append(onnx.SparseTensorProto(values=tensor))
        elif place == "constant":
            proto.graph.node.append(helper.make_node("Constant", [], [f"c{index}"], value=tensor))
        else:
            branch = helper.make_graph([], "branch", [], [], [tensor])
            proto.graph.node.append(helper.make_node("If", ["x"], [], then_branch=branch, else_branch=branch))
    data = proto.SerializeToString()
    elsewhere = any(kind == "elsewhere" for _, kind in drawn)
    assert found(data) or not elsewhere
    if place == "initializer" and all(kind != "raw" or 16 * count > WINDOW_BYTES for count, kind in drawn):
        assert found(data) == elsewhere
    for cut in (1, 7, 40):
        left = data[:-cut]
        assert found(left) or not elsewhere or b"location" not in left


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=20))
def test_what_is_no_network_is_searched(before: bytes, after: bytes) -> None:
    """Bytes that are no protobuf are not passed over, unless they say of themselves that they are an initialiser's."""
    assert found(before + b"location" + after)


def test_no_file_is_walked_for_ever() -> None:
    """One of very many fields says as much, and what stands behind them is found."""
    assert found(b"\x08\x01" * (2 * MOST_FIELDS) + b"location")

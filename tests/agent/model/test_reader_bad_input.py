"""Whatever is no plannable model is refused with one line that names the cause."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import convert_model_to_external_data

from agent_sdk.errors import HopeError
from agent_sdk.model import ModelError, budget, read_model, source
from tests import CAMPAIGN
from tests.agent.model.random_models import RandomModel
from tests.agent.model.test_opaque import ALL as OPAQUE_MODELS
from tests.agent.model.test_reader import model_of

MUTANTS = 20_000 if CAMPAIGN else 400
X = {"x": [1, 4]}


def relu(x: str = "x", y: str = "y") -> onnx.NodeProto:
    """Return a rectifier."""
    return helper.make_node("Relu", [x], [y])


def refused(source: Any, *words: str) -> str:
    """Return the message with which reading fails, checking that it is one line and says the words."""
    with pytest.raises(HopeError) as caught:
        read_model(source)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message
    return message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A path that does not exist, a folder, and a name that is neither a network nor a file are told apart."""
    refused(tmp_path / "none.onnx", "no model file", "none.onnx")
    refused(tmp_path, "is a directory")
    refused("inceptoin_v1", "unknown zoo network", "inception_v1")
    refused("a\0b.onnx", "a")
    (tmp_path / "link.onnx").symlink_to("gone.onnx")
    refused(tmp_path / "link.onnx", "link.onnx", "a link to 'gone.onnx'")


@pytest.mark.parametrize("content", [b"", b"hello, I am no model", b"\x00" * 64, b"<html></html>", os.urandom(512)])
def test_something_else_is_not_taken_for_a_model(tmp_path: Path, content: bytes) -> None:
    """Empty files, text, zeros and noise are refused, from disk and from memory."""
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    refused(path, "model.onnx")
    refused(content)


def test_what_a_clone_without_lfs_leaves_in_a_models_place_is_named(tmp_path: Path) -> None:
    """A pointer of Git LFS is called that, with the command that fetches the model."""
    (tmp_path / "model.onnx").write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 9\n")
    refused(tmp_path / "model.onnx", "Git LFS", "`git lfs pull`")


def test_a_truncated_file_is_refused_at_every_length(tmp_path: Path) -> None:
    """However much is cut off, the reader says so or names what is missing; it never accepts a part as the whole."""
    data = RandomModel(5, 10).proto.SerializeToString()
    rng = random.Random(0)
    for length in (0, 1, 2, len(data) // 2, len(data) - 1, *(rng.randrange(len(data)) for _ in range(60))):
        refused(data[:length])


def test_weights_cut_off_are_noticed(tmp_path: Path) -> None:
    """Fewer bytes than a shape calls for are refused, in the model and in a file beside it."""
    weights = {"w": np.ones((1, 4), np.float32)}
    proto = model_of([helper.make_node("Add", ["x", "w"], ["y"])], X, ["y"], weights)
    proto.graph.initializer[0].raw_data = b"\0" * 12
    refused(proto, "'w'", "12 bytes", "16")
    typed = model_of([helper.make_node("Add", ["x", "w"], ["y"])], X, ["y"], weights)
    typed.graph.initializer[0].CopyFrom(TensorProto(name="w", dims=[1, 4], data_type=1, float_data=[1.0]))
    refused(typed, "'w'", "4 bytes", "16")
    split = model_of([helper.make_node("Add", ["x", "w"], ["y"])], X, ["y"], weights)
    convert_model_to_external_data(split, location="w.bin", size_threshold=0)
    onnx.save(split, tmp_path / "m.onnx")
    refused((tmp_path / "m.onnx").read_bytes(), "external", "path")
    (tmp_path / "w.bin").write_bytes(b"\0" * 3)
    refused(tmp_path / "m.onnx", "m.onnx", "external")
    (tmp_path / "w.bin").unlink()
    refused(tmp_path / "m.onnx", "m.onnx", "external")


def test_external_weights_may_not_leave_the_folder(tmp_path: Path) -> None:
    """A model that points at a file outside its own folder gets nothing from it."""
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"\0" * 16)
    folder = tmp_path / "inside"
    folder.mkdir()
    proto = model_of([helper.make_node("Add", ["x", "w"], ["y"])], X, ["y"], {"w": np.ones((1, 4), np.float32)})
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for location in ("../secret.bin", str(secret)):
        del tensor.external_data[:]
        tensor.external_data.add(key="location", value=location)
        tensor.external_data.add(key="length", value="16")
        (folder / "m.onnx").write_bytes(proto.SerializeToString())
        refused(folder / "m.onnx", "external")


def test_a_dynamic_shape_names_its_origin() -> None:
    """An input's free dimension names the input; a shape that depends on data names the op."""
    refused(model_of([relu()], {"x": [1, "height"]}, ["y"]), "'x'", "dynamic", "'height'")
    refused(model_of([relu()], {"x": [1, -1]}, ["y"]), "'x'", "dynamic")
    refused(model_of([helper.make_node("NonZero", ["x"], ["where"])], X, ["where"]), "'where' (NonZero)", "dynamic")
    target = helper.make_node("Cast", ["x"], ["t"], to=TensorProto.INT64)
    proto = model_of([target, helper.make_node("Reshape", ["x", "t"], ["y"])], {"x": [4]}, ["y"])
    refused(proto, "'y' (Reshape)", "dynamic")
    shapeless = model_of([relu()], X, ["y"])
    shapeless.graph.input[0].type.tensor_type.ClearField("shape")
    refused(shapeless, "'x'", "no shape")


def test_unsupported_ops_are_named() -> None:
    """Unknown types, foreign domains, and ops newer than the model's operator set."""
    refused(model_of([helper.make_node("Warp", ["x"], ["y"])], X, ["y"]), "'y' (Warp)", "unsupported")
    foreign = model_of([helper.make_node("Relu", ["x"], ["y"], domain="com.acme")], X, ["y"])
    refused(foreign, "'y' (com.acme:Relu)", "unsupported")
    foreign.opset_import.append(helper.make_opsetid("com.acme", 1))
    refused(foreign, "'y' (com.acme:Relu)", "unsupported")
    refused(model_of([helper.make_node("Gelu", ["x"], ["y"])], X, ["y"], opset=17), "'y' (Gelu)", "17")
    refused(model_of([relu()], X, ["y"], opset=9999), "operator set 9999")
    text = model_of([helper.make_node("Constant", [], ["s"], value_string="a"), relu()], X, ["y", "s"])
    refused(text, "'s'")


def test_a_model_without_outputs_or_computation_is_refused() -> None:
    """No outputs, outputs nobody computes, and outputs that are inputs or constants."""
    refused(model_of([relu()], X, []), "no outputs")
    refused(model_of([relu()], X, ["ghost"]), "'ghost'")
    refused(model_of([relu()], X, ["x"]), "'x'")
    refused(model_of([relu()], X, ["w"], {"w": np.ones(3, np.float32)}), "'w'")
    refused(model_of([relu()], X, ["y", "y"]), "twice")


def test_names_that_stand_twice_and_loops_are_refused() -> None:
    """Two producers of a tensor, two initialisers or inputs of a name, a read of nothing, a cycle."""
    refused(model_of([relu(), relu()], X, ["y"]), "'y'", "twice")
    refused(model_of([relu("x", "x")], X, ["x"]), "'x'", "twice")
    double = model_of([relu()], X, ["y"], {"w": np.ones(3, np.float32)})
    double.graph.initializer.append(double.graph.initializer[0])
    refused(double, "'w'", "twice")
    twin = model_of([relu()], X, ["y"])
    twin.graph.input.append(twin.graph.input[0])
    refused(twin, "'x'", "twice")
    refused(model_of([relu("nothing")], X, ["y"]), "'nothing'", "nothing produces")
    loop = [relu("a", "behind"), helper.make_node("Add", ["x", "b"], ["a"]), relu("a", "b")]
    assert "behind" not in refused(model_of(loop, X, ["behind"]), "cycle through op")


def test_an_op_that_contradicts_its_inputs_is_named() -> None:
    """Shapes that cannot be added are blamed on the addition."""
    proto = model_of([helper.make_node("Add", ["x", "w"], ["y"])], X, ["y"], {"w": np.ones(3, np.float32)})
    refused(proto, "'y' (Add)", "not valid")


def test_small_files_cannot_ask_for_huge_constants() -> None:
    """A constant of terabytes, and many of a gigabyte, are refused before memory is touched."""
    fill = helper.make_node("ConstantOfShape", ["s"], ["big"])
    add = helper.make_node("Add", ["x", "big"], ["y"])
    for size in ([2**20, 2**20], [2**31 - 1], [2**62], [-5]):
        refused(model_of([fill, add], X, ["y"], {"s": np.array(size, np.int64)}), "'big' (ConstantOfShape)")
    claim = model_of([add], X, ["y"], {"big": np.ones(4, np.float32)})
    claim.graph.initializer[0].dims[:] = [2**40, 2**20]
    refused(claim, "'big'")


@pytest.mark.parametrize(("op", "outputs"), [("NonZero", ["a"]), ("Unique", ["a", "b", "c", "d"])])
def test_indices_count_as_what_they_take(op: str, outputs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ops that give indices per element are counted with these: they are many times what they index."""
    monkeypatch.setattr(budget, "MAX_FOLDED_BYTES", 10_000)
    ones = numpy_helper.from_array(np.ones(1, np.int8))
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["ones"], value=ones),
        helper.make_node(op, ["ones"], outputs),
        *(helper.make_node("Cast", [name], [f"{name}_float"], to=TensorProto.FLOAT) for name in outputs),
        *(helper.make_node("ReduceSum", [f"{name}_float"], [f"{name}_sum"], keepdims=0) for name in outputs),
        *(helper.make_node("Add", ["x", f"{name}_sum"], [f"{name}_y"]) for name in outputs),
    ]
    ends = [f"{name}_y" for name in outputs]
    refused(model_of(nodes, X, ends, {"s": np.array([1, 1, 1, 1000], np.int64)}), f"({op})", "10000 bytes")
    assert read_model(model_of(nodes, X, ends, {"s": np.array([1, 1, 1, 100], np.int64)})).graph.outputs


def doubling(levels: int, *, in_branches: bool) -> onnx.ModelProto:
    """Return a model whose local functions call one another twice, at once or in the branches of an If."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]

    def body(level: int) -> list[onnx.NodeProto]:
        if level == 0:
            return [relu("a", "b")]
        name = f"F{level - 1}"
        if not in_branches:
            return [helper.make_node(name, [a], [b], domain="f") for a, b in (("a", "t"), ("t", "b"))]
        branches = [
            helper.make_graph(
                [helper.make_node(name, ["a"], [end], domain="f")], end, [], [onnx.ValueInfoProto(name=end)]
            )
            for end in ("then", "else")
        ]
        always = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True)))
        return [always, helper.make_node("If", ["c"], ["b"], then_branch=branches[0], else_branch=branches[1])]

    proto = model_of([helper.make_node(f"F{levels}", ["x"], ["y"], domain="f")], X, ["y"])
    proto.opset_import.append(opsets[1])
    for level in range(levels + 1):
        proto.functions.append(helper.make_function("f", f"F{level}", ["a"], ["b"], body(level), opsets))
    return proto


@pytest.mark.parametrize("in_branches", [False, True])
def test_small_files_cannot_ask_for_many_nodes(in_branches: bool) -> None:
    """Local functions that double with every level are refused before they are inlined."""
    refused(doubling(17, in_branches=in_branches), "functions expand to more than")


def test_what_functions_hold_is_counted_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight inside a local function counts once per call of it."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    weight = numpy_helper.from_array(np.ones((1, 4), np.float32))
    body = [helper.make_node("Constant", [], ["w"], value=weight), helper.make_node("Add", ["a", "w"], ["b"])]
    proto = model_of([helper.make_node("F", [a], [b], domain="f") for a, b in ("xs", "st", "ty")], X, ["y"])
    proto.opset_import.append(opsets[1])
    proto.functions.append(helper.make_function("f", "F", ["a"], ["b"], body, opsets))
    size = sum(node.ByteSize() for node in body)
    monkeypatch.setattr(source, "MAX_MODEL_BYTES", 3 * size)
    assert len(read_model(proto).graph.ops) == 3
    monkeypatch.setattr(source, "MAX_MODEL_BYTES", 3 * size - 1)
    refused(proto, "functions expand to more than")


def test_functions_that_cannot_be_inlined_are_refused() -> None:
    """A function that calls itself, and a chain of calls too deep for the inliner."""
    proto = doubling(0, in_branches=False)
    proto.functions[0].node[0].CopyFrom(helper.make_node("F0", ["a"], ["b"], domain="f"))
    refused(proto, "local functions")
    deep = doubling(200, in_branches=False)
    for function in deep.functions[1:]:
        del function.node[1]
        function.node[0].output[0] = "b"
    refused(deep, "local functions", "depth")


def test_mutated_files_give_a_model_or_one_clear_line() -> None:
    """Random damage to a model's bytes never ends in any exception but ours."""
    rng = random.Random(2)
    originals = [RandomModel(seed, 10).proto.SerializeToString() for seed in range(8)]
    originals += [build().SerializeToString() for build in OPAQUE_MODELS]
    read, messages = 0, []
    for _ in range(MUTANTS):
        data = bytearray(rng.choice(originals))
        for _ in range(rng.choice([1, 1, 2, 8])):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            read_model(bytes(data))
            read += 1
        except HopeError as error:
            messages.append(str(error))
    assert not [message for message in messages if "\n" in message]
    assert min(read, len(messages)) > MUTANTS // 50, "the damage is too light or too heavy to prove anything"


@pytest.mark.parametrize(
    ("op", "attribute", "value"),
    [("LayerNormalization", "axis", 2**31), ("GatherND", "batch_dims", -1), ("Split", "num_outputs", 2**16)],
)
def test_an_attribute_beyond_all_bounds_is_refused(op: str, attribute: str, value: int) -> None:
    """ONNX's rules read what is not theirs at one, -100 batch dimensions say, or make as many outputs as it says."""
    second = {"LayerNormalization": np.ones(4, np.float32), "GatherND": np.zeros((2, 1), np.int64)}
    weights = {"w": second[op]} if op in second else {}
    node = helper.make_node(op, ["x", *weights], ["y"], **{attribute: value})
    refused(model_of([node], X, ["y"], weights, opset=18), op, f"its {attribute} is beyond all bounds")


def test_errors_name_the_model(tmp_path: Path) -> None:
    """A problem inside the graph is told with the file it was found in."""
    proto = model_of([helper.make_node("Warp", ["x"], ["y"])], X, ["y"])
    path = tmp_path / "odd.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"odd\.onnx.*Warp"):
        read_model(path)


def sparse(dims: list[int], values: np.ndarray, indices: np.ndarray) -> onnx.SparseTensorProto:
    """Return sparse weights called w."""
    return helper.make_sparse_tensor(
        numpy_helper.from_array(values, "w"), numpy_helper.from_array(indices.astype(np.int64), "at"), dims
    )


def test_sparse_weights_that_contradict_themselves_are_refused() -> None:
    """An index outside, more values than indices, and a shape of terabytes that a few bytes ask for."""
    add, two = helper.make_node("Add", ["x", "w"], ["y"]), np.ones(2, np.float32)
    for dims, indices in (([4], [1, 7]), ([4], [1]), ([1, 4], [[0, 1], [3, 0]]), ([2**40], [0, 1])):
        proto = model_of([add], X, ["y"])
        proto.graph.sparse_initializer.append(sparse(dims, two, np.array(indices)))
        refused(proto, "sparse weights")
    unknown = model_of([add], X, ["y"])
    unknown.graph.sparse_initializer.append(sparse([4], two, np.array([0, 1])))
    unknown.graph.sparse_initializer[0].indices.data_type = 47
    refused(unknown, "sparse weights")


def test_names_inside_branches_are_checked() -> None:
    """A subgraph that reads what nothing produces, or whose weights are cut off, is refused like the graph around."""
    for broken in (relu("nothing", "b"), helper.make_node("Add", ["x", "w"], ["b"])):
        weights = numpy_helper.from_array(np.ones((1, 4), np.float32), "w")
        weights.raw_data = b"\0" * 12
        branch = helper.make_graph([broken], "branch", [], [onnx.ValueInfoProto(name="b")])
        if "w" in broken.input:
            branch.initializer.append(weights)
        flow = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
        proto = model_of([flow], X, ["y"])
        proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
        refused(proto, "'w'" if "w" in broken.input else "'nothing'")


def test_shapes_that_cannot_be_are_refused() -> None:
    """Another rank, another fixed size, two sizes for one symbol, no such input, no number, and what ops refuse."""
    nodes = [helper.make_node("Add", ["x", "z"], ["y"])]
    proto = model_of(nodes, {"x": ["n", 4], "z": ["n", "k"]}, ["y"])
    for shapes, words in (
        ({"x": (2, 4, 1)}, ("'x'", "2 dimensions")),
        ({"x": (2, 5)}, ("'x'", "dimension 1", "4")),
        ({"x": (2, 4), "z": (3, 4)}, ("'n'", "3 in input 'z'", "2 in 'x'")),
        ({"q": (1,)}, ("no input 'q'", "x, z")),
        ({"x": (2, -4)}, ("'x'", "whole numbers")),
        ({"x": (2**40, 4)}, ("'x'",)),
        ({"x": (2, 4)}, ("'z'", "'k'", "--shape z=")),
        ({"z": (2, 3)}, ("'y' (Add)", "not valid")),
    ):
        with pytest.raises(HopeError) as caught:
            read_model(proto, shapes=shapes)
        assert all(word in str(caught.value) for word in words), caught.value

"""A graph is a value: strict about what it accepts, and hashed by what matters alone."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hope_schema import ModelGraph, Op, Tensor, TensorType
from hope_schema.hashing import canonical, digest
from tests.schema.graphs import chain, graphs, relisted, renamed


@given(graph=graphs())
def test_json_round_trip_loses_nothing(graph: ModelGraph) -> None:
    """What crosses the wire comes back equal, with the same hash."""
    back = ModelGraph.model_validate_json(graph.model_dump_json())
    assert back == graph
    assert back.model_hash == graph.model_hash


@given(graph=graphs(), seed=st.integers())
def test_the_hash_ignores_listing_and_model_name(graph: ModelGraph, seed: int) -> None:
    """The order in which a file lists ops and tensors, and what the model is called, do not enter."""
    other = relisted(graph, random.Random(seed))
    assert other.model_hash == graph.model_hash
    assert [op.id for op in other.topological_ops] == [op.id for op in graph.topological_ops]


@given(graph=graphs(min_ops=2), data=st.data())
def test_the_hash_sees_every_change_that_matters(graph: ModelGraph, data: st.DataObject) -> None:
    """A changed shape, dtype, tensor name, type, attribute, constant, or interface gives another hash."""
    body = json.loads(graph.model_dump_json())
    tensor = data.draw(st.sampled_from(range(len(body["tensors"]))))
    op = data.draw(st.sampled_from(range(len(body["ops"]))))
    change = data.draw(st.sampled_from(["shape", "dtype", "name", "type", "attribute", "parameter", "output"]))
    if change == "shape":
        body["tensors"][tensor]["shape"].append(1)
    elif change == "dtype":
        body["tensors"][tensor]["dtype"] = "float16"
    elif change == "name":
        names = {t.name: t.name for t in graph.tensors}
        names[body["tensors"][tensor]["name"]] = "another name"
        body = json.loads(renamed(graph, names).model_dump_json())
    elif change == "type":
        body["ops"][op]["type"] = "Other"
    elif change == "attribute":
        body["ops"][op]["attributes"]["extra"] = 1
    elif change == "parameter":
        body["ops"][op]["parameters"].append({"shape": [7], "dtype": "int8"})
    else:
        extra = next((o["outputs"][0] for o in body["ops"] if o["outputs"][0] not in body["outputs"]), None)
        if extra is None:
            return
        body["outputs"].append(extra)
    assert ModelGraph.model_validate_json(json.dumps(body)).model_hash != graph.model_hash


def test_integer_and_float_attributes_stay_apart() -> None:
    """2 and 2.0 are different attributes, before and after a trip over the wire."""
    whole, real = (chain(Op(type="A", inputs=("x",), outputs=("y",), attributes={"a": value})) for value in (2, 2.0))
    assert whole.model_hash != real.model_hash
    for graph in (whole, real):
        value = ModelGraph.model_validate_json(graph.model_dump_json()).ops[0].attributes["a"]
        assert type(value) is type(graph.ops[0].attributes["a"])


@given(graph=graphs())
def test_views_agree_with_a_plain_reading(graph: ModelGraph) -> None:
    """Producer, consumers and topological order are what a naive reading of the lists gives."""
    for name in (tensor.name for tensor in graph.tensors):
        writers = [op.id for op in graph.ops if name in op.outputs]
        assert [graph.producer[name]] == writers if writers else name in graph.inputs
        assert list(graph.consumers.get(name, ())) == [op.id for op in graph.ops if name in op.inputs]
    seen = set(graph.inputs)
    for op in graph.topological_ops:
        assert seen.issuperset(op.inputs)
        seen.update(op.outputs)
    assert len(graph.topological_ops) == len(graph.ops)


def body() -> dict[str, Any]:
    """Return the JSON of a small valid graph: x -> Conv -> t0 -> Relu -> t1."""
    return json.loads(chain(("Conv", 1), "Relu").model_dump_json())


def refused(broken: dict[str, Any]) -> str:
    """Return the one message with which the body is refused."""
    with pytest.raises(ValidationError) as caught:
        ModelGraph.model_validate_json(json.dumps(broken))
    (error,) = caught.value.errors()
    return f"{error['loc']} {error['msg']}"


def test_a_cycle_is_named_by_an_op_on_it() -> None:
    """A loop is refused, also one of a single op that reads itself; the message names an op of the loop."""
    loop = body()
    loop["ops"][0]["inputs"] = ["t1"]
    assert "cycle through op 't0'" in refused(loop)
    itself = body()
    itself["ops"][1]["inputs"] = ["t1"]
    assert "cycle through op 't1'" in refused(itself)


def test_a_cycle_behind_an_acyclic_part_is_blamed_on_itself() -> None:
    """Ops that merely wait for a loop are not called part of it."""
    graph = body()
    graph["tensors"] += [{"name": n, "shape": [1], "dtype": "float32"} for n in ("after", "p", "q")]
    graph["ops"] += [
        {"type": "Relu", "inputs": ["q"], "outputs": ["after"]},
        {"type": "Relu", "inputs": ["q"], "outputs": ["p"]},
        {"type": "Relu", "inputs": ["p"], "outputs": ["q"]},
    ]
    message = refused(graph)
    assert "'p'" in message or "'q'" in message


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("ops", 0, "inputs"), ["ghost"], "'ghost', which is not declared"),
        (("ops", 1, "outputs"), ["t0"], "'t0' is produced twice"),
        (("ops", 1, "outputs"), ["x"], "'x' is produced twice"),
        (("ops", 1, "outputs"), ["t1", "t1"], "'t1' is produced twice"),
        (("ops", 1, "outputs"), [], "at least 1"),
        (("ops", 0, "type"), "", "at least 1"),
        (("ops", 0, "type"), "a\nb", "pattern"),
        (("ops", 0, "kind"), "x", "Extra inputs"),
        (("ops", 0, "attributes"), {"a": None}, ""),
        (("ops",), [], "at least 1"),
        (("outputs",), [], "at least 1"),
        (("outputs",), ["t1", "t1"], "twice"),
        (("outputs",), ["ghost"], "'ghost'"),
        (("inputs",), ["x", "x"], "twice"),
        (("inputs",), [], "'x', which nothing produces"),
        (("inputs",), ["x", "ghost"], "'ghost'"),
        (("tensors", 1, "name"), "x", "declares a tensor twice"),
        (("tensors", 0, "shape"), [-1], "greater than or equal to 0"),
        (("tensors", 0, "shape"), [2**31], "less than or equal"),
        (("tensors", 0, "shape"), [1.0], "integer"),
        (("tensors", 0, "shape"), ["1"], "integer"),
        (("tensors", 0, "shape"), [True], "integer"),
        (("tensors", 0, "shape"), [1] * 17, "at most 16"),
        (("tensors", 0, "dtype"), "float8", "Input should be"),
        (("tensors", 0, "name"), "", "at least 1"),
        (("tensors", 0, "name"), "a\u0000b", "pattern"),
        (("tensors", 0, "name"), "a" * 513, "at most 512"),
        (("name",), "", "at least 1"),
        (("name",), "a\u0000b", "pattern"),
        (("weights",), [1.0], "Extra inputs"),
    ],
)
def test_bad_graphs_are_refused_with_one_message(path: tuple[str | int, ...], value: object, words: str) -> None:
    """Every malformed field is refused at its place, naming what is wrong."""
    broken = body()
    place: Any = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValidationError) as caught:
        ModelGraph.model_validate_json(json.dumps(broken))
    assert any(words in f"{error['loc']} {error['msg']}" for error in caught.value.errors())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_attributes_that_are_no_numbers_are_refused(number: str) -> None:
    """NaN and infinity cannot be hashed alike everywhere, so they do not get in."""
    text = json.dumps(body()).replace('"attributes": {}', '"attributes": {"a": ' + number + "}", 1)
    with pytest.raises(ValidationError):
        ModelGraph.model_validate_json(text)
    with pytest.raises(ValueError, match="Out of range"):
        canonical({"a": float("nan")})


def test_graphs_are_values() -> None:
    """A graph cannot be changed after it was checked."""
    graph = chain("Conv")
    with pytest.raises(ValidationError, match="frozen"):
        graph.name = "other"


def test_sizes_in_bytes() -> None:
    """Scalars hold one element, empty tensors none, and half-byte types round up."""
    assert TensorType(shape=(), dtype="float32").bytes == 4
    assert TensorType(shape=(3, 0), dtype="int64").bytes == 0
    assert TensorType(shape=(3,), dtype="int4").bytes == 2
    assert Tensor(name="a", shape=(2, 3), dtype="float16").bytes == 12
    assert str(Tensor(name="a", shape=(2, 3), dtype="float16")) == str(TensorType(shape=(2, 3), dtype="float16"))


SCALARS = st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False) | st.none() | st.booleans()


@given(value=st.dictionaries(st.text(), SCALARS | st.lists(SCALARS, max_size=4), max_size=4))
def test_the_canonical_form_is_exact(value: dict[str, object]) -> None:
    """Canonical JSON reads back as the value, and equal digests mean equal text."""
    try:
        text = canonical(value)
    except UnicodeEncodeError:
        return  # lone surrogates are no text
    assert json.loads(text) == value
    assert digest(value) == digest(json.loads(text))

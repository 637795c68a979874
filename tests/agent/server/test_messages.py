"""The messages are those of the protocol's file, and tensors are the same on both sides of the wire."""

from __future__ import annotations

import struct
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as drawn
from tritonclient.grpc import service_pb2 as theirs

from agent_sdk.errors import RefusedError
from agent_sdk.model.ports import Port
from agent_sdk.protocol.messages import COMPILED, message, methods
from agent_sdk.scheduling.job import Terms
from agent_sdk.server.access import Access, Address
from agent_sdk.server.admission import Admission
from agent_sdk.server.datatypes import NUMPY, from_bytes, from_values, to_bytes
from agent_sdk.server.metrics import Metrics
from agent_sdk.server.models import Feed, Models, Served, schedule
from agent_sdk.server.rpc import Grpc


def test_the_compiled_messages_are_those_of_the_file(tmp_path: Path) -> None:
    """``inference.pb`` was made from ``inference.proto`` as it is."""
    made = tmp_path / COMPILED
    folder = files("agent_sdk.protocol")
    assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={made}", "inference.proto"]) == 0
    kept = FileDescriptorSet.FromString((folder / COMPILED).read_bytes())
    assert FileDescriptorSet.FromString(made.read_bytes()) == kept


@pytest.mark.parametrize("name", ["ModelInferRequest", "ModelInferResponse", "ModelMetadataResponse", "InferParameter"])
def test_the_messages_have_the_protocol_s_numbers(name: str) -> None:
    """Every field has the number and the type that it has in an independent client."""
    known = theirs.DESCRIPTOR.message_types_by_name[name].fields_by_name
    ours = message(name).DESCRIPTOR.fields_by_name
    assert {field: (one.number, one.type) for field, one in ours.items()} == {
        field: (one.number, one.type) for field, one in known.items()
    }
    assert {"ModelInfer", "ModelStreamInfer", "ServerLive"} <= set(methods())


def test_a_stream_outlives_a_fault_of_ours() -> None:
    """Its client is told no more than the kind of it, and the requests behind it are answered."""
    faults: list[Exception] = [KeyError("a secret")]

    def run(feed: Feed, terms: Terms) -> Feed:
        if faults:
            raise faults.pop()
        return {"y": np.ones(1, np.float32)}

    models = Models([Served("net", [], [Port("y", "tensor(float)", (1,))], run)], Metrics())
    served = Grpc(models, Admission(memory=2**20, requests=8), Access([]), Address("127.0.0.1", 0), None)
    asked = [message("ModelInferRequest")(model_name="net", id=str(number)) for number in range(2)]
    context = SimpleNamespace(invocation_metadata=tuple, add_callback=lambda _: True)
    failed, answered = served._stream(iter(asked), context)
    served.stop(0.0)
    assert failed.error_message == "the server failed: KeyError"
    assert (failed.infer_response.id, answered.infer_response.id) == ("0", "1")
    assert answered.infer_response.raw_output_contents == [np.ones(1, np.float32).tobytes()]


@pytest.mark.parametrize("shape", [[0, 2**62], [2**62, 0], [2**40, 2**40], [-1, 4]])
def test_a_shape_that_no_tensor_has_is_refused(shape: list[int]) -> None:
    """Also one without elements, which no bytes contradict."""
    served = Served("open", [Port("x", "tensor(float)", ("a", "b"))], [], lambda feed, terms: feed)
    served.check("x", "FP32", [0, 2**40])
    with pytest.raises(RefusedError, match="no tensor has"):
        served.check("x", "FP32", shape)


@given(st.sampled_from(sorted(NUMPY)), st.data())
def test_tensors_survive_the_wire(datatype: str, data: st.DataObject) -> None:
    """What is sent as bytes, at any address, and what is written out both come back as they were, bit for bit."""
    shape = data.draw(drawn.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    array = data.draw(drawn.arrays(NUMPY[datatype], shape))
    for shift in (0, 1):
        sent = memoryview(bytes(shift) + bytes(to_bytes(array)))[shift:]
        found = from_bytes("x", datatype, shape, sent)
        assert found.tobytes() == array.tobytes()
        assert found.flags.aligned
    written_out = from_values("x", datatype, shape, array.ravel().tolist())
    np.testing.assert_array_equal(written_out, array)


@given(st.lists(st.text(max_size=5), max_size=6))
def test_texts_survive_the_wire(texts: list[str]) -> None:
    """Texts of any characters come back as they were."""
    array = np.array(texts, object)
    assert from_bytes("x", "BYTES", [len(texts)], to_bytes(array)).tolist() == texts
    assert from_values("x", "BYTES", [len(texts)], texts).tolist() == texts


@given(st.integers(0, 3), st.binary(max_size=24))
def test_any_bytes_are_texts_or_refused(count: int, data: bytes) -> None:
    """Whatever arrives as texts is read to its last byte or refused; nothing else is raised."""
    try:
        found = from_bytes("x", "BYTES", [count], data)
    except RefusedError:
        return
    assert b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in found.tolist()) == data


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("INT8", [128]),
        ("UINT8", [-1]),
        ("UINT64", [2**64]),
        ("INT32", [1.0]),
        ("BOOL", [1]),
        ("FP32", ["1"]),
        ("INT8", [True]),
    ],
)
def test_values_that_a_type_lacks_are_refused(datatype: str, values: list[object]) -> None:
    """A value outside of its type's bounds, or of another type, is refused, never changed."""
    with pytest.raises(RefusedError):
        from_values("x", datatype, [1], values)


def test_priorities_and_timeouts_become_priorities_and_deadlines() -> None:
    """Level 1 goes first and each further one later; microseconds become milliseconds; zero means neither."""
    assert schedule({}, "drop") == schedule({"priority": 0, "timeout": 0}, "drop") == Terms(on_late="drop")
    priorities = [schedule({"priority": level}, "late").priority for level in (1, 2, 50, 201, 1000)]
    assert priorities == sorted(priorities, reverse=True)
    assert priorities[0] == 100
    assert priorities[-1] == -100
    assert schedule({"timeout": 2500}, "late").deadline_ms == 2.5
    with pytest.raises(RefusedError, match="deadline_ms"):
        schedule({"timeout": 2**62}, "late")

"""What devices upload is checked before it can spoil anything: numbers, columns, processors."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from pydantic import ValidationError

from hope_schema import Missing, MissingRequest, Observations, Processor, Profile

KIND = "onnxruntime-1.0/1xcore"
CORE: dict[str, Any] = {
    "id": "ort@0", "runtime": "onnxruntime", "version": "1.0", "threads": 1, "core_class": "core",
    "resources": ["cpu0"], "place": "host/ort",
}  # fmt: skip


def upload() -> dict[str, Any]:
    """Return the JSON of a small valid upload."""
    return copy.deepcopy({
        "soc": "soc", "frequency": "default", "device_id": "device", "upload_id": "upload",
        "processors": [CORE, CORE | {"id": "ort@1", "resources": ["cpu1"]}],
        "latencies": {
            "signature": ["Conv:1", "LRN:2"], "kind": [KIND, KIND],
            "us": [1.5, None], "spread_us": [0.1, 0.0], "count": [9, 1],
        },
        "transfers": {
            "tensor": [{"shape": [1, 8], "dtype": "float32"}], "source": ["host"], "target": ["host/ort"],
            "us": [0.0], "spread_us": [0.0], "count": [3],
        },
        "overheads": {"launch_us": {KIND: 2.0}, "end_us": {KIND: 22.0}},
    })  # fmt: skip


def test_an_upload_survives_the_wire() -> None:
    """Unsupported stays null, zero stays zero, equal cores share a kind."""
    first = Observations.model_validate_json(json.dumps(upload()))
    assert Observations.model_validate_json(first.model_dump_json()) == first
    assert first.latencies.us == (1.5, None)
    assert {processor.kind for processor in first.processors} == {KIND}


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("latencies", "us", 0), -1.0, "greater than or equal to 0"),
        (("latencies", "us", 0), 1e13, "less than or equal"),
        (("latencies", "us", 0), "1.5", "valid number"),
        (("latencies", "spread_us", 0), -0.1, "greater than or equal to 0"),
        (("latencies", "spread_us", 0), None, "valid number"),
        (("latencies", "count", 0), 0, "greater than or equal to 1"),
        (("latencies", "count", 0), 1.5, "integer"),
        (("latencies", "us"), [1.5], "latency columns differ in length"),
        (("latencies", "count"), [1, 1, 1], "latency columns differ in length"),
        (("latencies", "kind", 0), "onnxruntime-9.9/1xcore", "which no listed processor has"),
        (("latencies", "kind", 0), "host", "which no listed processor has"),
        (("latencies", "signature", 0), "a\u0000b", "row 0 holds a control character"),
        (("latencies", "signature", 0), "", "at least 1"),
        (("latencies", "extra"), [], "Extra inputs"),
        (("transfers", "us", 0), -1.0, "greater than or equal to 0"),
        (("transfers", "us", 0), None, "valid number"),
        (("transfers", "us"), [], "transfer columns differ in length"),
        (("transfers", "target", 0), "gpu", "place 'gpu', which no listed processor computes in"),
        (("channels",), [{"source": "host", "target": "gpu"}], "place 'gpu', which no listed processor computes in"),
        (("channels",), [{"source": "host", "target": "host"}], "to itself"),
        (("channels",), [{"source": "host", "target": "host/ort"}] * 2, "two channels"),
        (("channels",), [{"source": "host", "target": "host/ort", "fixed_us": 1.0}], "given together"),
        (("latencies", "share"), [0.0, 1.0], "greater than 0"),
        (("latencies", "share"), [1.5, 1.0], "less than or equal to 1"),
        (("latencies", "share"), [0.5], "latency columns differ in length"),
        (("overheads", "slowdown"), {KIND: 0.5}, "greater than or equal to 1"),
        (("overheads", "spread"), {KIND: 1.5}, "less than or equal to 1"),
        (("overheads", "spread"), {KIND: -0.1}, "greater than or equal to 0"),
        (("overheads", "spread"), {"gpu-1/1xgpu": 0.1}, "which no listed processor has"),
        (("overheads", "end_us"), {"gpu-1/1xgpu": 1.0}, "which no listed processor has"),
        (("transfers", "tensor", 0, "shape"), [-1], "greater than or equal to 0"),
        (("overheads", "launch_us"), {"gpu-1/1xgpu": 1.0}, "which no listed processor has"),
        (("overheads", "end_us", KIND), -1.0, "greater than or equal to 0"),
        (("overheads", "handover_us"), 1.0, "Extra inputs"),
        (("processors", 1, "id"), "ort@0", "stands twice"),
        (("processors", 0, "threads"), 0, "greater than or equal to 1"),
        (("processors", 0, "resources"), [], "at least 1"),
        (("processors", 0, "id"), "ort 0", "it holds ' '"),
        (("soc",), "", "at least 1"),
        (("soc",), "../../etc", "it begins with"),
        (("soc",), "soc\n", "it holds"),
        (("device_id",), "a" * 129, "at most 128"),
        (("origin",), "guess", "Input should be"),
        (("weights",), [], "Extra inputs"),
    ],
)
def test_bad_uploads_are_refused(path: tuple[str | int, ...], value: object, words: str) -> None:
    """Each malformed field is refused, and the message says what is wrong with it."""
    broken = upload()
    place: Any = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ValidationError) as caught:
        Observations.model_validate_json(json.dumps(broken))
    assert any(words in str(error["msg"]) for error in caught.value.errors())


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_figures_that_are_no_numbers_are_refused(number: str) -> None:
    """NaN and infinity, as JSON parsers write them, are no latencies."""
    text = json.dumps(upload())
    for old in ("1.5", "22.0", "0.1"):
        with pytest.raises(ValidationError):
            Observations.model_validate_json(text.replace(old, number, 1))


def test_a_kind_tells_apart_what_is_measured_apart() -> None:
    """Runtime, version, threads, core class, precision and host enter the kind; id and which core it is do not."""
    base = Processor.model_validate_json(json.dumps(CORE))
    same = [CORE | {"id": "other"}, CORE | {"resources": ["cpu7"]}]
    other = [CORE | {"runtime": "ncnn"}, CORE | {"version": "2"}, CORE | {"threads": 2}, CORE | {"core_class": "big"}]
    other.append(CORE | {"precision": "float16"})
    other.append(CORE | {"host": "box2", "id": "box2:a", "place": "box2:host", "resources": ["box2:cpu0"]})
    assert {Processor.model_validate_json(json.dumps(p)).kind for p in same} == {base.kind}
    assert len({base.kind, *(Processor.model_validate_json(json.dumps(p)).kind for p in other)}) == 7


def test_what_belongs_to_another_host_carries_its_name() -> None:
    """A processor of another host whose place reads like the device's own would make moves between them free."""
    with pytest.raises(ValidationError, match="belongs to host 'box2', so it reads 'box2:host'"):
        Processor.model_validate(
            {
                **json.loads(json.dumps(CORE)),
                "host": "box2",
                "id": "box2:a",
                "resources": ("box2:cpu0",),
                "place": "host",
            }
        )


def test_a_profile_needs_a_version() -> None:
    """A profile is versioned; without one, or with a negative one, it is refused."""
    body = {key: value for key, value in upload().items() if key not in ("device_id", "upload_id")}
    for broken in (body, body | {"version": -1}, body | {"version": 1, "device_id": "d"}):
        with pytest.raises(ValidationError):
            Profile.model_validate_json(json.dumps(broken))
    assert Profile.model_validate_json(json.dumps(body | {"version": 3})).version == 3


def test_a_request_for_what_is_missing_needs_processors() -> None:
    """A device that names no processor, or a negative amount, is refused; an empty answer is a valid one."""
    body: dict[str, Any] = {
        "model_hash": "0" * 64,
        "soc": "s",
        "frequency": "f",
        "device_id": "d",
        "processors": [CORE],
    }
    assert MissingRequest.model_validate_json(json.dumps(body)).max_items is None
    for change in ({"processors": []}, {"max_items": -1}, {"model_hash": "0" * 63}, {"model_hash": "G" * 64}):
        with pytest.raises(ValidationError):
            MissingRequest.model_validate_json(json.dumps(body | change))
    assert Missing(profile_version=0).latencies == ()

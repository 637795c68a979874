"""Hostile bodies cost what they weigh: nothing is collected or holds up the event loop, and nobody unknown is read."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError
from sqlalchemy import event

from hope_schema import (
    DeviceReport,
    Enrolment,
    FanoutRequest,
    Missing,
    MissingLatency,
    MissingRequest,
    ModelGraph,
    Observations,
    PlanRequest,
    ProofRequest,
)
from planner_api.db.engine import Database
from planner_api.models.reading import read_graph
from planner_api.models.repository import AT_ONCE, insert_features
from planner_api.models.repository import features as stored_features
from planner_api.profiles.reading import read_upload
from planner_api.web.body import is_slow
from planner_api.web.errors import HttpError
from planner_api.web.inflate import MOST_EXPANDED, Body
from planner_api.web.problems import answer
from planner_api.web.shape import parse, shape_of
from tests import CAMPAIGN
from tests.planner.samples import (
    JSON,
    PROCESSORS,
    Api,
    chain,
    enrolled,
    issue,
    measure,
    missing_request,
    plan_request,
)
from tests.schema.graphs import graphs

KINDS: tuple[type[BaseModel], ...] = (
    DeviceReport, Enrolment, FanoutRequest, MissingRequest, ModelGraph, Observations, PlanRequest,
    ProofRequest,
)  # fmt: skip
"""What any route reads."""
UNITS = (
    "{}", "[]", '""', '"a"', "1", "-1", "1e300", "5e-324", "null", "true", '"":1', '"a":{}', '"a":"b"', '{"a":1}',
    "[[]]",
    '"\\n"', '{"shape":[],"dtype":"bool"}', '{"shape":[-1],"dtype":"x","name":""}', '{"outputs":[""],"type":""}',
)  # fmt: skip
SIZE = 16 * 2**20 if CAMPAIGN else 2**18
SECONDS_PER_BYTE, MEMORY_PER_BYTE = 4e-6, 32
"""An honest upload takes 10 ns a byte, one of extreme exponents up to 2 µs: msgspec reads each in some 10 µs, which is
why little is read on the event loop. What pydantic collects of a hostile one took 1400 bytes a byte."""
FIXED_S, FIXED_BYTES = 0.05, 8 * 2**20


def peak(process: int | str = "self") -> int:
    """The most memory a process held since ``forget_peak``, in bytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def forget_peak(process: int | str = "self") -> int:
    """Start anew; return what is held now."""
    Path(f"/proc/{process}/clear_refs").write_text("5")
    return peak(process)


def places(shape: Any) -> Iterator[tuple[str, str]]:
    """What stands before and after the items of every array and object in a message, however deep."""
    inspected = msgspec.inspect.type_info(shape)

    def walk(node: Any, before: str, after: str) -> Iterator[tuple[str, str]]:
        match node:
            case msgspec.inspect.StructType():
                yield before + "{", "}" + after
                for field in node.fields:
                    yield from walk(field.type, f'{before}{{"{field.encode_name}":', "}" + after)
            case msgspec.inspect.ListType():
                yield before + "[", "]" + after
                yield from walk(node.item_type, before + "[", "]" + after)
            case msgspec.inspect.DictType():
                yield before + "{", "}" + after
                yield from walk(node.value_type, before + '{"a":', "}" + after)
            case msgspec.inspect.UnionType():
                for alternative in node.types:
                    yield from walk(alternative, before, after)

    yield from walk(inspected, "", "")


PLACES = [(kind, before, after) for kind in KINDS for before, after in places(shape_of(kind))]


@given(place=st.sampled_from(PLACES), units=st.lists(st.sampled_from(UNITS), min_size=1, max_size=3))
@settings(max_examples=500 if CAMPAIGN else 120)
def test_a_hostile_body_costs_what_it_weighs(place: tuple[type[BaseModel], str, str], units: list[str]) -> None:
    """Whatever is repeated wherever in a body of any route, time and memory stay a small multiple of its bytes."""
    kind, before, after = place
    unit = ",".join(units) + ","
    body = (before + unit * (SIZE // len(unit)) + units[0] + after).encode()
    read = {ModelGraph: read_graph, Observations: read_upload}.get(kind, lambda text: parse(text, kind))
    held, started = forget_peak(), time.thread_time()
    with pytest.raises(HttpError) as refused:
        read(body)
    took = time.thread_time() - started
    assert took < FIXED_S + SECONDS_PER_BYTE * len(body)
    assert peak() - held < FIXED_BYTES + MEMORY_PER_BYTE * len(body)
    assert refused.value.status in (400, 422)
    assert len(answer(refused.value, None, None)[1]) < 20_000


AGAIN = ('"soc":"a",', '"latencies":{},', '"latencies":{"us":[1,2,3,4]},', '"processors":[],', '"overheads":{},')


@pytest.mark.parametrize("key", AGAIN)
def test_keys_that_come_again_cost_what_they_weigh(key: str) -> None:
    """A body that is valid but for one key that comes thousands of times is read as if it came once, within bounds."""
    rest = measure(Missing(profile_version=0)).model_dump_json()[1:]
    body = ("{" + key * (SIZE // len(key)) + rest).encode()
    held, started = forget_peak(), time.thread_time()
    assert parse(body, Observations) == Observations.model_validate_json("{" + rest)
    assert time.thread_time() - started < FIXED_S + SECONDS_PER_BYTE * len(body)
    assert peak() - held < FIXED_BYTES + MEMORY_PER_BYTE * len(body)


def broken(value: Any, path: list[int], junk: Any) -> Any:
    """A copy of a JSON value with junk somewhere in it; ``path`` chooses where."""
    if not path or not isinstance(value, (dict, list)) or not value:
        return junk
    at = path[0] % len(value)
    if isinstance(value, list):
        return [*value[:at], broken(value[at], path[1:], junk), *value[at + 1 :]]
    key = list(value)[at]
    return {**value, key: broken(value[key], path[1:], junk)}


JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=5),
    st.just([]), st.just({}), st.just([[]]), st.just("x" * 5000), st.just(1e13),
)  # fmt: skip


@given(graph=graphs(), path=st.lists(st.integers(0, 50), max_size=6), junk=JUNK, which=st.integers(0, 3))
@settings(max_examples=1000 if CAMPAIGN else 150)
def test_reading_by_shape_accepts_what_the_contract_accepts(
    graph: ModelGraph, path: list[int], junk: Any, which: int
) -> None:
    """A message with one thing changed is read as pydantic alone reads it, or refused by both."""
    message: BaseModel = (
        graph,
        measure(Missing(profile_version=0)),
        missing_request(graph),
        plan_request(graph),
    )[which]
    text = msgspec.json.encode(broken(message.model_dump(mode="json"), path, junk))
    kind = type(message)
    try:
        expected = kind.model_validate_json(text)
    except ValidationError:
        with pytest.raises(HttpError):
            parse(text, kind)
    else:
        assert parse(text, kind) == expected


def bomb(before: str, unit: str, after: str, size: int = 16 * 2**20 - 1024) -> bytes:
    """A body that inflates to almost the limit."""
    parts = before.encode(), repeated(unit, size), (unit.rstrip(",") + after).encode()
    compressing = zstandard.ZstdCompressor().compressobj(size=sum(map(len, parts)))
    return b"".join([*map(compressing.compress, parts), compressing.flush()])


@lru_cache(1)
def repeated(unit: str, size: int) -> bytes:
    """A unit as often as it fits."""
    return unit.encode() * (size // len(unit))


def padded(body: bytes, size: int = 16 * 2**20 // MOST_EXPANDED) -> bytes:
    """The same in so many bytes, by default enough to inflate to 16 MiB: what follows is a frame that readers skip."""
    rest = size - len(body) - 8
    return body + b"\x50\x2a\x4d\x18" + rest.to_bytes(4, "little") + bytes(rest)


KEYS = ",".join(f'"k{number}":1' for number in range(45_000))


@cache
def attacks() -> dict[str, tuple[str, str, bytes, int]]:
    """By name: the method, the path, the body and what the planner answers."""
    return {
        "versions": ("POST", "/devices", bomb('{"device_id":"x","versions":{', '"":1,', "}}"), 413),
        "report": ("PUT", "/devices/device-1/report", bomb('{"measured":[', "{},", "]}"), 413),
        "attributes": ("POST", "/models", padded(bomb('{"ops":[{"attributes":{"a":[', "{},", "]}}]}")), 422),
        "ops": ("POST", "/models", padded(bomb('{"ops":[', "{},", "]}")), 422),
        "columns": ("POST", "/profiles", padded(bomb('{"latencies":{"us":[', '"",', "]}}")), 422),
        "long columns": ("POST", "/profiles", padded(bomb('{"latencies":{"us":[', "1.5,", "]}}")), 413),
        "tiny numbers": ("POST", "/profiles", bomb('{"latencies":{"us":[', "5e-324,", "]}}", 95 * 1024), 422),
        "extra keys": ("POST", "/plans", zstandard.compress(f"{{{KEYS}}}".encode()), 413),
        "extra keys of an upload": ("POST", "/profiles", zstandard.compress(f"{{{KEYS}}}".encode()), 422),
        "processors": ("POST", "/profiles/missing", bomb('{"processors":[', "{},", "]}"), 413),
    }


pytestmark = pytest.mark.planner(tokens_required=True, rate_per_token=0, rate_per_address=0)


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As ``serve`` begins: a look at all that was loaded before is no part of any request. Callbacks are timed."""
    _held_up.clear()
    run = asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        began = time.thread_time()
        run(handle)
        _held_up.append(time.thread_time() - began)

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


_held_up: list[float] = []
HELD_UP_S = 0.002
"""A callback that takes less holds nobody up: so are looks at the queue, for news and at the time."""


@pytest.mark.usefixtures("frozen")
@pytest.mark.above_databases
def test_named_attacks(api: Api, database_url: str) -> None:
    """Bodies of a few KB that took seconds and gigabytes: with a token a quarter of a second and 256 MiB at most."""
    claim = issue(database_url, "claim")
    device = api.post("/devices", Enrolment(device_id="device-1"), authorization=f"Bearer {claim}").json()["token"]
    for name, (method, path, body, status) in attacks().items():
        assert len(body) < 300_000
        bearer = claim if path == "/devices" else device
        headers = {**JSON, "content-encoding": "zstd", "authorization": f"Bearer {bearer}"}
        busy, held = api.await_(_loop_s), forget_peak()
        answer = api.client.request(method, path, content=body, headers=headers)
        assert answer.status_code == status, (name, answer.text)
        assert api.await_(_loop_s) - busy < 0.25, name
        assert peak() - held < 64 * 2**20, name


LARGE = {ModelGraph: "/models", Observations: "/profiles"}
REPEATED = ("1.5,", '"a",', "[[]],", '{"shape":[],"dtype":"bool"},')


@pytest.mark.usefixtures("frozen")
@pytest.mark.above_databases
def test_sixteen_kilobytes_take_little_memory_whoever_reads_them(api: Api) -> None:
    """However far a device's body inflates, server and reading process hold 64 MiB more at most, and nobody waits."""
    device = {**JSON, **enrolled(api, "device-1"), "content-encoding": "zstd"}
    reader = api.app.planner.reader
    honest = measure(Missing(profile_version=0)).model_dump_json().encode()
    api.await_(reader.read, "idle", read_upload, lambda: Body(honest, "identity"))
    places = [(LARGE[kind], before, after) for kind, before, after in PLACES if kind in LARGE]
    bodies = {(path, b + unit): padded(bomb(b, unit, a), 16 * 1024) for unit in REPEATED for path, b, a in places}
    repeated.cache_clear()
    for (path, what), body in bodies.items():
        assert len(body) == 16 * 1024
        busy, held, held_there = api.await_(_loop_s), forget_peak(), forget_peak(reader.pid)
        answer = api.client.post(path, content=body, headers=device)
        assert answer.status_code in (400, 413, 422), (what, answer.text)
        assert api.await_(_loop_s) - busy < 0.05, what
        assert reader.pid is not None, what
        assert peak() - held + peak(reader.pid) - held_there < 64 * 2**20, what


@pytest.mark.usefixtures("frozen")
@pytest.mark.above_databases
def test_large_messages_are_read_elsewhere(api: Api) -> None:
    """What a device honestly sends of megabytes, a graph or its figures, holds up nobody either."""
    device = enrolled(api, "device-1")
    figures = tuple(MissingLatency(signature=f"Conv:{n:016x}", kind=PROCESSORS[0].kind) for n in range(20_000))
    graph = chain(8000)
    alike = graph.model_copy(update={"ops": tuple(op.model_copy(update={"attributes": {}}) for op in graph.ops)})
    for path, message in (
        ("/models", alike),
        ("/profiles", measure(Missing(profile_version=0, latencies=figures))),
    ):
        body = message.model_dump_json().encode()
        busy = api.await_(_loop_s)
        answer = api.post(path, body, **device)
        assert answer.status_code in (201, 202), answer.text
        assert api.await_(_loop_s) - busy < 0.25, path


def test_numbers_that_are_slow_to_read_are_read_elsewhere() -> None:
    """A body of 50 bytes that inflates to numbers as small, or as large, as a float can be holds nobody up."""
    for number in ("5e-324", "1e300", "1E-320", "-1e+0300"):
        assert is_slow(("[" + f"{number}, " * (95 * 1024 // 10)).encode())
    rows = tuple(MissingLatency(signature=f"Expand:{n:016x}", kind=PROCESSORS[0].kind) for n in range(1000))
    assert not is_slow(measure(Missing(profile_version=0, latencies=rows)).model_dump_json().encode())


def test_nobody_unknown_is_read(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a forged token, or a claim that is none, no byte of a body is inflated or parsed, on any route."""
    monkeypatch.setattr("planner_api.web.body.inflate", _never)
    monkeypatch.setattr("planner_api.web.body.receive", _never)
    for name, (method, path, body, _) in attacks().items():
        headers = {**JSON, "content-encoding": "zstd", "authorization": "Bearer hope_d_forged"}
        answer = api.client.request(method, path, content=body, headers=headers)
        assert answer.status_code == 401, (name, answer.text)


def test_signatures_of_a_large_graph_are_stored_in_steps(database_url: str) -> None:
    """No statement has rows of more than ``AT_ONCE`` signatures: the event loop is free between two of them."""
    features = {f"Conv:{number:016x}": b"{}" for number in range(2 * AT_ONCE + 1)}

    async def main() -> None:
        database, rows = Database(database_url), []

        @event.listens_for(database.writer.sync_engine, "before_cursor_execute")
        def count(_c: Any, _cursor: Any, _statement: str, parameters: Any, _context: Any, many: bool) -> None:
            rows.append(len(parameters) if many else 1)

        try:
            async with database.write() as session:
                await insert_features(session, features)
            async with database.read() as session:
                assert await stored_features(session, list(features)) == features
        finally:
            await database.close()
        assert max(rows) <= AT_ONCE

    asyncio.run(main())


async def _loop_s() -> float:
    """CPU seconds for which callbacks held up the event loop so far, however busy the machine is."""
    return sum(took for took in _held_up if took > HELD_UP_S)


def _never(*_: Any, **__: Any) -> Any:
    raise AssertionError("a body was read before its sender was known")

"""The planner client: retries, typed errors, limits, compression and revalidation."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime

import httpx
import pytest
import zstandard

from agent_sdk import errors
from agent_sdk.planner import client as client_module
from agent_sdk.planner.client import MAX_ATTEMPTS, PlannerClient
from hope_schema import DeviceReport, Job, ModelGraph, Observations, PlanRequest, Processor
from hope_schema.profile import LatencyColumns
from tests.agent.planner.planner_double import ScriptedTransport, plan_answer, problem, small_graph, small_plan

REQUEST = PlanRequest(jobs=(Job(model_hash=small_graph().model_hash),), soc="soc", frequency="any")
RECEIPT = {"model_hash": small_graph().model_hash, "ops": 2, "super_ops": 2, "created": True}


def run(transport: ScriptedTransport | None, verb: Callable[[PlannerClient], Awaitable], **options):
    """Run one verb of a client on ``transport``; return its result and the seconds it slept between attempts."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def main():
        given = {"url": "http://planner", "transport": transport, "sleep": sleep, **options}
        async with PlannerClient(**given) as client:
            return await verb(client)

    return asyncio.run(main()), slept


@pytest.mark.parametrize("status", sorted(client_module.RETRIED_STATUSES))
def test_says_later_then_succeeds(status: int) -> None:
    """A status that means "later" is retried and the caller sees only the success."""
    transport = ScriptedTransport(problem(status), plan_answer(small_plan()))
    served, slept = run(transport, lambda c: c.plan(REQUEST))
    assert served.reply.plan == small_plan()
    assert len(slept) == 1


@pytest.mark.parametrize("fault", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.ReadError("cut")])
def test_broken_connections_are_retried(fault: Exception) -> None:
    """A connection that breaks is retried until the attempts are used up, then reported as unavailable."""
    _, slept = run(ScriptedTransport(fault, fault, plan_answer(small_plan())), lambda c: c.plan(REQUEST))
    assert len(slept) == 2
    transport = ScriptedTransport(*[fault] * 20)
    with pytest.raises(errors.PlannerUnavailableError, match="http://planner") as caught:
        run(transport, lambda c: c.plan(REQUEST))
    assert len(transport.requests) == MAX_ATTEMPTS
    assert caught.value.request_id == transport.requests[0].headers["X-Request-ID"]


def test_a_cut_answer_is_asked_for_again() -> None:
    """An answer whose body breaks off is a broken connection, not a short answer."""

    class Cut(httpx.AsyncByteStream):
        async def __aiter__(self):
            yield b"{"
            raise httpx.RemoteProtocolError("peer closed connection")

    transport = ScriptedTransport(httpx.Response(200, stream=Cut()), plan_answer(small_plan()))
    served, _ = run(transport, lambda c: c.plan(REQUEST))
    assert served.reply.version == 1


def test_backoff_grows_and_is_jittered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits stay within a doubling ceiling and are not all at it."""
    waits = [
        run(ScriptedTransport(*[problem(503)] * 3, plan_answer(small_plan())), lambda c: c.plan(REQUEST))[1]
        for _ in range(30)
    ]
    for attempt in range(3):
        ceiling = client_module.BACKOFF_S * 2**attempt
        column = [row[attempt] for row in waits]
        assert all(0 <= wait <= ceiling for wait in column)
        assert max(column) > ceiling / 2
        assert len({round(wait, 6) for wait in column}) > 10


def test_retry_after_is_honoured_in_both_forms() -> None:
    """``Retry-After`` in seconds and as a date sets the wait."""
    _, slept = run(
        ScriptedTransport(problem(429, Retry_After="7"), plan_answer(small_plan())),
        lambda c: c.plan(REQUEST),
        deadline_s=30.0,
    )
    assert slept == [7.0]
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 20))
    _, slept = run(
        ScriptedTransport(problem(503, Retry_After=date), plan_answer(small_plan())),
        lambda c: c.plan(REQUEST),
        deadline_s=30.0,
    )
    assert 15 < slept[0] <= 20


@pytest.mark.parametrize("text", ["\u00b2", "1 Jan 99999 00:00:00", "Mon, 01 Jan 99999 00:00:00 GMT", "soon"])
def test_a_retry_after_that_says_nothing_is_ignored(text: str) -> None:
    """A wait that is no number and no date leaves the ordinary backoff, whatever stands there."""
    busy = httpx.Response(503, headers=[(b"Retry-After", text.encode())])
    served, slept = run(ScriptedTransport(busy, plan_answer(small_plan())), lambda c: c.plan(REQUEST))
    assert served.reply.plan == small_plan()
    assert 0 <= slept[0] <= client_module.BACKOFF_S


def test_a_long_retry_after_is_reported_not_slept() -> None:
    """A planner that asks for an hour gets an error with that figure at once, not a sleeping device."""

    async def never(seconds: float) -> None:
        pytest.fail(f"slept for {seconds} s")

    with pytest.raises(errors.RateLimitedError) as caught:
        run(ScriptedTransport(problem(429, Retry_After="3600")), lambda c: c.plan(REQUEST), sleep=never)
    assert caught.value.retry_after_s == 3600


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.BadRequestError),
        (401, errors.AuthenticationError),
        (403, errors.PermissionDeniedError),
        (404, errors.NotFoundError),
        (409, errors.ConflictError),
        (413, errors.BadRequestError),
        (418, errors.PlannerStatusError),
        (422, errors.BadRequestError),
        (500, errors.ServerError),
    ],
)
def test_refusals_are_typed_and_carry_the_request_id(status: int, kind: type[errors.PlannerStatusError]) -> None:
    """A refusal is raised at once as its own type, with the planner's words and request id."""
    transport = ScriptedTransport(problem(status, detail="because of X"))
    with pytest.raises(kind, match=r"because of X.*server-id") as caught:
        run(transport, lambda c: c.plan(REQUEST))
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.request_id) == (status, "server-id")
    assert len(transport.requests) == 1


def test_a_refusal_without_problem_json_still_has_a_request_id() -> None:
    """A proxy's HTML error is typed by its status and keeps the client's own request id."""
    transport = ScriptedTransport(*[httpx.Response(502, text="<html>bad gateway</html>")] * MAX_ATTEMPTS)
    with pytest.raises(errors.ServerError) as caught:
        run(transport, lambda c: c.plan(REQUEST))
    assert caught.value.request_id == transport.requests[0].headers["X-Request-ID"]
    assert "<html>" not in str(caught.value)


def test_an_unknown_model_is_sent_once_and_the_call_repeated() -> None:
    """The graph travels only when the planner says that it lacks it; afterwards the key suffices."""
    unknown = problem(404, errors.MODEL_UNKNOWN)
    receipt = httpx.Response(201, json=RECEIPT)
    transport = ScriptedTransport(unknown, receipt, plan_answer(small_plan()), plan_answer(small_plan()))
    graph = small_graph()

    async def twice(client: PlannerClient):
        await client.submitting(graph, lambda: client.plan(REQUEST))
        return await client.submitting(graph, lambda: client.plan(REQUEST))

    run(transport, twice)
    assert [request.url.path for request in transport.requests] == ["/plans", "/models", "/plans", "/plans"]
    assert ModelGraph.model_validate_json(transport.bodies[1]) == graph


def test_retries_repeat_the_same_upload() -> None:
    """Every attempt carries the same body, upload id, idempotency key and request id."""
    cpu = Processor(id="p", runtime="r", version="1", threads=1, core_class="c", resources=("cpu0",))
    count = 60
    observations = Observations(
        soc="soc",
        frequency="any",
        processors=(cpu,),
        latencies=LatencyColumns(
            signature=tuple(f"Conv:{i}" for i in range(count)),
            kind=(cpu.kind,) * count,
            us=(1.5,) * count,
            spread_us=(0.1,) * count,
            count=(9,) * count,
        ),
        device_id="device",
        upload_id="upload-1",
    )
    receipt = httpx.Response(202, json={"upload_id": "upload-1", "rows": count, "duplicate": False})
    transport = ScriptedTransport(problem(503), httpx.ReadTimeout("lost answer"), receipt)
    run(transport, lambda c: c.upload(observations))
    assert len(set(transport.bodies)) == 1
    assert Observations.model_validate_json(transport.bodies[0]) == observations
    assert {request.headers["Idempotency-Key"] for request in transport.requests} == {"upload-1"}
    assert len({request.headers["X-Request-ID"] for request in transport.requests}) == 1


@pytest.mark.parametrize("encoding", ["zstd", "gzip", "identity"])
def test_request_bodies_are_compressed(encoding: str) -> None:
    """A large body travels in the chosen encoding and arrives whole; a small one is sent as it is."""
    graph = small_graph(length=40)
    answers = [httpx.Response(201, json=RECEIPT), plan_answer(small_plan())]
    transport = ScriptedTransport(*answers)

    async def both(client: PlannerClient) -> None:
        await client.submit_model(graph)
        await client.plan(REQUEST)

    run(transport, both, encoding=encoding)
    assert len(transport.bodies[0]) >= client_module.wire.SMALL > len(transport.bodies[1])
    assert transport.requests[0].headers.get("Content-Encoding", "identity") == encoding
    assert ModelGraph.model_validate_json(transport.bodies[0]) == graph
    assert "Content-Encoding" not in transport.requests[1].headers


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_compressed_answers_are_read(encoding: str) -> None:
    """An answer in zstd or gzip is the same plan."""
    plain = plan_answer(small_plan()).content
    body = gzip.compress(plain) if encoding == "gzip" else zstandard.ZstdCompressor().compress(plain)
    answer = httpx.Response(
        200, stream=httpx.ByteStream(body), headers={"Content-Encoding": encoding, "Content-Type": "application/json"}
    )
    served, _ = run(ScriptedTransport(answer), lambda c: c.plan(REQUEST))
    assert served.reply.plan == small_plan()


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_a_bomb_is_refused(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small answer that inflates beyond the limit is refused, not held in memory."""
    monkeypatch.setattr(client_module, "MAX_RESPONSE_BYTES", 1 << 20)
    plain = bytes(64 << 20)
    body = gzip.compress(plain) if encoding == "gzip" else zstandard.ZstdCompressor().compress(plain)
    answer = httpx.Response(200, stream=httpx.ByteStream(body), headers={"Content-Encoding": encoding})
    with pytest.raises(errors.PlannerProtocolError, match="limit of 1048576"):
        run(ScriptedTransport(answer), lambda c: c.plan(REQUEST))


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that never stops sending is cut off at the limit."""
    monkeypatch.setattr(client_module, "MAX_RESPONSE_BYTES", 1 << 20)

    class Endless(httpx.AsyncByteStream):
        async def __aiter__(self):
            while True:
                yield bytes(1 << 16)

    with pytest.raises(errors.PlannerProtocolError, match="limit"):
        run(ScriptedTransport(httpx.Response(200, stream=Endless())), lambda c: c.plan(REQUEST))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b"{}",
        b'{"plan_id": 3}',
        plan_answer(small_plan()).content.replace(b'"order": [0', b'"order": [9'),
    ],
)
def test_an_answer_outside_the_contract_is_a_protocol_error(body: bytes) -> None:
    """An answer that is not a plan never becomes one, and the message names the field."""
    with pytest.raises(errors.PlannerProtocolError, match="not a PlanReply"):
        run(ScriptedTransport(httpx.Response(200, content=body)), lambda c: c.plan(REQUEST))


@pytest.mark.parametrize("content_encoding", ["br", "zstd", "gzip"])
def test_a_damaged_encoding_is_a_protocol_error(content_encoding: str) -> None:
    """A body that is not what its encoding says is reported, whatever it is."""
    answer = httpx.Response(200, stream=httpx.ByteStream(b"garbage"), headers={"Content-Encoding": content_encoding})
    with pytest.raises(errors.PlannerProtocolError):
        run(ScriptedTransport(answer), lambda c: c.plan(REQUEST))


def test_revalidation_keeps_the_copy_or_takes_the_newer() -> None:
    """A 304 keeps the copy in hand; a 200 brings the next version with its own ETag."""
    newer = plan_answer(small_plan(), version=2, etag='"v2"')
    transport = ScriptedTransport(plan_answer(small_plan()), httpx.Response(304, headers={"ETag": '"v1"'}), newer)

    async def thrice(client: PlannerClient):
        first = await client.plan(REQUEST)
        return first, await client.revalidate(first), await client.revalidate(first)

    (first, same, second), _ = run(transport, thrice)
    assert (same.reply, same.source) == (first.reply, "unchanged")
    assert (second.reply.version, second.etag) == (2, '"v2"')
    assert transport.requests[1].headers["If-None-Match"] == '"v1"'
    assert transport.requests[1].url.path == "/plans/plan-1"


def test_a_tag_that_cannot_be_sent_back_is_dropped() -> None:
    """An ETag outside ASCII counts as none, so that no later call fails on it."""
    answer = plan_answer(small_plan())
    odd = httpx.Response(200, content=answer.content, headers=[(b"ETag", b'"v\xe9"')])
    transport = ScriptedTransport(odd, plan_answer(small_plan()))

    async def twice(client: PlannerClient):
        first = await client.plan(REQUEST)
        return first, await client.revalidate(first)

    (first, _), _ = run(transport, twice)
    assert first.etag == ""
    assert "If-None-Match" not in transport.requests[1].headers


def test_an_answer_that_drips_is_given_up() -> None:
    """Bytes that keep arriving do not keep a call alive: its attempts together have one deadline."""

    class Drip(httpx.AsyncByteStream):
        async def __aiter__(self):
            while True:
                yield b" "
                await asyncio.sleep(0.02)

    transport = ScriptedTransport(*[httpx.Response(200, stream=Drip())] * 2)
    started = time.monotonic()
    with pytest.raises(errors.PlannerUnavailableError, match=r"after 1 attempt: .* not whole after 0\.2 s"):
        run(transport, lambda c: c.plan(REQUEST), deadline_s=0.2)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("silent", ["accepts", "reads", "begins"])
def test_a_planner_that_keeps_silent_is_given_up(silent: str) -> None:
    """Over a real socket: one that nobody reads from, that is only read from, or whose answer stops halfway."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError), server.accept()[0] as connection:
                if silent == "begins":
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
                while silent != "accepts" and connection.recv(4096):
                    pass
                time.sleep(1.0)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(errors.PlannerUnavailableError):
            run(None, lambda c: c.plan(REQUEST), url=url, deadline_s=0.3)
        assert time.monotonic() - started < 5
        thread.join()


def test_a_deadline_leaves_no_time_for_a_long_pause() -> None:
    """What the planner asks to wait for is waited for only if there is time for it."""
    transport = ScriptedTransport(problem(503, Retry_After="2"), plan_answer(small_plan()))
    with pytest.raises(errors.ServerError):
        run(transport, lambda c: c.plan(REQUEST), deadline_s=1.0)
    assert len(transport.requests) == 1


def test_a_planner_that_is_away_is_named_without_a_time_limit_too() -> None:
    """Where there is no deadline, a connection that fails is still a planner that is away."""
    with pytest.raises(errors.PlannerUnavailableError, match="refused"):
        run(ScriptedTransport(httpx.ConnectError("refused")), lambda c: c.plan(REQUEST), deadline_s=None, attempts=1)


def test_waiting_is_asked_for_and_waited_for() -> None:
    """``wait_s`` becomes a ``Prefer`` header and lengthens the deadline by as much."""

    class Slow(httpx.AsyncByteStream):
        async def __aiter__(self):
            await asyncio.sleep(0.5)
            yield plan_answer(small_plan()).content

    transport = ScriptedTransport(
        httpx.Response(200, stream=Slow(), headers={"ETag": '"v1"'}), httpx.Response(200, stream=Slow())
    )
    run(transport, lambda c: c.plan(REQUEST, wait_s=12), deadline_s=0.1)
    assert transport.requests[0].headers["Prefer"] == "wait=12"
    with pytest.raises(errors.PlannerUnavailableError):
        run(transport, lambda c: c.plan(REQUEST), deadline_s=0.1)
    assert "Prefer" not in transport.requests[1].headers


def test_the_token_is_sent_and_the_environment_is_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bearer token comes from the argument, else from ``HOPE_TOKEN``, else none is sent; nor is an empty one."""
    monkeypatch.setenv("HOPE_TOKEN", "from-environment")
    for options, expected in (({"token": "given"}, "Bearer given"), ({}, "Bearer from-environment")):
        transport = ScriptedTransport(plan_answer(small_plan()))
        run(transport, lambda c: c.plan(REQUEST), **options)
        assert transport.requests[0].headers["Authorization"] == expected
    for none in ({"token": ""}, {}):
        transport = ScriptedTransport(plan_answer(small_plan()))
        run(transport, lambda c: c.plan(REQUEST), **none)
        assert "Authorization" not in transport.requests[0].headers
        monkeypatch.delenv("HOPE_TOKEN", raising=False)


@pytest.mark.parametrize(
    "url", ["", "planner", "ftp://planner", "http://", "http://planner:port", "file:///etc/passwd"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """Something that is no HTTP address is bad input, said before anything is sent."""
    with pytest.raises(errors.InputError, match="planner address"):
        PlannerClient(url)


def test_a_token_that_would_split_the_header_is_refused() -> None:
    """A token with a line break is refused and not repeated in the message."""
    with pytest.raises(errors.InputError) as caught:
        PlannerClient("http://planner", token="secret\r\nX-Evil: 1")
    assert "secret" not in str(caught.value)


def test_a_user_and_password_in_the_address_are_not_repeated() -> None:
    """Who puts credentials into the planner's address does not find them in notes, errors and logs."""
    told = []
    for address in (
        "ftp://user:secret@planner",
        "user:secret@planner",
        "http://user:secret@planner:port",
        "ftp://user:se/secret@planner",
    ):
        with pytest.raises(errors.InputError) as refused:
            PlannerClient(address)
        told.append(str(refused.value))
    faults = (httpx.ConnectError("refused"), httpx.Response(200, headers={"Content-Encoding": "br"}, content=b"x"))
    for fault in faults:
        with pytest.raises(errors.PlannerError, match="planner") as caught:
            run(ScriptedTransport(fault), lambda c: c.plan(REQUEST), url="http://user:secret@planner", attempts=1)
        told.append(str(caught.value))
    assert all("secret" not in text and "***@planner" in text for text in told)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_no_delivery(status: int) -> None:
    """A report that was sent elsewhere did not arrive: the error names the address and what to do about it."""
    moved = httpx.Response(status, headers={"Location": "https://user:secret@planner.example/"})
    report = DeviceReport(soc="soc", frequency="any", versions={}, sent_at=datetime.now(UTC), measured=())
    with pytest.raises(errors.RedirectedError, match=r"\*@planner.example/; .* give its address") as caught:
        run(ScriptedTransport(moved), lambda c: c.report("device", report))
    assert "secret" not in str(caught.value)


def test_redirects_are_not_followed() -> None:
    """A redirect cannot carry the token elsewhere: it is the caller's to mend."""
    transport = ScriptedTransport(httpx.Response(307, headers={"Location": "http://evil/plans"}))
    with pytest.raises(errors.RedirectedError):
        run(transport, lambda c: c.plan(REQUEST), token="secret")
    with pytest.raises(errors.PlannerProtocolError, match="304 unasked"):
        run(ScriptedTransport(httpx.Response(304)), lambda c: c.plan(REQUEST))
    assert [request.url.host for request in transport.requests] == ["planner"]

"""How long the client goes on: what is tried again, after which pause, and when it gives up."""

from __future__ import annotations

import math
import socket
import threading
import time
from contextlib import suppress

import httpx
import pytest

from agent_sdk import errors
from agent_sdk.planner import client as client_module
from agent_sdk.planner.client import MAX_ATTEMPTS
from hope_schema import Observations, Processor
from hope_schema.profile import LatencyColumns
from tests.agent.planner.planner_double import REQUEST, ScriptedTransport, plan_answer, problem, run, small_plan


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

    class Cut(httpx.SyncByteStream):
        def __iter__(self):
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
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 2000))
    _, slept = run(
        ScriptedTransport(problem(503, Retry_After=date), plan_answer(small_plan())),
        lambda c: c.plan(REQUEST),
        deadline_s=3000.0,
    )
    assert 1500 < slept[0] <= 2000


@pytest.mark.parametrize("text", ["\u00b2", "1 Jan 99999 00:00:00", "Mon, 01 Jan 99999 00:00:00 GMT", "soon"])
def test_a_retry_after_that_says_nothing_is_ignored(text: str) -> None:
    """A wait that is no number and no date leaves the ordinary backoff, whatever stands there."""
    busy = httpx.Response(503, headers=[(b"Retry-After", text.encode())])
    served, slept = run(ScriptedTransport(busy, plan_answer(small_plan())), lambda c: c.plan(REQUEST))
    assert served.reply.plan == small_plan()
    assert 0 <= slept[0] <= client_module.BACKOFF_S


def test_a_long_retry_after_is_reported_not_slept() -> None:
    """A planner that asks for an hour gets an error with that figure at once, not a sleeping device."""
    transport = ScriptedTransport(problem(429, Retry_After="3600"))
    with pytest.raises(errors.RateLimitedError) as caught:
        run(transport, lambda c: c.plan(REQUEST))
    assert len(transport.requests) == 1
    assert caught.value.retry_after_s == 3600


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


def test_an_answer_that_drips_is_given_up() -> None:
    """Bytes that keep arriving do not keep a call alive: its attempts together have one deadline."""

    class Drip(httpx.SyncByteStream):
        def __iter__(self):
            while True:
                yield b" "
                time.sleep(0.02)

    transport = ScriptedTransport(*[httpx.Response(200, stream=Drip())] * 2)
    with pytest.raises(errors.PlannerUnavailableError, match=r"after 1 attempt: .* not whole after 0\.5 s"):
        run(transport, lambda c: c.plan(REQUEST), deadline_s=0.5)


@pytest.mark.parametrize("silent", ["accepts", "reads", "begins"])
def test_a_planner_that_keeps_silent_is_given_up(silent: str) -> None:
    """Over a real socket: one that nobody reads from, that is only read from, or whose answer stops halfway."""
    given_up = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError), server.accept()[0] as connection:
                if silent == "begins":
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n")
                while silent != "accepts" and connection.recv(4096):
                    pass
                given_up.wait()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(errors.PlannerUnavailableError):
            run(None, lambda c: c.plan(REQUEST), url=url, deadline_s=0.3)
        given_up.set()
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


@pytest.mark.parametrize("deadline_s", [math.inf, 1e300])
def test_a_limit_beyond_all_clocks_is_one(deadline_s: float) -> None:
    """Whoever would wait for ever waits for the answer."""
    transport = ScriptedTransport(plan_answer(small_plan()))
    with client_module.PlannerClient("http://planner", transport=transport, deadline_s=deadline_s) as planner:
        assert planner.plan(REQUEST).reply.plan == small_plan()


def test_waiting_is_asked_for_and_waited_for() -> None:
    """``wait_s`` becomes a ``Prefer`` header and lengthens the deadline by as much."""

    class Slow(httpx.SyncByteStream):
        def __iter__(self):
            time.sleep(0.5)
            yield plan_answer(small_plan()).content

    transport = ScriptedTransport(
        httpx.Response(200, stream=Slow(), headers={"ETag": '"v1"'}), httpx.Response(200, stream=Slow())
    )
    run(transport, lambda c: c.plan(REQUEST, wait_s=12), deadline_s=0.1)
    assert transport.requests[0].headers["Prefer"] == "wait=12"
    with pytest.raises(errors.PlannerUnavailableError):
        run(transport, lambda c: c.plan(REQUEST), deadline_s=0.1)
    assert "Prefer" not in transport.requests[1].headers


@pytest.mark.parametrize(("wait_s", "asked"), [(math.inf, 86400), (1e300, 86400), (-5.0, 0)])
def test_a_wait_is_bounded(wait_s: float, asked: int) -> None:
    """Whoever asks for the best there is asks for no number that nobody can read, and nobody for less than nothing."""
    transport = ScriptedTransport(plan_answer(small_plan()))
    run(transport, lambda c: c.plan(REQUEST, wait_s=wait_s))
    assert transport.requests[0].headers["Prefer"] == f"wait={asked}"

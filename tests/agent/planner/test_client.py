"""What the client makes of answers: typed errors, bounds on bodies, compression and revalidation."""

from __future__ import annotations

import httpx
import pytest
import zstandard

from agent_sdk import errors
from agent_sdk.planner import client as client_module
from agent_sdk.planner.client import MAX_ATTEMPTS, PlannerClient
from hope_schema import ModelGraph
from tests.agent.planner.planner_double import (
    REQUEST,
    ScriptedTransport,
    plan_answer,
    problem,
    run,
    small_graph,
    small_plan,
)

RECEIPT = {"model_hash": small_graph().model_hash, "ops": 2, "super_ops": 2, "created": True}


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
    assert "not as a planner does; is its address right?" in str(caught.value)


def test_an_unknown_model_is_sent_once_and_the_call_repeated() -> None:
    """The graph travels only when the planner says that it lacks it; afterwards the key suffices."""
    unknown = problem(404, errors.MODEL_UNKNOWN)
    receipt = httpx.Response(201, json=RECEIPT)
    transport = ScriptedTransport(unknown, receipt, plan_answer(small_plan()), plan_answer(small_plan()))
    graph = small_graph()

    def twice(client: PlannerClient):
        client.submitting(graph, lambda: client.plan(REQUEST))
        return client.submitting(graph, lambda: client.plan(REQUEST))

    run(transport, twice)
    assert [request.url.path for request in transport.requests] == ["/plans", "/models", "/plans", "/plans"]
    assert ModelGraph.model_validate_json(transport.bodies[1]) == graph


def test_request_bodies_are_compressed() -> None:
    """A large body travels compressed and arrives whole; a small one is sent as it is."""
    graph = small_graph(length=40)
    answers = [httpx.Response(201, json=RECEIPT), plan_answer(small_plan())]
    transport = ScriptedTransport(*answers)

    def both(client: PlannerClient) -> None:
        client.submit_model(graph)
        client.plan(REQUEST)

    run(transport, both)
    assert len(transport.bodies[0]) >= client_module.wire.SMALL > len(transport.bodies[1])
    assert transport.requests[0].headers["Content-Encoding"] == "zstd"
    assert ModelGraph.model_validate_json(transport.bodies[0]) == graph
    assert "Content-Encoding" not in transport.requests[1].headers


def test_compressed_answers_are_read() -> None:
    """An answer in zstd, which alone is asked for, is the same plan."""
    body = zstandard.ZstdCompressor().compress(plan_answer(small_plan()).content)
    answer = httpx.Response(
        200, stream=httpx.ByteStream(body), headers={"Content-Encoding": "zstd", "Content-Type": "application/json"}
    )
    served, _ = run(ScriptedTransport(answer), lambda c: c.plan(REQUEST))
    assert served.reply.plan == small_plan()


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small answer that inflates beyond the limit is refused, not held in memory."""
    monkeypatch.setattr(client_module, "MAX_RESPONSE_BYTES", 1 << 20)
    body = zstandard.ZstdCompressor().compress(bytes(64 << 20))
    answer = httpx.Response(200, stream=httpx.ByteStream(body), headers={"Content-Encoding": "zstd"})
    with pytest.raises(errors.PlannerProtocolError, match="limit of 1048576"):
        run(ScriptedTransport(answer), lambda c: c.plan(REQUEST))


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that never stops sending is cut off at the limit."""
    monkeypatch.setattr(client_module, "MAX_RESPONSE_BYTES", 1 << 20)

    class Endless(httpx.SyncByteStream):
        def __iter__(self):
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

    def thrice(client: PlannerClient):
        first = client.plan(REQUEST)
        return first, client.revalidate(first), client.revalidate(first)

    (first, same, second), _ = run(transport, thrice)
    assert same is first
    assert (second.reply.version, second.etag) == (2, '"v2"')
    assert transport.requests[1].headers["If-None-Match"] == '"v1"'
    assert transport.requests[1].url.path == "/plans/plan-1"


@pytest.mark.parametrize("tag", [b'"v\xe9"', b'"v\x01"', b'"v\t"'])
def test_a_tag_that_cannot_be_sent_back_is_dropped(tag: bytes) -> None:
    """An ETag of more than printable ASCII counts as none, so that no later call fails on it."""
    answer = plan_answer(small_plan())
    odd = httpx.Response(200, content=answer.content, headers=[(b"ETag", tag)])
    transport = ScriptedTransport(odd, plan_answer(small_plan()))

    def twice(client: PlannerClient):
        first = client.plan(REQUEST)
        return first, client.revalidate(first)

    (first, _), _ = run(transport, twice)
    assert first.etag == ""
    assert "If-None-Match" not in transport.requests[1].headers

"""Recognising a planner: who is asked, what a refusal means, and what is an answer that comes later."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from agent_sdk.errors import PlannerError, PlannerProtocolError, RateLimitedError, ServerError
from agent_sdk.planner.client import PlannerClient
from agent_sdk.planner.identity import kept_tokens, store_token, stored_token
from agent_sdk.planner.recognise import recognising
from hope_schema import ProofRequest
from hope_schema.proof import hash_token, prove
from tests.agent.planner.planner_double import Scripted, ScriptedTransport, problem

URL = "http://new.example:8000"
SALT = "0" * 64


def connect(directory: Path, *script: Scripted, url: str = URL) -> tuple[ScriptedTransport, list[str | None]]:
    """Connect as the device ``d`` to a planner that answers so; what it was sent, and with which tokens."""
    transport, given = ScriptedTransport(*script), []

    def opening(url: str, *, token: str | None) -> PlannerClient:
        given.append(token)
        return PlannerClient(url, token=token, transport=transport, attempts=1)

    with recognising(opening, url, directory, "d"):
        return transport, given


def knowing(token: str) -> Scripted:
    """The answer of who knows a token."""

    def answer(request: httpx.Request) -> httpx.Response:
        asked = ProofRequest.model_validate_json(request.content)
        return httpx.Response(200, json={"salt": SALT, "proof": prove(hash_token(token), asked, SALT)})

    return answer


def test_the_token_that_was_proven_is_used_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several tokens the one it knows; asked is once, without any token, not even the environment's."""
    monkeypatch.setenv("HOPE_TOKEN", "an-admin-s")
    for number in range(3):
        store_token(tmp_path, f"https://{number}.example", f"token-{number}")
    (tmp_path / "tokens" / "damaged").write_bytes(b"\xff")
    (tmp_path / "tokens" / "folder").mkdir()
    transport, given = connect(tmp_path, knowing("token-1"))
    assert given == ["", "token-1"]
    (request,) = transport.requests
    assert (request.method, request.url.path) == ("POST", "/devices/proof")
    assert "authorization" not in request.headers
    assert json.loads(transport.bodies[0])["address"] == URL
    assert stored_token(tmp_path, URL) == stored_token(tmp_path, "HTTP://New.Example:8000/") == "token-1"


def test_a_proof_of_another_token_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who knows another token, or none, gets none."""
    monkeypatch.delenv("HOPE_TOKEN", raising=False)
    store_token(tmp_path, "https://old.example", "token")
    for answer in (knowing("tokens"), httpx.Response(200, json={"salt": SALT, "proof": SALT})):
        _, given = connect(tmp_path, answer)
        assert given == ["", None]
    assert stored_token(tmp_path, URL) is None


def test_nobody_is_asked_in_vain(tmp_path: Path) -> None:
    """A device without tokens asks nothing, nor one whose URL is more than an address."""
    assert connect(tmp_path)[1] == [None]
    store_token(tmp_path, "https://old.example", "token")
    assert connect(tmp_path, url=f"{URL}/behind/a/path")[1] == [None]


@pytest.mark.parametrize("status", [302, 401, 403, 404, 405, 422])
def test_a_refusal_is_no_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """A planner of before this question, or at an address that is not its own, is called without a token."""
    monkeypatch.delenv("HOPE_TOKEN", raising=False)
    store_token(tmp_path, "https://old.example", "token")
    assert connect(tmp_path, problem(status) if status >= 400 else httpx.Response(status))[1] == ["", None]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (problem(429), RateLimitedError),
        (problem(503), ServerError),
        (httpx.ConnectError("gone"), PlannerError),
        (httpx.Response(200, json={"salt": SALT}), PlannerProtocolError),
        (httpx.Response(200, json={"salt": SALT, "proof": "x" * 64}), PlannerProtocolError),
    ],
)
def test_who_cannot_answer_now_is_asked_again(tmp_path: Path, answer: Scripted, error: type[PlannerError]) -> None:
    """What a device outlives with what it has is not taken for a refusal: it connects without a token to nobody."""
    store_token(tmp_path, "https://old.example", "token")
    with pytest.raises(error):
        connect(tmp_path, answer)
    assert connect(tmp_path, knowing("token"))[1] == ["", "token"]


def test_a_token_is_never_taken_for_an_address(tmp_path: Path) -> None:
    """A file that holds a token alone, as older ones do, says of no address: addresses are printed."""
    kept = store_token(tmp_path, "https://planner.example", "token-1")
    assert kept_tokens(tmp_path) == {"token-1": "https://planner.example"}
    kept.write_text("token-1\n")
    assert kept_tokens(tmp_path) == {"token-1": ""}

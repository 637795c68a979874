"""To whom the client speaks: its address, the token that is sent there, and no redirect to anybody else."""

from __future__ import annotations

from datetime import UTC, datetime

import httpx
import pytest

from agent_sdk import errors
from agent_sdk.planner.client import PlannerClient
from hope_schema import DeviceReport
from tests.agent.planner.planner_double import REQUEST, ScriptedTransport, plan_answer, run, small_plan


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
    faults = (
        httpx.ConnectError("refused"),
        httpx.Response(200, headers={"Content-Encoding": "compress"}, content=b"x"),
    )
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

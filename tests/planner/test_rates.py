"""Who asks too often, or wrongly, or guesses, waits; nobody else does."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_api.devices import guard
from planner_api.devices import repository as devices
from planner_api.errors import TooOftenError
from planner_api.web.body import SMALL_BYTES
from planner_api.web.rate import RateLimit
from planner_api.web.tokens import new_token
from tests.planner.samples import admin_token, bearer, enrol, enrolled, serving


def test_too_many_requests_are_told_when_to_return(sqlite_url: str) -> None:
    """Beyond its burst a token gets 429 with Retry-After, while another token goes on."""
    with serving(sqlite_url, tokens_required=True, rate_per_token=0.001, burst_per_token=3) as api:
        first, second = admin_token(api), admin_token(api)
        codes = [api.client.get("/fleet", headers=bearer(first)).status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]
        refused = api.client.get("/fleet", headers=bearer(first))
        assert int(refused.headers["retry-after"]) in range(900, 1001)
        assert refused.json()["type"] == "urn:hope:too-many-requests"
        assert api.client.get("/fleet", headers=bearer(second)).status_code == 200


def test_who_floods_waits_for_each_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that is beyond its rate by however little is refused after others, who came later, were answered."""
    monkeypatch.setattr(guard, "REFUSED_S", 0.5)
    order: list[str] = []

    async def answered(name: str, wait_s: float, comes_after_s: float) -> None:
        await asyncio.sleep(comes_after_s)
        with contextlib.suppress(TooOftenError):
            await guard.refuse_for(wait_s)
        order.append(name)

    async def all_at_once() -> None:
        others = (answered(f"other {number}", 0.0, guard.REFUSED_S / 4) for number in range(3))
        await asyncio.gather(answered("flood", 3.0, 0.0), answered("just", 1e-6, 0.0), *others)

    asyncio.run(all_at_once())
    assert order[:3] == ["other 0", "other 1", "other 2"]
    assert set(order[3:]) == {"flood", "just"}


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        (("POST", "/models", b"{"), 400),
        (("POST", "/models", b"{}"), 422),
        (("POST", "/profiles/missing", b" " * (SMALL_BYTES + 1)), 413),
        (("GET", "/models/x?unknown=1", b""), 422),
    ],
)
def test_a_wrong_request_counts_as_many(sqlite_url: str, wrong: tuple[str, str, bytes], status: int) -> None:
    """Who sends what the contract does not know uses up its rate ten times as fast; what is not there counts once."""
    burst = guard.WRONG_COUNTS + 3
    with serving(sqlite_url, tokens_required=True, rate_per_token=0.001, burst_per_token=burst) as api:
        device = enrolled(api, "device-1")
        method, path, body = wrong
        headers = {**device, "content-type": "application/json"}
        assert api.client.get("/models/" + "0" * 64, headers=device).status_code == 404
        assert api.client.request(method, path, content=body, headers=headers).status_code == status
        codes = [api.client.get("/devices/device-1", headers=device).status_code for _ in range(3)]
        assert codes == [200, 200, 429]


def test_wrong_claims_count_as_many(sqlite_url: str) -> None:
    """Who guesses at claims is soon refused before the database is asked; known tokens of the same address go on."""
    burst = guard.WRONG_COUNTS + 1
    with serving(sqlite_url, tokens_required=True, rate_per_address=0.001, burst_per_address=burst) as api:
        device = enrolled(api, "device-1")
        assert api.client.get("/devices/device-1", headers=device).status_code == 200
        codes = [enrol(api, new_token("claim"), "device-2").status_code for _ in range(3)]
        assert codes == [401, 401, 429]
        assert api.client.get("/devices/device-1", headers=device).status_code == 200


def test_guessing_tokens_is_slowed_down(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong token counts as many requests of its address, which then reaches the database with known ones only."""
    asked: list[str] = []
    find = devices.find_tokens

    async def counted(session: Any, token_hashes: Any) -> Any:
        asked.extend(token_hashes)
        return await find(session, token_hashes)

    monkeypatch.setattr(devices, "find_tokens", counted)
    monkeypatch.setattr("planner_api.devices.guard.MAX_UNKNOWN", 2)
    burst = 4 * guard.GUESS + 2
    with serving(sqlite_url, tokens_required=True, rate_per_address=0.001, burst_per_address=burst) as api:
        good = admin_token(api)

        def ask(authorization: str) -> int:
            return int(api.client.get("/fleet", headers={"authorization": authorization}).status_code)

        assert ask(f"Bearer {good}") == 200
        again = f"Bearer {new_token('admin')}"
        assert [ask(again) for _ in range(3)] == [401] * 3
        assert len(asked) == 2, "an unknown token is asked for once"
        assert [ask(value) for value in ("Basic x", "Bearer " + "x" * 300)] == [401] * 2
        assert [ask(f"Bearer {new_token('admin')}") for _ in range(3)] == [401] + [429] * 2
        assert len(asked) == 3, "beyond the limit nobody is asked"
        assert ask(f"Bearer {good}") == 200
        assert len(asked) == 3, "guesses drive no known token out"


@settings(max_examples=200, deadline=None)
@given(
    rate=st.floats(0.1, 100),
    burst=st.integers(1, 20),
    gaps=st.lists(st.floats(0, 3), min_size=1, max_size=60),
)
def test_a_rate_limit_never_lets_more_through_than_it_says(rate: float, burst: int, gaps: list[float]) -> None:
    """In no window of any length do more than ``burst + rate x length`` requests pass; a refusal tells the truth."""
    now = [0.0]
    limit = RateLimit(rate, burst, clock=lambda: now[0])
    passed: list[float] = []
    for gap in gaps:
        now[0] += gap
        wait = limit.hit("caller")
        if wait == 0:
            passed.append(now[0])
        else:
            now[0] += wait * 1.001 + 1e-9
            assert limit.hit("caller") == 0, "after Retry-After it passes"
            passed.append(now[0])
    for i, start in enumerate(passed):
        for j in range(i, len(passed)):
            assert j - i + 1 <= burst + rate * (passed[j] - start) + 1e-6

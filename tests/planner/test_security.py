"""Tokens, scopes and limits over HTTP on both databases."""

from __future__ import annotations

import asyncio
import contextlib
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import insert, select, update

from hope_schema import DeviceReport, Enrolment, EnrolmentReceipt, MeasuredRun, Missing
from planner_api.db.engine import sync_engine
from planner_api.db.tables import ClaimRow, DeviceRow, TokenRow
from planner_api.devices import guard
from planner_api.devices import repository as devices
from planner_api.devices.principal import Principal
from planner_api.devices.rate import RateLimit
from planner_api.devices.tokens import hash_token, new_token
from planner_api.errors import TooOftenError
from planner_api.http.body import SMALL_BYTES
from tests.planner.samples import (
    FREQUENCY,
    SOC,
    Api,
    chain,
    enrolled,
    eventually,
    measure,
    missing_request,
    operator_token,
    plan_request,
    serving,
    tokens,
)

GRAPH = chain()


pytestmark = pytest.mark.planner(tokens_required=True)


def bearer(token: str) -> dict[str, str]:
    """The header of a token."""
    return {"authorization": f"Bearer {token}"}


def enrol(api: Api, claim: str, device_id: str) -> Any:
    """Ask for a token of the device's own."""
    return api.post("/devices", Enrolment(device_id=device_id, soc=SOC), **bearer(claim))


@pytest.fixture
def operator(api: Api, database_url: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """An operator's header."""
    return bearer(tokens(capsys, database_url, "create"))


@pytest.fixture
def claim(api: Api, database_url: str, capsys: pytest.CaptureFixture[str]) -> str:
    """A claim for two devices."""
    return tokens(capsys, database_url, "create", "--claim", "--uses", "2", "--expires", "1h")


@pytest.fixture
def device(api: Api, claim: str) -> dict[str, str]:
    """The header of the enrolled device-1."""
    receipt = EnrolmentReceipt.model_validate_json(enrol(api, claim, "device-1").content)
    return bearer(receipt.token)


def test_nothing_but_probes_answers_without_a_token(api: Api) -> None:
    """Every route says 401 with a challenge, and what to type; probes and metrics answer."""
    for method, path in (("GET", "/fleet"), ("POST", "/plans"), ("GET", f"/plans/{'p' * 8}"), ("POST", "/devices")):
        response = api.client.request(method, path, content=b"{}", headers={"content-type": "application/json"})
        assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
        assert re.search("`hope-agent enrol`|claim token", response.json()["detail"])
        assert response.json()["type"] == "urn:hope:unauthorised"
    for path in ("/healthz", "/readyz", "/metrics"):
        assert api.client.get(path).status_code == 200


@pytest.mark.parametrize("value", ["Bearer", "Bearer ", "Basic abc", "Bearer " + "x" * 300, "Bearer hope_d_no", ""])
def test_wrong_tokens_are_refused(api: Api, value: str) -> None:
    """Malformed, oversized and unknown tokens are all 401, none is an error of ours."""
    assert api.client.get("/fleet", headers={"authorization": value}).status_code == 401


def test_a_claim_is_exchanged_for_a_token_as_often_as_it_says(api: Api, claim: str) -> None:
    """Two uses enrol two devices; the third is refused, and so is a device that is enrolled already."""
    first = enrol(api, claim, "device-1")
    assert first.status_code == 201
    assert first.headers["cache-control"] == "no-store"
    again = enrol(api, claim, "device-1")
    assert (again.status_code, again.json()["type"]) == (409, "urn:hope:device-enrolled")
    assert enrol(api, claim, "device-2").status_code == 201, "a refused enrolment spends no use"
    assert enrol(api, claim, "device-3").status_code == 401


def test_tokens_are_stored_as_hashes_only(api: Api, claim: str, device: dict[str, str]) -> None:
    """The database holds no token in clear."""

    async def stored() -> list[str]:
        async with api.app.planner.database.read() as session:
            hashes = [*await session.scalars(select(TokenRow.token_hash))]
            return [*hashes, *await session.scalars(select(ClaimRow.claim_hash))]

    hashes = api.await_(stored)
    token = device["authorization"].split()[1]
    assert {hash_token(token), hash_token(claim)} <= set(hashes)
    assert token not in hashes


def test_a_device_does_what_devices_do_and_nothing_else(api: Api, device: dict[str, str]) -> None:
    """It registers graphs, uploads, asks for plans and reports about itself; the rest takes an operator."""
    assert api.post("/models", GRAPH, **device).status_code == 201
    missing = api.post("/profiles/missing", missing_request(GRAPH), **device)
    assert missing.status_code == 200
    upload = measure(Missing.model_validate_json(missing.content))
    assert api.post("/profiles", upload, **device).status_code == 202
    plan = api.post("/plans", plan_request(GRAPH), **device)
    assert plan.status_code == 200
    assert api.client.get(f"/plans/{plan.json()['plan_id']}", headers=device).status_code == 200
    report = DeviceReport(soc=SOC, frequency=FREQUENCY)
    body = report.model_dump_json()
    headers = {**device, "content-type": "application/json"}
    assert api.client.put("/devices/device-1/report", content=body, headers=headers).status_code == 204
    refused = [
        ("GET", "/fleet"),
        ("GET", "/devices"),
        ("GET", "/devices/device-2"),
        ("DELETE", "/devices/device-1"),
        ("PUT", "/devices/device-2/report"),
        ("POST", f"/models/{GRAPH.model_hash}/plans"),
    ]
    for method, path in refused:
        response = api.client.request(method, path, content=body, headers=headers)
        assert (response.status_code, response.json()["type"]) == (403, "urn:hope:scope-missing"), path


def test_a_device_cannot_upload_in_anothers_name(api: Api, device: dict[str, str]) -> None:
    """Foreign device ids in bodies are refused, whatever the token."""
    assert api.post("/models", GRAPH, **device).status_code == 201
    asked = api.post("/profiles/missing", missing_request(GRAPH, "device-2"), **device)
    assert (asked.status_code, asked.json()["type"]) == (403, "urn:hope:foreign-device")
    missing = Missing.model_validate_json(api.post("/profiles/missing", missing_request(GRAPH), **device).content)
    sent = api.post("/profiles", measure(missing, "device-2"), **device)
    assert (sent.status_code, sent.json()["type"]) == (403, "urn:hope:foreign-device")


def test_revocation_acts_at_once(api: Api, operator: dict[str, str], device: dict[str, str], claim: str) -> None:
    """A revoked device is refused although its token was just used, and may enrol again with a claim."""
    assert api.client.get(f"/models/{GRAPH.model_hash}", headers=device).status_code == 404
    assert api.client.delete("/devices/device-1", headers=operator).status_code == 204
    assert eventually(lambda: api.client.get(f"/models/{GRAPH.model_hash}", headers=device).status_code == 401)
    said = api.client.get("/plans/p-1", headers=device).json()["detail"]
    assert "`hope-agent enrol`" in said, "what to type next"
    assert enrol(api, claim, "device-1").status_code == 201
    assert api.client.delete("/devices/nobody", headers=operator).status_code == 404


def test_expired_tokens_are_refused_and_skewed_clocks_tolerated(api: Api, database_url: str, capsys: Any) -> None:
    """A token is good for half a minute more than it says, because replicas' clocks differ, and then no more."""

    def with_expiry(seconds: float) -> int:
        token = tokens(capsys, database_url, "create", "--expires", "1h")

        async def expire() -> None:
            async with api.app.planner.database.write() as session:
                await session.execute(
                    update(TokenRow)
                    .where(TokenRow.token_hash == hash_token(token))
                    .values(expires_at=datetime.now(UTC) + timedelta(seconds=seconds))
                )

        api.await_(expire)
        return int(api.client.get("/fleet", headers=bearer(token)).status_code)

    assert [with_expiry(seconds) for seconds in (60, -5, -60)] == [200, 200, 401]


def test_an_expired_or_revoked_claim_enrols_nobody(api: Api, database_url: str, capsys: Any) -> None:
    """Claims end too."""
    claim = tokens(capsys, database_url, "create", "--claim")
    listed = tokens(capsys, database_url, "list")
    number = next(line.split()[0] for line in listed.splitlines() if " claim " in line)
    assert claim not in listed
    assert tokens(capsys, database_url, "revoke", "--claim", number) == "revoked"
    assert enrol(api, claim, "device-9").status_code == 401


def test_who_was_seen_is_noted_of_devices_that_are_there(database_url: str) -> None:
    """Of devices that call, when they did is kept; one that is gone by then does not come back, the others stay."""
    engine = sync_engine(database_url)
    then = datetime(2020, 1, 1, tzinfo=UTC)
    with engine.begin() as connection:
        rows = [{"id": name, "enrolled_at": then, "last_seen_at": then} for name in ("a", "b", "c")]
        connection.execute(insert(DeviceRow), rows)
        devices.saw(connection, {"c", "gone", "a"})
        found = connection.execute(select(DeviceRow.id, DeviceRow.enrolled_at, DeviceRow.last_seen_at)).all()
    engine.dispose()
    assert {row.id: row.last_seen_at > then for row in found} == {"a": True, "b": False, "c": True}
    assert {row.enrolled_at for row in found} == {then}


def test_a_report_shows_versions_skew_and_drift(api: Api, operator: dict[str, str], device: dict[str, str]) -> None:
    """What a device reports comes back in the fleet view; its clock is shown and trusted for nothing."""
    api.post("/models", GRAPH, **device)
    missing = Missing.model_validate_json(api.post("/profiles/missing", missing_request(GRAPH), **device).content)
    api.post("/profiles", measure(missing), **device)
    plan = api.post("/plans", plan_request(GRAPH), **device).json()
    report = DeviceReport(
        soc=SOC,
        frequency=FREQUENCY,
        versions={"hope-agent": "0.1.0"},
        sent_at=datetime.now(UTC) + timedelta(hours=5),
        measured=(
            MeasuredRun(
                plan_id=plan["plan_id"],
                plan_version=plan["version"],
                measured_us=plan["plan"]["makespan_us"] * 1.25,
                runs=20,
            ),
            MeasuredRun(plan_id=plan["plan_id"], plan_version=plan["version"] + 1, measured_us=1.0, runs=1),
            MeasuredRun(plan_id="p-nobody-knows", plan_version=1, measured_us=5.0, runs=1),
        ),
    )
    headers = {**device, "content-type": "application/json"}
    for _ in range(2):
        sent = api.client.put("/devices/device-1/report", content=report.model_dump_json(), headers=headers)
        assert sent.status_code == 204
    found = api.client.get("/devices/device-1", headers=operator).json()
    assert found["versions"] == {"hope-agent": "0.1.0"}
    assert found["drift"] == pytest.approx(0.25)
    assert found["clock_skew_s"] == pytest.approx(5 * 3600, abs=60)
    assert datetime.fromisoformat(found["last_seen_at"]) < datetime.now(UTC) + timedelta(minutes=1)
    plans = api.client.get("/fleet/plans", headers=operator).json()["plans"]
    assert [(item["plan_id"], item["drift"]) for item in plans] == [(plan["plan_id"], pytest.approx(0.25))]
    assert api.client.get("/fleet", headers=operator).json()["median_drift"] == pytest.approx(0.25)


def test_too_many_requests_are_told_when_to_return(sqlite_url: str) -> None:
    """Beyond its burst a token gets 429 with Retry-After, while another token goes on."""
    with serving(sqlite_url, tokens_required=True, rate_per_token=0.5, burst_per_token=3) as api:
        first, second = operator_token(api), operator_token(api)
        codes = [api.client.get("/fleet", headers=bearer(first)).status_code for _ in range(4)]
        assert codes == [200, 200, 200, 429]
        refused = api.client.get("/fleet", headers=bearer(first))
        assert int(refused.headers["retry-after"]) in (1, 2)
        assert refused.json()["type"] == "urn:hope:too-many-requests"
        assert api.client.get("/fleet", headers=bearer(second)).status_code == 200


def test_who_floods_waits_for_each_refusal() -> None:
    """A caller that is beyond its rate by however little is refused after others, who came later, were answered."""
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
    assert order == ["other 0", "other 1", "other 2", "flood", "just"]


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
    """Wrong tokens count against the address they come from, which then reaches the database with known ones only."""
    asked: list[str] = []
    find = devices.find_tokens

    async def counted(session: Any, token_hashes: Any) -> Any:
        asked.extend(token_hashes)
        return await find(session, token_hashes)

    monkeypatch.setattr(devices, "find_tokens", counted)
    monkeypatch.setattr("planner_api.devices.guard.MAX_UNKNOWN", 2)
    with serving(sqlite_url, tokens_required=True, rate_per_address=0.1, burst_per_address=9) as api:
        good = operator_token(api)

        def ask(authorization: str) -> int:
            return int(api.client.get("/fleet", headers={"authorization": authorization}).status_code)

        assert ask(f"Bearer {good}") == 200
        again = f"Bearer {new_token('operator')}"
        assert [ask(again) for _ in range(3)] == [401] * 3
        assert len(asked) == 2, "an unknown token is asked for once"
        assert [ask(value) for value in ("Basic x", "Bearer " + "x" * 300)] == [401] * 2
        assert [ask(f"Bearer {new_token('operator')}") for _ in range(6)] == [401] * 4 + [429] * 2
        assert len(asked) == 6, "beyond the limit nobody is asked"
        assert ask(f"Bearer {good}") == 200
        assert len(asked) == 6, "guesses drive no known token out"


def test_a_token_revoked_while_it_is_looked_up_is_not_remembered(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before the revocation was announced is forgotten with it."""
    find = devices.find_tokens
    with serving(sqlite_url, tokens_required=True) as api:
        planner, token_hash = api.app.planner, hash_token(new_token("operator"))

        async def race() -> Any:
            async with planner.database.write() as session:
                token_id = await devices.add_token(session, token_hash, "operator")

            async def slow(session: Any, wanted: Any) -> Any:
                found = await find(session, wanted)
                async with planner.database.write() as writing:
                    (revoked,) = await devices.revoke(writing, token_id=token_id)
                    await planner.events.revoke(writing, revoked)
                await asyncio.sleep(0)
                return found

            monkeypatch.setattr(devices, "find_tokens", slow)
            await planner.tokens.look_up(token_hash)
            monkeypatch.setattr(devices, "find_tokens", find)
            return planner.tokens.known(token_hash) or await planner.tokens.look_up(token_hash)

        assert api.await_(race) is None


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


@given(st.text(), st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"]))
def test_a_device_may_do_nothing_unforeseen(path: str, method: str) -> None:
    """Only what is listed is allowed to a device's token."""
    device = Principal("device", "device:d", "d")
    if device.may(method, "/" + path):
        assert (method, "/" + path) in {
            ("POST", "/models"), ("POST", "/profiles"), ("POST", "/profiles/missing"), ("POST", "/plans"),
            ("PUT", "/devices/d/report"), ("GET", "/openapi.json"), ("HEAD", "/openapi.json"),
        } or (method in ("GET", "HEAD") and path.startswith(("models/", "plans/")))  # fmt: skip


def test_devices_are_listed_by_pages(api: Api, operator: dict[str, str]) -> None:
    """Pages follow each other without gaps or repeats."""

    async def add() -> None:
        async with api.app.planner.database.write() as session:
            session.add_all(DeviceRow(id=f"d{i:02}", enrolled_at=datetime.now(UTC)) for i in range(7))

    api.await_(add)
    seen: list[str] = []
    after = None
    while True:
        params = {"limit": 3, **({"after": after} if after else {})}
        page = api.client.get("/devices", params=params, headers=operator).json()
        seen += [item["device_id"] for item in page["devices"]]
        after = page["next"]
        if after is None:
            break
    assert seen == [f"d{i:02}" for i in range(7)]

"""Tokens, claims and scopes over HTTP on both databases."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update

from hope_schema import DeviceReport, EnrolmentReceipt, NewClaim, NewToken
from hope_schema.proof import hash_token
from planner_api.db.tables import ClaimRow, TokenRow
from planner_api.devices import repository as devices
from planner_api.jobs.news import publish
from planner_api.web.principal import Principal
from tests.planner.samples import (
    FREQUENCY,
    SOC,
    Api,
    bearer,
    chain,
    enrol,
    eventually,
    issue,
    make_token,
    measure,
    missing_request,
    plan_request,
    problem,
    serving,
)

GRAPH = chain()

pytestmark = pytest.mark.planner(tokens_required=True)


@pytest.fixture
def claim(api: Api, database_url: str) -> str:
    """A claim for two devices."""
    return issue(database_url, "claim", uses=2, lifetime_s=3600.0)


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
    """It registers graphs, uploads, asks for plans and reports about itself; the rest takes an admin."""
    assert api.post("/models", GRAPH, **device).status_code == 201
    upload = measure(api.missing(GRAPH, header=device))
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
    sent = api.post("/profiles", measure(api.missing(GRAPH, header=device), "device-2"), **device)
    assert (sent.status_code, sent.json()["type"]) == (403, "urn:hope:foreign-device")


def test_revocation_acts_at_once(api: Api, admin: dict[str, str], device: dict[str, str], claim: str) -> None:
    """A revoked device is refused although its token was just used, and may enrol again with a claim."""
    assert api.client.get(f"/models/{GRAPH.model_hash}", headers=device).status_code == 404
    assert api.client.delete("/devices/device-1", headers=admin).status_code == 204
    assert eventually(lambda: api.client.get(f"/models/{GRAPH.model_hash}", headers=device).status_code == 401)
    said = api.client.get("/plans/p-1", headers=device).json()["detail"]
    assert "`hope-agent enrol`" in said, "what to type next"
    assert enrol(api, claim, "device-1").status_code == 201
    assert api.client.delete("/devices/nobody", headers=admin).status_code == 404


def test_expired_tokens_are_refused_and_skewed_clocks_tolerated(api: Api, database_url: str) -> None:
    """A token is good for half a minute more than it says, because replicas' clocks differ, and then no more."""

    def with_expiry(seconds: float) -> int:
        token = issue(database_url, "admin", lifetime_s=3600.0)

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


def test_a_revoked_claim_enrols_nobody(api: Api, claim: str, admin: dict[str, str]) -> None:
    """Claims end too; the list says so, and never the secret."""
    (listed,) = api.client.get("/claims", headers=admin).json()["claims"]
    assert (listed["state"], listed["uses_left"]) == ("valid", 2)
    assert api.client.delete(f"/claims/{listed['id']}", headers=admin).status_code == 204
    assert enrol(api, claim, "device-9").status_code == 401
    after = api.client.get("/claims", headers=admin)
    assert after.json()["claims"][0]["state"] == "revoked"
    assert claim not in after.text
    problem(api.client.delete(f"/claims/{listed['id']}", headers=admin), 404, "claim-unknown")


def test_tokens_are_made_listed_and_revoked_over_http(api: Api, admin: dict[str, str], device: dict[str, str]) -> None:
    """Shown once, admins' apart from the crowd of devices', by pages; only an admin makes one; the log says who did."""
    made = [
        api.post("/tokens", NewToken(read_only=read_only, label="x", lifetime_s=60.0), **admin)
        for read_only in (False, True)
    ]
    assert [(one.status_code, one.headers["cache-control"]) for one in made] == [(201, "no-store")] * 2
    look = bearer(made[1].json()["token"])
    newest = api.client.get("/tokens", params={"limit": 1}, headers=look).json()
    rest = api.client.get("/tokens", params={"before": newest["next"]}, headers=look).json()
    listed = newest["tokens"] + rest["tokens"]
    assert [(token["scope"], token["state"]) for token in listed] == [("viewer", "valid")] + [("admin", "valid")] * 2
    assert rest["next"] is None
    (own,) = api.client.get("/tokens", params={"scope": "device"}, headers=look).json()["tokens"]
    assert own["device_id"] == "device-1"
    for refused in (look, device):
        problem(api.post("/tokens", NewToken(), **refused), 403, "scope-missing")
        problem(api.post("/claims", NewClaim(), **refused), 403, "scope-missing")
    assert api.client.delete(f"/tokens/{made[1].json()['id']}", headers=admin).status_code == 204
    assert api.client.get("/fleet", headers=look).status_code == 401
    problem(api.client.delete("/tokens/999", headers=admin), 404, "token-unknown")
    entry = api.client.get("/audit", headers=admin).json()["entries"][0]
    assert (entry["action"], entry["subject"]) == ("token.revoke", f"token:{made[1].json()['id']}")


def test_a_token_revoked_while_it_is_looked_up_is_not_remembered(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read before the revocation was announced is forgotten with it."""
    find = devices.find_tokens
    with serving(sqlite_url, tokens_required=True) as api:
        planner, token_hash = api.app.planner, hash_token(make_token(api, "admin"))

        async def race() -> Any:
            async with planner.database.read() as session:
                token_id = (await find(session, [token_hash]))[token_hash].id

            async def slow(session: Any, wanted: Any) -> Any:
                found = await find(session, wanted)
                async with planner.database.write() as writing:
                    (revoked,) = await devices.revoke(writing, token_id=token_id)
                    await publish(writing, devices.REVOKED, revoked)
                await asyncio.sleep(0)
                return found

            monkeypatch.setattr(devices, "find_tokens", slow)
            await planner.tokens.look_up(token_hash)
            monkeypatch.setattr(devices, "find_tokens", find)
            return planner.tokens.known(token_hash) or await planner.tokens.look_up(token_hash)

        assert api.await_(race) is None


@given(st.text(), st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "HEAD"]))
def test_a_device_may_do_nothing_unforeseen(path: str, method: str) -> None:
    """Only what is listed is allowed to a device's token."""
    device = Principal("device", "device:d", "d")
    if device.may(method, "/" + path):
        assert (method, "/" + path) in {
            ("POST", "/models"), ("POST", "/profiles"), ("POST", "/profiles/missing"), ("POST", "/plans"),
            ("PUT", "/devices/d/report"), ("GET", "/openapi.json"), ("HEAD", "/openapi.json"),
        } or (
            method in ("GET", "HEAD") and path.startswith(("models/", "plans/", "profiles/", "references/"))
        )  # fmt: skip


def test_a_device_reads_the_profile_of_its_own_soc_alone(api: Api, device: dict[str, str]) -> None:
    """Policies on a device need latencies: its SoC's are read with its token, another's are not."""
    api.post("/models", GRAPH, **device)
    upload = measure(api.missing(GRAPH, header=device))
    assert api.upload(upload, device).status_code == 202
    own = api.client.get(f"/profiles/{SOC}/{FREQUENCY}", headers=device)
    assert own.status_code == 200, own.text
    problem(api.client.get(f"/profiles/other/{FREQUENCY}", headers=device), 403, "foreign-profile")

"""What callers with one token, or none, cannot do to others: limits by network, by cookie, by route and by name."""

from __future__ import annotations

from typing import Any, cast
from urllib.parse import quote

import pytest
import structlog
from fastapi.testclient import TestClient

from hope_schema.base import is_label
from planner_api.cli.serve import build_config
from planner_api.console.session import COOKIE, new_secret
from planner_api.web.rate import NETWORK, AddressLimit
from tests.planner.samples import bearer, chain, enrol, enrolled, issue, queries_of, serving


def test_addresses_of_one_network_share_a_limit() -> None:
    """Guesses from many addresses of a /24, or of a /64, are not more than its share; another network goes on."""
    for many, other in (
        ([f"10.1.2.{n}" for n in range(256)], "10.1.3.1"),
        ([f"::ffff:10.1.2.{n}" for n in range(256)], "::ffff:10.1.3.1"),
        ([f"2001:db8:0:1::{n:x}" for n in range(256)], "2001:db8:0:2::1"),
    ):
        limit = AddressLimit(1.0, 10, clock=lambda: 0.0)
        allowed = sum(not limit.hit(address) for address in many)
        assert allowed <= 10 * NETWORK
        assert not limit.hit(other)


def test_a_cookie_that_opens_nothing_soon_costs_no_query(database_url: str) -> None:
    """Drawn cookies are guesses: beyond the address's limit they are refused before the database is asked."""
    with serving(database_url, works=(), tokens_required=True, rate_per_address=0.001, burst_per_address=50) as api:
        asked = queries_of(api)
        codes = []
        for _ in range(12):
            header = {"cookie": f"{COOKIE}={new_secret()}"}
            codes.append(api.client.get("/console", headers=header, follow_redirects=False).status_code)
        assert codes[0] == 303
        assert codes[-1] == 429
        assert sum("console_sessions" in statement for statement in asked) <= 6


@pytest.mark.parametrize("path", ["/", "/console", "/console/login", "/console/static/console.css"])
def test_the_console_without_a_session_counts_per_address(sqlite_url: str, path: str) -> None:
    """Whatever of the console nobody signed in for is as limited as a request without a token."""
    with serving(sqlite_url, works=(), tokens_required=True, rate_per_address=0.001, burst_per_address=3) as api:
        codes = [api.client.get(path, follow_redirects=False).status_code for _ in range(5)]
        assert set(codes[:3]) <= {200, 303, 404}
        assert codes[3:] == [429, 429]


@pytest.mark.parametrize("name", ["a/../good", "a/./good", "a//good", "a/..", "a/.", "a/"])
def test_a_name_is_no_way_to_another(sqlite_url: str, name: str) -> None:
    """What a browser would shorten to another name is none: it is neither enrolled nor looked up."""
    assert not is_label(name)
    with serving(sqlite_url, works=()) as api:
        body = {"soc": "soc-1", "frequency": "max", "versions": {}, "measured": []}
        answer = api.client.put(f"/devices/{name.replace('/', '%2F')}/report", json=body)
        assert answer.status_code in (404, 422)


@pytest.mark.parametrize("owner", ["a", "a/report", "a/b"])
def test_an_id_is_one_segment(sqlite_url: str, owner: str) -> None:
    """Devices whose ids are parts of each other's addresses are each reached by their own, and by no other's token."""
    ids = ("a", "a/report", "a/b", "a/b/report")
    report = {"soc": "vendor/soc", "frequency": "max", "versions": {}, "measured": []}
    with serving(sqlite_url, works=(), tokens_required=True) as api:
        tokens = {device_id: enrolled(api, device_id) for device_id in ids}
        paths = {device_id: f"/devices/{quote(device_id, safe='')}" for device_id in ids}
        for device_id, path in paths.items():
            own = device_id == owner
            reported = api.client.put(f"{path}/report", json=report, headers=tokens[owner])
            assert reported.status_code == (204 if own else 403)
            assert api.client.get(path, headers=tokens[owner]).status_code == (200 if own else 403)
        admin = bearer(issue(sqlite_url, "admin"))
        assert api.client.get("/devices/a/b", headers=admin).status_code == 404
        assert api.client.get("/devices/a%1Fb", headers=admin).status_code == 422
        assert api.client.delete(paths[owner], headers=admin).status_code == 204
        for device_id, path in paths.items():
            assert api.client.get(path, headers=admin).json()["revoked"] == (device_id == owner)


def test_names_with_slashes_and_dots_remain() -> None:
    """Names as devices have them are names still."""
    for name in ("vendor/soc-1.2", "a.b/c..d", "x/.hidden", "a/b/c"):
        assert is_label(name), name


def test_devices_do_not_read_what_is_for_people(sqlite_url: str) -> None:
    """A device reads its plan; a plan's history and comparisons, which are computed for each call, are for people."""
    graph = chain()
    with serving(sqlite_url) as api:
        api.learn(graph)
        plan_id = api.plan(graph).plan_id
    with serving(sqlite_url, tokens_required=True) as api:
        device = enrolled(api, "device-1")
        assert api.client.get(f"/plans/{plan_id}", headers=device).status_code == 200
        for path in ("diff", "versions"):
            assert api.client.get(f"/plans/{plan_id}/{path}", headers=device).status_code == 403


LOCAL = "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("headers", "refused"),
    [
        ({}, False),
        ({"host": "localhost:8000"}, False),
        ({"host": "[::1]:8000"}, False),
        ({"host": "planner.example"}, False),
        ({"host": "evil.example"}, True),
        ({"host": "127.0.0.1.evil.example"}, True),
        ({"host": "["}, True),
        ({"origin": LOCAL, "sec-fetch-site": "same-origin"}, False),
        ({"origin": "http://evil.example"}, True),
        ({"origin": "http://127.0.0.1:9000"}, True),
        ({"origin": "null"}, True),
        ({"origin": "http://["}, True),
        ({"sec-fetch-site": "cross-site"}, True),
        ({"sec-fetch-site": "same-site"}, True),
        ({"sec-fetch-site": "none"}, False),
    ],
)
def test_an_open_planner_hears_no_web_page(sqlite_url: str, headers: dict[str, str], refused: bool) -> None:
    """What a foreign page sends to loopback, or what a foreign name bound to it asks for, is refused on every route."""
    with serving(sqlite_url, works=(), addresses="https://planner.example") as api:
        for method, path in (("GET", "/fleet"), ("POST", "/models"), ("GET", "/console"), ("GET", "/healthz")):
            answer = api.client.request(method, LOCAL + path, headers=headers, follow_redirects=False)
            assert (answer.status_code == 403) == refused, path


def test_a_proxy_that_nobody_named_is_said(sqlite_url: str) -> None:
    """Headers of a proxy that is not trusted are said once, with what to set."""
    with serving(sqlite_url, works=()) as api:
        proxied = cast(Any, build_config(api.app, "127.0.0.1", 0).app)
        with structlog.testing.capture_logs() as said:
            client = TestClient(proxied)
            for _ in range(2):
                client.get("/healthz")
                client.get("/healthz", headers={"x-forwarded-for": "10.0.0.1"})
        assert [line["cure"] for line in said if line["event"] == "proxy_not_trusted"] == [
            "name it in FORWARDED_ALLOW_IPS, and set HOPE_TOKENS_REQUIRED=true"
        ]


def test_a_claim_enrols_so_many_at_once(database_url: str) -> None:
    """Whoever holds a claim makes no army of devices of it in a moment; another claim goes on."""
    with serving(database_url, works=(), tokens_required=True, rate_per_claim=0.001, burst_per_claim=3) as api:
        first, second = (issue(database_url, "claim", lifetime_s=3600.0) for _ in range(2))
        codes = [enrol(api, first, f"sybil-{number}").status_code for number in range(6)]
        assert codes == [201, 201, 201, 429, 429, 429]
        assert enrol(api, second, "honest").status_code == 201

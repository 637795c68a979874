"""Signing in and out, and everything that is not a session: over HTTP, on both databases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.routing import APIRoute
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from hope_schema.proof import hash_token
from planner_api.console.address import HOME
from planner_api.console.app import _pages
from planner_api.console.pages.sign_in import ours
from planner_api.console.session import COOKIE
from planner_api.db.tables import ConsoleSessionRow
from planner_api.devices import repository as devices
from tests.planner.console.visits import HERE, rows, send, sign_in
from tests.planner.samples import Api, make_token, serving

FORM = {"content-type": "application/x-www-form-urlencoded", "origin": HERE}


pytestmark = [pytest.mark.above_databases, pytest.mark.planner(tokens_required=True)]


def test_nobody_sees_a_page_without_a_session(api: Api) -> None:
    """Every page leads to the sign-in page, which knows the way back; no other route of the planner opens up."""
    answer = api.client.get(f"{HOME}/plans?soc=a")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{HOME}/login?to=%2Fconsole%2Fplans%3Fsoc%3Da")
    assert "Sign in" in api.client.get(answer.headers["location"]).text
    assert api.client.get("/fleet").status_code == 401
    assert api.client.get("/consolefleet").status_code == 401


def test_a_session_is_a_cookie_that_only_we_read_and_of_which_only_the_hash_is_kept(api: Api) -> None:
    """The cookie is out of scripts' reach and sent by our pages alone; over TLS only over TLS."""
    answer = sign_in(api, make_token(api, "admin"), to=f"{HOME}/plans")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{HOME}/plans")
    said = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", f"Path={HOME}", "Max-Age=43200"} <= set(said.split("; "))
    assert "Secure" not in said
    secret = api.client.cookies[COOKIE]
    assert [row.session_hash for row in rows(api)] == [hash_token(secret)]
    assert api.client.get(HOME).status_code == 200
    over_tls = api.client.post(
        f"https://testserver{HOME}/login",
        data={"token": make_token(api, "viewer")},
        headers={"origin": "https://testserver"},
    )
    assert "Secure" in over_tls.headers["set-cookie"]
    assert over_tls.headers["strict-transport-security"]


def test_what_is_no_admins_or_viewers_token_does_not_sign_in(api: Api) -> None:
    """Claims, devices' tokens and strangers get one sentence, 401 and no cookie."""
    before = datetime.now(UTC) - timedelta(minutes=5)
    expired = make_token(api, "admin", expires_at=before)
    for token in (make_token(api, "claim"), make_token(api, "device"), expired, "hope_a_x", "", "x" * 3000):
        answer = sign_in(api, token)
        assert answer.status_code == 401, token
        assert 'role="alert"' in answer.text
        assert "set-cookie" not in answer.headers
    assert rows(api) == []


def test_a_forged_cookie_is_nobodys(api: Api) -> None:
    """Whatever a cookie holds, it opens nothing and breaks nothing."""
    texts = ("x" * 43, "", "x", "x" * 10_000, '"', "a=b; c", "\x01" * 43, "ü" * 43, "../etc", "' OR 1=1 --".ljust(43))
    for forged in texts:
        answer = api.client.get(HOME, headers=[(b"cookie", f"{COOKIE}={forged}".encode())])
        assert answer.status_code == 303, forged
        assert answer.headers["location"].startswith(f"{HOME}/login")


def test_a_session_ends_with_its_time_and_with_its_token(api: Api) -> None:
    """Past its end, and from the moment on that its token is revoked, a cookie opens nothing."""

    async def change(values: dict[str, Any]) -> None:
        async with api.app.planner.database.write() as session:
            await session.execute(update(ConsoleSessionRow).values(**values))

    token = make_token(api, "admin")
    sign_in(api, token)
    api.await_(change, {"expires_at": datetime.now(UTC) - timedelta(seconds=1)})
    answer = api.client.get(HOME)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{HOME}/login?to=%2Fconsole&ended=1")
    assert "Your session has ended" in api.client.get(answer.headers["location"]).text
    sign_in(api, token)
    assert len(rows(api)) == 1, "what has ended is cleared away"
    assert api.client.get(HOME).status_code == 200

    async def revoke() -> None:
        async with api.app.planner.database.write() as session:
            await devices.revoke(session, token_id=rows_token)

    rows_token = rows(api)[0].token_id
    api.await_(revoke)
    assert api.client.get(HOME).status_code == 303


def test_signing_out_ends_the_session_everywhere(api: Api) -> None:
    """After it the cookie is worth nothing, even to who kept a copy."""
    sign_in(api, make_token(api, "admin"))
    secret = api.client.cookies[COOKIE]
    answer = send(api, "/logout")
    assert answer.status_code == 303
    assert rows(api) == []
    assert api.client.get(HOME, headers=[(b"cookie", f"{COOKIE}={secret}".encode())]).status_code == 303


def test_nobody_else_can_send_a_form_in_your_name(api: Api) -> None:
    """A form from another site, or one that does not say where it comes from, changes nothing."""
    sign_in(api, make_token(api, "admin"))
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": f"{HERE}.evil.example"},
        {"origin": ""},
        {"origin": "http://["},
        {},
        {"referer": HERE},
        {"origin": HERE, "sec-fetch-site": "cross-site"},
        {"origin": HERE, "sec-fetch-site": "same-site"},
    ):
        answer = api.client.post(f"{HOME}/logout", headers=headers)
        assert answer.status_code == 403, headers
    assert len(rows(api)) == 1


@pytest.mark.planner(root_path="/tools/hope")
@pytest.mark.parametrize("prefix", ["", "/tools/hope"])
def test_every_form_is_asked_where_it_comes_from(prefix: str, api: Api) -> None:
    """Whatever changes something, signing in included, is refused without our own origin, under a prefix too."""
    routes = [(route.path, route.methods) for route in _pages(api.app.planner).routes if isinstance(route, APIRoute)]
    changing = [
        (re.sub("{[^}]*}", "x", path), method) for path, methods in routes for method in methods - {"GET", "HEAD"}
    ]
    assert len(changing) > 10
    foreign = {"origin": "http://evil.example"}
    for path, method in changing:
        for headers in ({}, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}, foreign):
            answer = api.client.request(method, prefix + path, headers=headers)
            assert (answer.status_code, "page of this console" in answer.text) == (403, True), (path, headers)


def test_who_looks_only_changes_nothing(api: Api) -> None:
    """With a viewer's token, or an admin's who wants it so, no page takes a form but that to sign out."""
    for token, fields in ((make_token(api, "viewer"), {}), (make_token(api, "admin"), {"look_only": "on"})):
        sign_in(api, token, **fields)
        assert "Looking only" in api.client.get(HOME).text
        for path in ("/tokens", "/devices/a", "/releases", "/nothing"):
            answer = send(api, path)
            assert (answer.status_code, "signed in to look only" in answer.text) == (403, True)
        answer = send(api, "/logout")
        assert answer.status_code == 303


def test_a_viewers_token_reads_the_api_and_changes_nothing(api: Api) -> None:
    """GET answers, everything else is refused before its body is read."""
    bearer = {"authorization": f"Bearer {make_token(api, 'viewer')}"}
    assert api.client.get("/fleet", headers=bearer).status_code == 200
    for method, path in (("POST", "/models"), ("DELETE", "/devices/a"), ("PUT", "/fleet/socs/a")):
        answer = api.client.request(method, path, headers=bearer)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:hope:scope-missing")


def test_every_answer_says_what_a_browser_may_do(api: Api) -> None:
    """Pages, files, errors and redirects: no script but ours, no frame, no guessing of types."""
    stylesheet = re.search(r'href="(/console/static/[^"]+\.css[^"]*)"', api.client.get(f"{HOME}/login").text)
    assert stylesheet is not None
    sign_in(api, make_token(api, "admin"))
    for path in ("", "/login", "/nothing", "/plans?after=%00", "/plans/p-nothing", "/static/nothing.css"):
        headers = api.client.get(HOME + path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert "x-request-id" in headers
    file = api.client.get(stylesheet[1])
    assert file.status_code == 200
    again = api.client.get(stylesheet[1], headers={"if-none-match": file.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert api.client.get(HOME).headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("accepted", "coding"), [("zstd, gzip", "gzip"), ("", None), ("zstd", None)])
def test_pages_and_files_come_as_the_browser_reads_them(api: Api, accepted: str, coding: str | None) -> None:
    """Compressed with gzip where a browser takes that, and as they are where it says nothing of it."""
    asked = {"accept-encoding": accepted}
    page = api.client.get(f"{HOME}/login", headers=asked)
    stylesheet = re.search(r'href="(/console/static/[^"]+\.css[^"]*)"', page.text)
    assert stylesheet is not None
    for answer in (page, api.client.get(stylesheet[1], headers=asked)):
        assert (answer.status_code, answer.headers.get("content-encoding")) == (200, coding)


def test_guessing_tokens_is_slow(database_url: str) -> None:
    """An address that tries too often waits, whatever it tries."""
    with serving(database_url, tokens_required=True, rate_per_address=0.001, burst_per_address=5) as api:
        codes = [sign_in(api, f"hope_a_{number}").status_code for number in range(7)]
    assert codes == [401] * 5 + [429] * 2


def test_an_open_planner_asks_nobody_and_still_takes_no_foreign_form(database_url: str) -> None:
    """Without tokens the console opens at once, and only its own pages change something."""
    with serving(database_url) as api:
        api.client.follow_redirects = False
        page = api.client.get(f"{HOME}/tokens", headers={"accept": "text/html"})
        assert (page.status_code, "set-cookie" in page.headers) == (200, False)
        made = {"kind": "viewer", "days": "1"}
        for headers in ({}, {"origin": "null"}, {"origin": "http://evil"}):
            assert api.client.post(f"{HOME}/tokens", data=made, headers=headers).status_code == 403
        assert api.client.post(f"{HOME}/tokens", data=made, headers={"origin": HERE}).status_code == 200


def test_a_planner_may_have_no_console(database_url: str) -> None:
    """Switched off it is not there, and asks for a token like anything else that is not there."""
    with serving(database_url, console=False, tokens_required=True) as api:
        assert api.client.get(HOME).status_code == 401


@given(st.text(max_size=60))
@settings(max_examples=300)
def test_signing_in_leads_nowhere_else(to: str) -> None:
    """Whatever the address says, the way back lies within the console."""
    for wanted in (to, HOME + to, f"{HOME}/{to}"):
        found = ours(wanted)
        assert found == HOME or re.match(r"/console[/?]", found)
        assert "\\" not in found
        assert "\n" not in found


@given(body=st.binary(max_size=200), kind=st.sampled_from(["application/x-www-form-urlencoded", "text/plain", ""]))
@settings(max_examples=60)
def test_no_form_breaks_anything(body: bytes, kind: str, open_api: Api) -> None:
    """Bytes of any kind are refused with a page of their own."""
    headers = {"origin": HERE, "content-type": kind, "cookie": f"{COOKIE}={'x' * 43}"}
    for path in ("/logout", "/login"):
        answer = open_api.client.post(HOME + path, content=body, headers=headers)
        assert 300 <= answer.status_code < 500


@pytest.fixture(scope="module")
def open_api(sqlite_template: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A planner that asks nobody for a token."""
    import shutil

    path = tmp_path_factory.mktemp("open") / "hope.sqlite"
    shutil.copy(sqlite_template, path)
    with serving(f"sqlite:///{path}", rate_per_address=0) as running:
        running.client.follow_redirects = False
        yield running

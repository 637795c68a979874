"""Signing in through a provider: a real one in a process of its own, what it may not do, and what nobody else may."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import pytest
from playwright.sync_api import expect
from pydantic import ValidationError

from planner_api.cli.serve import build_config
from planner_api.console.address import HOME
from planner_api.console.oidc import Provider, SignInError
from planner_api.console.pages.sign_in import ATTEMPT_COOKIE
from planner_api.db.tables import AuditRow
from planner_api.settings import Settings
from tests import ENDING_WITH_TESTS
from tests.browser import chromium
from tests.planner.console.provider import CLIENT_ID, CLIENT_SECRET
from tests.planner.console.visits import audited, rows, send
from tests.planner.samples import Api, serving
from tests.planner.wire import listening

pytestmark = pytest.mark.above_databases


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    """The address of a provider that runs."""
    command = [*ENDING_WITH_TESTS, sys.executable, "-m", "tests.planner.console.provider"]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def settings(issuer: str, **more: Any) -> dict[str, Any]:
    """What an admin sets."""
    return {
        "tokens_required": True, "rate_per_address": 0, "oidc_issuer": issuer, "oidc_client_id": CLIENT_ID,
        "oidc_client_secret": CLIENT_SECRET, "oidc_role_claim": "realm.roles", "oidc_name_claim": "email", **more,
    }  # fmt: skip


@pytest.fixture
def api(database_url: str, issuer: str) -> Iterator[Api]:
    """A planner that knows the provider; its client follows no redirects."""
    with serving(database_url, **settings(issuer)) as running:
        running.client.follow_redirects = False
        yield running


@pytest.fixture(scope="module")
def still(sqlite_template: Path, issuer: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A planner for what never reaches the database."""
    path = shutil.copy(sqlite_template, tmp_path_factory.mktemp("still") / "hope.sqlite")
    with serving(f"sqlite:///{path}", **settings(issuer)) as running:
        running.client.follow_redirects = False
        yield running


def leave(api: Api, user: str, to: str = f"{HOME}/plans", prefix: str = "") -> str:
    """Go to the provider, sign in there as somebody, and return the address that it sends the browser to."""
    sent = api.client.get(f"{prefix}{HOME}/oidc", params={"to": to})
    assert sent.status_code == 303, sent.text
    asked = {name: values[0] for name, values in parse_qs(urlsplit(sent.headers["location"]).query).items()}
    back = httpx.post(sent.headers["location"].partition("?")[0], data={**asked, "user": user})
    assert back.status_code == 302
    return str(back.headers["location"])


def sign_in(api: Api, user: str) -> Any:
    """Sign in as somebody and return the planner's answer."""
    return api.client.get(leave(api, user))


def test_who_has_a_role_comes_in_and_is_known_by_name(api: Api) -> None:
    """An admin does everything and stands in the audit log; the attempt's cookie is gone; signing out ends it."""
    answer = sign_in(api, "ada")
    assert (answer.status_code, f"url={HOME}/plans" in answer.text) == (200, True)
    assert ATTEMPT_COOKIE not in api.client.cookies
    said = [value for value in answer.headers.get_list("set-cookie") if value.startswith("hope_console=")]
    assert all(word in said[0] for word in ("HttpOnly", "SameSite=strict", f"Path={HOME}"))
    assert "ada@example.com" in api.client.get(HOME).text
    assert send(api, "/tokens", kind="viewer", days="1").status_code == 200
    out = send(api, "/logout")
    assert out.status_code == 303
    assert rows(api) == []
    assert audited(api, AuditRow.actor, AuditRow.action) == [
        ("oidc:ada@example.com", action) for action in ("console.sign-in", "token.create", "console.sign-out")
    ]


def test_where_somebody_wants_to_go_keeps_nobody_outside(api: Api) -> None:
    """The longest address that is accepted may not fit the attempt's cookie: it leads to the first page instead."""
    answer = api.client.get(leave(api, "ada", f"{HOME}/plans?search=".ljust(2048, "/")))
    assert (answer.status_code, f"url={HOME}" in answer.text, "search=" in answer.text) == (200, True, False)


def test_the_way_to_a_provider_and_back_is_under_a_prefix(database_url: str, issuer: str) -> None:
    """What the provider sends a browser back to, the attempt's cookie, and where somebody wanted to go."""
    with serving(database_url, **settings(issuer, root_path="/tools/hope")) as api:
        api.client.follow_redirects = False
        back = leave(api, "ada", prefix="/tools/hope")
        assert urlsplit(back).path == f"/tools/hope{HOME}/oidc/callback"
        answer = api.client.get(back)
        assert (answer.status_code, f"url=/tools/hope{HOME}/plans" in answer.text) == (200, True)
        assert ATTEMPT_COOKIE not in api.client.cookies


def test_a_viewer_looks_and_a_guest_stays_outside(api: Api) -> None:
    """The role claim decides; who has none of the roles, and whom the provider refuses, is told so."""
    assert sign_in(api, "bob").status_code == 200
    assert "Looking only" in api.client.get(HOME).text
    assert send(api, "/tokens", kind="viewer", days="1").status_code == 403
    api.client.cookies.clear()
    for user, words in (("eve", "nothing in the claim"), ("nobody", "access_denied")):
        answer = sign_in(api, user)
        assert (answer.status_code, words in answer.text) == (401, True)
        assert "hope_console=" not in answer.headers.get("set-cookie", "").replace(ATTEMPT_COOKIE, "")
    assert len(rows(api)) == 1


@pytest.mark.parametrize("admins", ["", "hope-admin,", " , "])
def test_an_empty_role_opens_nothing(admins: str) -> None:
    """Neither where nobody is to come in, nor behind a comma too many."""
    chosen = {"oidc_issuer": "https://id.example", "oidc_client_id": CLIENT_ID, "oidc_admins": admins}
    with pytest.raises(SignInError, match="nothing in the claim"):
        Provider(Settings(**chosen))._person({"sub": "eve", "roles": ["", " "]})


@pytest.mark.parametrize(
    "lie",
    ["nonce", "issuer", "audience", "party", "expired", "early", "key", "symmetric", "unsigned", "nothing", "huge",
     "deep", "name"],
)  # fmt: skip
def test_a_token_that_is_wrong_opens_nothing(still: Api, lie: str) -> None:
    """Signed by another, for another, of another time or attempt, forged with the public key, endless, or none."""
    still.client.cookies.clear()
    answer = sign_in(still, f"mallory-{lie}")
    assert answer.status_code in (401, 502)
    assert 'role="alert"' in answer.text
    assert "hope_console=" not in answer.headers.get("set-cookie", "").replace(ATTEMPT_COOKIE, "")
    assert rows(still) == []


def test_an_answer_is_good_once_and_in_one_browser(still: Api) -> None:
    """Another browser, another attempt, another state, another provider, a code used before: nobody comes in."""
    back = leave(still, "ada")
    stolen = dict(still.client.cookies)
    still.client.cookies.clear()
    assert still.client.get(back).status_code == 401, "a victim's browser that an attacker sends there"
    leave(still, "ada")
    assert still.client.get(back).status_code == 401, "another attempt of the same browser"
    still.client.cookies.clear()
    still.client.cookies.update(stolen)
    path, _, query = back.partition("?")
    asked = {name: values[0] for name, values in parse_qs(query).items()}
    for wrong in ({"state": "x"}, {"state": "ü" * 2000}, {"iss": "https://evil.example"}, {"code": "x" * 5000}):
        still.client.cookies.update(stolen)
        assert still.client.get(f"{path}?{urlencode({**asked, **wrong})}").status_code == 401
    for cookie in ("", "x", f"{'x' * 43}.%%%", "\x01" * 50, "x" * 9000):
        answer = still.client.get(back, headers=[(b"cookie", f"{ATTEMPT_COOKIE}={cookie}".encode())])
        assert answer.status_code == 401
    still.client.cookies.clear()
    still.client.cookies.update(stolen)
    assert still.client.get(back).status_code == 200
    still.client.cookies.update(stolen)
    assert still.client.get(back).status_code == 401, "the code was used"


def test_an_admin_ends_the_session_of_a_person(api: Api) -> None:
    """What no token ends, an admin does; once, and it is written down."""
    sign_in(api, "bob")
    viewer = dict(api.client.cookies)
    api.client.cookies.clear()
    sign_in(api, "ada")
    [bob] = [row.session_hash for row in rows(api) if row.person == "oidc:bob@example.com"]
    for status in (303, 404):
        assert send(api, f"/tokens/sessions/{bob}").status_code == status
    api.client.cookies.clear()
    api.client.cookies.update(viewer)
    assert api.client.get(HOME).status_code == 303
    assert audited(api, AuditRow.actor, AuditRow.action)[-1] == ("oidc:ada@example.com", "console.end")


def test_a_provider_that_is_away_is_said_to_be(sqlite_url: str) -> None:
    """The sign-in page says so at once and still takes a token; without a provider there is no way to one."""
    with serving(sqlite_url, **settings("http://127.0.0.1:1")) as running:
        answer = running.client.get(f"{HOME}/oidc")
        assert (answer.status_code, "does not answer" in answer.text) == (502, True)
        assert 'name="token"' in answer.text
    with serving(sqlite_url, tokens_required=True) as running:
        assert running.client.get(f"{HOME}/oidc").status_code == 404
        assert f"{HOME}/oidc" not in running.client.get(f"{HOME}/login").text


@pytest.mark.parametrize(
    "wrong",
    [
        {"oidc_issuer": "https://id.example"},
        {"oidc_issuer": "http://id.example", "oidc_client_id": "a"},
        {"oidc_issuer": "id.example", "oidc_client_id": "a"},
        {"oidc_issuer": "https://id.example", "oidc_client_id": "a", "oidc_scopes": "profile"},
    ],
)
def test_half_a_provider_is_refused(wrong: dict[str, str]) -> None:
    """No client, no TLS, no address, no openid: the planner does not start."""
    with pytest.raises(ValidationError):
        Settings(**wrong)


def test_somebody_signs_in_through_the_provider_in_a_browser(sqlite_url: str, issuer: str) -> None:
    """From a link, over the provider's own page, to where the link led: also where cookies are strict about sites."""
    with (
        serving(sqlite_url, **settings(issuer)) as running,
        listening(running, build_config(running.app, "127.0.0.1", 0)) as port,
        chromium() as browser,
    ):
        page = browser.new_page(base_url=f"http://localhost:{port}")
        page.goto(f"{HOME}/audit")
        page.get_by_role("link", name="Sign in with 127.0.0.1").click()
        page.get_by_label("Name").fill("ada")
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url(f"http://localhost:{port}{HOME}/audit")
        expect(page.locator("tbody tr").first).to_contain_text("oidc:ada@example.com")

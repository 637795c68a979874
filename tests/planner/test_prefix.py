"""HEAD wherever GET is, and the planner under a proxy's path prefix."""

from __future__ import annotations

import asyncio
import re
from typing import Any, cast

import pytest

from planner_api.web.prefix import ProxyHeaders
from tests.planner.samples import Api, enrolled, make_token

pytestmark = pytest.mark.above_databases


@pytest.mark.parametrize(
    "path",
    ["/healthz", "/readyz", "/metrics", "/fleet", "/openapi.json", "/console/login", "/console/oidc/callback", "/no"],
)
def test_head_is_get_without_its_body(path: str, api: Api) -> None:
    """The same status and headers, the length of what GET sends among them."""
    got, head = api.client.get(path), api.client.head(path)
    assert head.status_code == got.status_code
    assert head.content == b""
    differs = {"x-request-id", "set-cookie", "date"}
    if path not in ("/metrics", "/console/oidc/callback"):  # the one changes, the other's page names the request
        assert {k: v for k, v in head.headers.items() if k not in differs} == {
            k: v for k, v in got.headers.items() if k not in differs
        }


def test_head_is_refused_where_get_is(api: Api) -> None:
    """What only changes something has no head."""
    assert api.client.head("/profiles/missing").status_code == api.client.get("/profiles/missing").status_code == 405


@pytest.mark.planner(root_path="/tools/hope")
@pytest.mark.parametrize("left_on", [True, False])
def test_the_console_stands_under_a_prefix(left_on: bool, api: Api) -> None:
    """Every link, form and asset of it carries the prefix, whether or not the proxy takes it off."""
    prefix = "/tools/hope" if left_on else ""
    page = api.client.get(f"{prefix}/console")
    assert page.status_code == 200
    links = re.findall(r'(?:href|src|action)="(/[^"]*)"', page.text)
    assert len(links) > 10
    assert all(link.startswith("/tools/hope/console") for link in links)
    for link in {link.partition("?")[0] for link in links if "/static/" in link}:
        assert api.client.get(link if left_on else link.removeprefix("/tools/hope")).status_code == 200


@pytest.mark.planner(tokens_required=True, root_path="/tools/hope")
def test_who_must_sign_in_is_sent_there_under_the_prefix(api: Api) -> None:
    """And comes back to the page that was asked for, with a cookie for the console alone."""
    api.client.follow_redirects = False
    answer = api.client.get("/tools/hope/console/plans")
    assert answer.headers["location"] == "/tools/hope/console/login?to=%2Fconsole%2Fplans"
    sent, origin = {"token": make_token(api, "admin"), "to": "/console/plans"}, str(api.client.base_url)
    answer = api.client.post("/tools/hope/console/login", data=sent, headers={"origin": origin})
    assert answer.headers["location"] == "/tools/hope/console/plans"
    assert "path=/tools/hope/console;" in answer.headers["set-cookie"].lower()


@pytest.mark.planner(root_path="/tools/hope")
def test_a_browser_is_led_under_the_prefix_once(api: Api) -> None:
    """From the root, and from a form to the page of what it changed."""
    enrolled(api, "phone-1")
    api.client.follow_redirects = False
    assert api.client.get("/tools/hope/").headers["location"] == "/tools/hope/console"
    path = "/tools/hope/console/devices/phone-1"
    origin = str(api.client.base_url)
    assert api.client.post(path, headers={"origin": origin}).headers["location"] == path


@pytest.mark.parametrize("given", ["/tools/hope", "/tools/hope/"])
def test_a_prefix_is_believed_of_a_trusted_proxy_alone(given: str) -> None:
    """As its other headers are; what is no path is nobody's."""
    seen: list[str] = []

    async def app(scope: dict[str, object], receive: object, send: object) -> None:
        seen.append(str(scope.get("root_path", "")))

    proxy, stranger = "10.0.0.1", "10.0.0.2"
    for client, header in ((proxy, given), (stranger, given), (proxy, "//evil.example"), (proxy, "/../x")):
        scope = {"type": "http", "client": (client, 1), "headers": [(b"x-forwarded-prefix", header.encode())]}
        asyncio.run(ProxyHeaders(cast(Any, app), proxy)(scope, None, None))
    assert seen == ["/tools/hope", "", "", ""]

"""An open planner on this machine, out of reach for the web pages that its people look at.

A browser on this machine reaches loopback for any page that it shows. Such a request names a foreign host, where the
page's own name was bound to 127.0.0.1, or says by itself that it comes from another site.
"""

from typing import Any
from urllib.parse import urlsplit

from planner_api.errors import ForbiddenError
from planner_api.settings import is_loopback
from planner_api.web.asgi import Asgi, Scope, values_of

OURS = frozenset({b"same-origin", b"none"})
"""``Sec-Fetch-Site`` of a request that our own page makes, or a person by typing an address."""
CURE = "name the address that it is reached at in HOPE_ADDRESSES"


class Loopback:
    """ASGI layer that refuses what web pages send to an open planner.

    A planner inside another process, which listens nowhere, has nothing to refuse.

    Args:
        app: what answers the rest.
        addresses: at which this planner may be reached beside loopback, as URLs.
    """

    def __init__(self, app: Asgi, addresses: frozenset[str]) -> None:
        self._app = app
        self._hosts = {urlsplit(address).netloc for address in addresses}

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        server = scope.get("server")
        if server and is_loopback(server[0]):
            self._check(scope)
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        hosts = values_of(scope, b"host")
        host = hosts[0].decode("latin-1") if len(hosts) == 1 else ""
        if hosts and not (host in self._hosts or is_loopback(_name_of(host))):
            raise ForbiddenError("foreign-host", f"an open planner answers to this machine's own names; {CURE}")
        if is_foreign(scope, host):
            raise ForbiddenError("foreign-origin", "this request comes from a page of another site")


def is_foreign(scope: Scope, host: str) -> bool:
    """Whether a browser says of a request to a host that a page of another site makes it."""
    origins, sites = values_of(scope, b"origin"), values_of(scope, b"sec-fetch-site")
    elsewhere = any(origin.decode("latin-1").partition("://")[2] != host for origin in origins)
    return elsewhere or any(site.lower() not in OURS for site in sites)


def _name_of(host: str) -> str:
    """A Host without its port; nothing for what is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""

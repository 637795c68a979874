"""The planner under a path prefix of a proxy's, as in ``https://tools.example/hope/console``."""

import re
from collections.abc import Awaitable
from typing import Any

import structlog
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from planner_api.web.asgi import Asgi, Scope

log = structlog.get_logger(__name__)

HEADER = b"x-forwarded-prefix"
PREFIX = re.compile(r"(/[A-Za-z0-9_~\-][A-Za-z0-9._~\-]{0,62}){1,8}")
"""A prefix that is taken over; any other is none."""

PROXY = frozenset({b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip", b"via"})
"""What proxies add to a request."""


class ProxyHeaders(ProxyHeadersMiddleware):
    """What a trusted proxy says of its client: address and scheme, as uvicorn reads them, and the prefix.

    Of one that is not trusted the log says once that it is there.
    """

    _warned = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        client = scope.get("client")
        if scope["type"] != "http" or not client or client[0] not in self.trusted_hosts:
            if scope["type"] == "http" and not self._warned:
                self._warn(scope)
            await self.app(scope, receive, send)
            return
        given = dict(scope["headers"]).get(HEADER, b"").decode("latin-1").rstrip("/")
        if PREFIX.fullmatch(given):
            scope["root_path"] = given
        await super().__call__(scope, receive, send)

    def _warn(self, scope: Any) -> None:
        if PROXY.isdisjoint(dict(scope["headers"])):
            return
        self._warned = True
        log.warning(
            "proxy_not_trusted",
            proxy=(scope.get("client") or ("unknown",))[0],
            cause="all who come through it share one address's limits, and an open planner is open to them",
            cure="name it in FORWARDED_ALLOW_IPS, and set HOPE_TOKENS_REQUIRED=true",
        )


class Prefixed:
    """ASGI layer that takes the prefix off a path, where the proxy left it on, and puts it before each ``Location``.

    What answers finds it in ``scope["state"]["prefix"]`` and makes its links with it.

    Args:
        app: what answers.
        root_path: the prefix of requests that bring none; empty: there is none.
    """

    def __init__(self, app: Asgi | ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    def __call__(self, scope: Scope, receive: Any, send: Any) -> Awaitable[None]:
        root: str = scope.get("root_path") or self._root_path
        if not root:
            return self._app(scope, receive, send)
        scope["root_path"] = ""  # inside, paths are what they are without a proxy
        scope.setdefault("state", {})["prefix"] = root
        if scope["path"] == root or scope["path"].startswith(f"{root}/"):
            scope["path"] = scope["path"][len(root) :] or "/"

        def moved(name: bytes, value: bytes) -> bytes:
            return root.encode() + value if name == b"location" and value.startswith(b"/") else value

        async def send_under_it(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [(name, moved(name, value)) for name, value in message["headers"]]}
            await send(message)

        return self._app(scope, receive, send_under_it)

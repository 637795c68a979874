"""HEAD wherever GET is: the same answer without its body, as load balancers and uptime monitors ask."""

from __future__ import annotations

from typing import Any

from planner_api.web.asgi import Asgi, Scope


class Heads:
    """ASGI layer that has a HEAD request answered as a GET, and sends no body."""

    def __init__(self, app: Asgi) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Any) -> None:
            await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

        asked = {**scope, "method": "GET"}  # a copy: the server looks at its own when it sends
        try:
            await self._app(asked, receive, send_head)
        finally:
            scope["route"] = asked.get("route")

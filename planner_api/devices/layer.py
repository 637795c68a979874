"""Reports, in pure ASGI: behind the guard, in front of the routes. Most of what one costs would be finding its route.

Whatever is not plain (a query, a header that came twice, a body in another coding, in pieces or too large, an id that
is none) is left to the route, which keeps the same report by the same reading, or says what is wrong with it.
"""

from __future__ import annotations

from typing import Any

from hope_schema import DeviceReport
from hope_schema.base import is_label
from planner_api.devices.reports import Reports
from planner_api.devices.routes import report, router
from planner_api.web.asgi import Asgi, Scope, sends_plain_json, take_body
from planner_api.web.body import SMALL_BYTES
from planner_api.web.route import route_to
from planner_api.web.shape import parse

BEFORE, BEHIND = "/devices/", "/report"
_ROUTE = route_to(router, report)
"""The route in whose place it answers."""


class ReportLayer:
    """ASGI layer that answers ``PUT /devices/{device_id}/report``."""

    def __init__(self, app: Asgi, reports: Reports) -> None:
        self._app = app
        self._reports = reports

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Keep a report, or pass the request on. Raises PlannerError for one that is not valid, or not stored."""
        headers = scope["state"]["headers"]
        if scope["method"] == "PUT" and headers and not scope["query_string"] and sends_plain_json(headers):
            path, body = scope["path"], None
            device_id = path[len(BEFORE) : -len(BEHIND)]
            if path.startswith(BEFORE) and path.endswith(BEHIND) and is_label(device_id):
                body, receive = await take_body(receive)
            if body is not None and len(body) <= SMALL_BYTES:
                scope["route"] = _ROUTE
                await self._reports.add(device_id, parse(body, DeviceReport))
                await send({"type": "http.response.start", "status": 204, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)

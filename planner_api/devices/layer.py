"""Reports, in pure ASGI: behind the guard, in front of the routes. Most of what one costs would be finding its route.

Whatever is not plain (a query, a header that came twice, a body in another coding, in pieces or too large, an id that
is none) is left to the route, which keeps the same report by the same reading, or says what is wrong with it.
"""

from __future__ import annotations

import re
from typing import Any

from hope_schema import DeviceReport
from planner_api.devices.reports import Reports
from planner_api.devices.routes import report, router
from planner_api.http.asgi import Asgi, Scope, sends_plain_json, take_body
from planner_api.http.body import SMALL_BYTES
from planner_api.http.route import route_to
from planner_api.http.shape import parse

REPORT = re.compile(r"/devices/([A-Za-z0-9][A-Za-z0-9._:+@/\-]{0,127})/report")
_ROUTE = route_to(router, report)
"""The route in whose place it answers."""


class ReportLayer:
    """ASGI layer that answers ``PUT /devices/{device_id}/report``.

    Args:
        app: the routes.
        reports: takes them in.
    """

    def __init__(self, app: Asgi, reports: Reports) -> None:
        self._app = app
        self._reports = reports

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Keep a report, or pass the request on. Raises PlannerError for one that is not valid, or not stored."""
        headers = scope["state"]["headers"]
        if scope["method"] == "PUT" and headers and not scope["query_string"] and sends_plain_json(headers):
            named = REPORT.fullmatch(scope["path"])
            body = None
            if named is not None:
                body, receive = await take_body(receive)
            if named is not None and body is not None and len(body) <= SMALL_BYTES:
                scope["route"] = _ROUTE
                await self._reports.add(named[1], parse(body, DeviceReport))
                await send({"type": "http.response.start", "status": 204, "headers": []})
                await send({"type": "http.response.body", "body": b""})
                return
        await self._app(scope, receive, send)

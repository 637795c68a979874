"""A route that answers what it was asked, and the answer that is a message of the contract."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from planner_api.errors import InvalidError


class StrictRoute(APIRoute):
    """A route that refuses query parameters it does not know: one that is ignored answers another question."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        handle = super().get_route_handler()
        known = [parameter.alias for parameter in self.dependant.query_params]

        async def strictly(request: Request) -> Response:
            if request.scope["query_string"] and (unknown := sorted(set(request.query_params) - set(known))):
                detail = f"there is no parameter '{unknown[0][:100]}' here; known are: {', '.join(known) or 'none'}"
                raise InvalidError("unknown-parameter", detail)
            return await handle(request)

        return strictly


def reply(message: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with a message of the contract."""
    return Response(message.model_dump_json(), status_code=status, media_type="application/json", headers=headers)

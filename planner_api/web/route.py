"""Routes: nothing but what was asked; the answer that is a message of the contract."""

from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette import requests, routing
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from planner_api.db.engine import Database
from planner_api.errors import InvalidError
from planner_api.web.asgi import outside, values_of
from planner_api.web.body import read_message
from planner_api.web.principal import Actor, Principal, device_of, principal_of


class Request(requests.Request):
    """A request as routes see it: who asks, and whom."""

    def header(self, name: bytes) -> str:
        """A header, several in one list (RFC 9110, section 5.3); empty without one."""
        return b", ".join(values_of(self.scope, name)).decode("latin-1")

    @property
    def planner(self) -> Any:
        return self.app.state.planner

    @property
    def database(self) -> Database:
        found: Database = self.planner.database
        return found

    @property
    def caller(self) -> Principal:
        return principal_of(self.scope)

    @property
    def actor(self) -> Actor:
        """The same, as the audit log says it."""
        return Actor(self.caller.name, self.scope.get("state", {}).get("audit_id"))

    @property
    def device(self) -> str | None:
        return device_of(self.scope)


class StrictRoute(APIRoute):
    """A route that refuses query parameters that it does not know, and what is said twice of one that it does: what is
    ignored answers another question.

    It returns a message of the contract, which its signature names, nothing, or a response of its own.

    FastAPI reads the signature, makes what validates each parameter, and documents it. A request's parameters are given
    to these here, and its body to ``read_message``; dependencies and their exit stacks, which FastAPI looks after at
    every request, no route of ours uses, and they cost more time than all the rest of a cached plan. None is included
    in another router, so each matches as Starlette's do. Errors are the outermost layer's.
    """

    matches = routing.Route.matches
    handle = routing.Route.handle

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.operation_id = self.name  # ``list_devices``
        self.app = self._asking()

    def _asking(self) -> ASGIApp:
        """Return what answers a request.

        Raises:
            TypeError: a signature with more than parameters of path and query, one message, and the request.
        """
        asked, endpoint = self.dependant, self.endpoint
        if asked.dependencies or asked.body_params[1:] or asked.header_params or asked.cookie_params:
            raise TypeError(f"{endpoint.__qualname__} may have parameters of path and query, a message and the request")
        in_path = [(field.name, field.alias, field.validate) for field in asked.path_params]
        in_query = [
            (field.name, field.alias, field.validate, field.field_info.is_required(), field.default)
            for field in asked.query_params
        ]
        known = {alias for _, alias, *_ in in_query}
        status = self.status_code or 200
        given = asked.request_param_name
        body = asked.body_params[0] if asked.body_params else None
        kind: Any = body and body.field_info.annotation
        empty = b"" if body is None or body.field_info.is_required() else b"{}"

        async def ask(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive, send)
            values: dict[str, Any] = {} if given is None else {given: request}
            wrong: list[Any] = []
            for name, alias, validate in in_path:
                values[name], errors = validate(outside(request.path_params[alias]), loc=("path", alias))
                wrong += errors
            query: Mapping[str, str] = {}
            if scope["query_string"]:
                query = request.query_params
                if len(query) < len(request.query_params.multi_items()):
                    raise InvalidError("repeated-parameter", "a parameter stands twice in the query; send each once")
            if unknown := sorted(set(query) - known):
                names = ", ".join(alias for _, alias, *_ in in_query)
                detail = f"there is no parameter '{unknown[0][:100]}' here; known are: {names or 'none'}"
                raise InvalidError("unknown-parameter", detail)
            for name, alias, validate, required, default in in_query:
                if alias in query:
                    values[name], errors = validate(query[alias], loc=("query", alias))
                    wrong += errors
                elif required:
                    wrong.append({"loc": ("query", alias), "msg": "Field required"})
                else:
                    values[name] = default
            if wrong:
                raise RequestValidationError(wrong)
            if body is not None:
                values[body.name] = await read_message(request, kind, empty=empty)
            found: Response | BaseModel | None = await endpoint(**values)
            await (found if isinstance(found, Response) else reply(found, status))(scope, receive, send)

        return ask


def reply(message: BaseModel | None, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with a message of the contract, or with nothing; nobody on the way keeps it, for it may hold a secret."""
    headers = {"Cache-Control": "no-store", **(headers or {})}
    if message is None:
        return Response(status_code=status, headers=headers)
    return Response(message.model_dump_json(), status_code=status, media_type="application/json", headers=headers)

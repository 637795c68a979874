"""How a route says in OpenAPI what it reads and what it answers.

Bodies are validated from their raw bytes (``body.read_message``): the contract's models are strict, so FastAPI's own
parsing into Python objects would refuse the lists that JSON has in the place of tuples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from planner_api.web.asgi import GIVEN_ID, MAX_REQUEST_ID
from planner_api.web.error import MEDIA_TYPE

REF = "#/components/schemas/{model}"

ALWAYS = (400, 401, 403, 422, 429, 500, 503)
"""What any route may answer: no request of HTTP, no or a wrong token, not allowed, a parameter that it does not know,
too many requests, our fault, the database is away."""
WITH_BODY = (408, 413, 415)
"""What any route that reads a body may answer too."""

REQUEST_ID = {
    "name": "X-Request-ID",
    "in": "header",
    "required": False,
    "description": "Kept in the logs and sent back, in errors too; one is made up when it is missing.",
    "schema": {"type": "string", "maxLength": MAX_REQUEST_ID, "pattern": f"^{GIVEN_ID.pattern.decode()}$"},
}


def describe(
    *,
    replies: Mapping[int, tuple[str, type[BaseModel] | None]],
    errors: Iterable[int] = (),
    request: type[BaseModel] | None = None,
    headers: Mapping[int, Mapping[str, str]] | None = None,
    parameters: Iterable[Mapping[str, Any]] = (),
    optional_body: bool = False,
    media: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Return the ``openapi_extra`` of a route.

    Args:
        replies: status to (description, model); no model: no body.
        errors: statuses of this route's own errors, beside those of every route.
        request: model of the JSON body.
        headers: status to the answer's headers, each with its description.
        parameters: further OpenAPI parameters.
        optional_body: the body may be left out.
        media: status to the media type of an answer that is text, not a model.
    """
    responses: dict[str, Any] = {}
    for status, (description, model) in replies.items():
        reply: dict[str, Any] = {"description": description}
        if model is not None:
            reply["content"] = {"application/json": {"schema": {"$ref": REF.format(model=model.__name__)}}}
        elif media is not None and status in media:
            reply["content"] = {media[status]: {"schema": {"type": "string"}}}
        given = (headers or {}).get(status, {})
        reply["headers"] = {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in {"X-Request-ID": "The id of this request.", **given}.items()
        }
        responses[str(status)] = reply
    statuses = {*ALWAYS, *errors, *(WITH_BODY if request is not None else ())}
    for status in sorted(statuses):
        responses[str(status)] = {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": REF.format(model="ProblemDetails")}}},
        }
    extra: dict[str, Any] = {"responses": responses, "parameters": [REQUEST_ID, *parameters]}
    if request is not None:
        extra["requestBody"] = {
            "required": not optional_body,
            "content": {"application/json": {"schema": {"$ref": REF.format(model=request.__name__)}}},
        }
    return extra

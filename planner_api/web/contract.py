"""What a route adds to what FastAPI says of it in OpenAPI: headers, its own errors, a body that it reads by itself.

Bodies are validated from their raw bytes (``body.read_message``): the contract's models are strict, so FastAPI's own
parsing into Python objects would refuse the lists that JSON has in the place of tuples.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from planner_api.web.problems import MEDIA_TYPE

REF = "#/components/schemas/{model}"


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route: errors of its own, beside those that any route may answer."""
    schema = {"$ref": REF.format(model="ProblemDetails")}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in statuses
    }


def answers(status: int, description: str, headers: Mapping[str, str]) -> dict[int | str, dict[str, Any]]:
    """The ``responses`` of a route: an answer with headers, each with its description."""
    described = {name: {"description": text, "schema": {"type": "string"}} for name, text in headers.items()}
    return {status: {"description": description, "headers": described}}


def takes(model: type[BaseModel] | None, *headers: Mapping[str, Any]) -> dict[str, list[Any] | dict[str, Any]]:
    """The ``openapi_extra`` of a route: the headers that it reads, and the model of a body that it reads by itself."""
    found: dict[str, list[Any] | dict[str, Any]] = {"parameters": list(headers)}
    if model is not None:
        schema = {"$ref": REF.format(model=model.__name__)}
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return found


def header(name: str, description: str, longest: int, **schema: Any) -> dict[str, Any]:
    """A header that a request may have, of so many characters at most."""
    schema = {"type": "string", "maxLength": longest, **schema}
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}

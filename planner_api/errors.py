"""Errors as RFC 9457 puts them: one exception, one way to say it over HTTP, one list of what can go wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from hope_schema import ProblemDetails
from planner_api.http.asgi import Scope

MEDIA_TYPE = "application/problem+json"
MAX_CAUSES = 20
"""Most single causes one problem lists."""


class ApiError(Exception):
    """A request that is refused, with its cause and its cure in ``detail``.

    Args:
        status: HTTP status, 400 to 599.
        kind: stable short name; the problem's type is ``urn:hope:<kind>``.
        detail: one sentence for the caller; it never holds internals.
        headers: sent with the answer, e.g. ``Retry-After``.
        causes: single causes, e.g. one per invalid field.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        causes: Sequence[str] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers = dict(headers or {})
        self.causes = tuple(causes[:MAX_CAUSES])

    def body(self, *, instance: str | None, request_id: str | None) -> bytes:
        """Return the problem as JSON."""
        problem = ProblemDetails(
            type=f"urn:hope:{self.kind}",
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=self.detail,
            instance=instance,
            request_id=request_id,
            errors=self.causes,
        )
        return problem.model_dump_json().encode()


def model_unknown(model_hash: str) -> ApiError:
    """Return the error for a model whose graph was never sent."""
    return ApiError(404, "model-unknown", f"no model {model_hash}: send its graph with POST /models first")


def profile_unknown(soc: str, frequency: str) -> ApiError:
    """Return the error for a SoC and frequency that nobody has measured."""
    return ApiError(
        404,
        "profile-unknown",
        f"nothing is known of SoC '{soc}' at frequency '{frequency}': measure it and upload with POST /profiles first",
    )


def plan_unknown(plan_id: str) -> ApiError:
    """Return the error for a plan id that nobody asked for yet."""
    return ApiError(404, "plan-unknown", f"no plan {plan_id}: ask for it by its key with POST /plans")


def unavailable(detail: str, *, retry_after_s: int = 2) -> ApiError:
    """Return the error for a dependency that is away for the moment."""
    return ApiError(503, "unavailable", detail, headers={"Retry-After": str(retry_after_s)})


def invalid(error: ValidationError) -> ApiError:
    """Turn pydantic's error into a problem: 400 for what is no JSON, 422 for JSON that says something impossible.

    The rejected input itself is left out: it may be long, and it may be what someone wants reflected.
    """
    found = error.errors(include_url=False, include_input=False, include_context=False)
    causes = []
    for item in found[:MAX_CAUSES]:
        where = ".".join(str(part)[:100] for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")[:500]
        causes.append(f"{where}: {message}" if where else message)
    if found[0]["type"] == "json_invalid":
        return ApiError(400, "malformed-json", f"the body is not JSON: {causes[0]}")
    return ApiError(422, "invalid", f"the body is not a valid {error.title}: {causes[0]}", causes=causes)


def headers_of(error: ApiError, body: bytes, request_id: str | None) -> list[tuple[bytes, bytes]]:
    """Return the raw ASGI headers of the answer."""
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    if request_id is not None:
        headers.append((b"x-request-id", request_id.encode()))
    headers.extend((name.lower().encode(), value.encode()) for name, value in error.headers.items())
    return headers


async def send_problem(send: Any, scope: Scope, error: ApiError) -> None:
    """Answer a raw ASGI request with the error."""
    request_id = scope.get("state", {}).get("request_id")
    body = error.body(instance=scope.get("path"), request_id=request_id)
    await send({"type": "http.response.start", "status": error.status, "headers": headers_of(error, body, request_id)})
    await send({"type": "http.response.body", "body": body})

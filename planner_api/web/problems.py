"""Errors as RFC 9457 puts them: here, and only here, an error gets its HTTP status."""

import math
from http import HTTPStatus
from typing import Any

import structlog
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from hope_schema import ProblemDetails
from planner_api import errors
from planner_api.errors import PlannerError
from planner_api.web.asgi import Headers, Scope, address
from planner_api.web.errors import HttpError

log = structlog.get_logger(__name__)

MEDIA_TYPE = "application/problem+json"
STATUS: dict[type[PlannerError], int] = {
    errors.InvalidError: 422,
    errors.UnauthorisedError: 401,
    errors.ForbiddenError: 403,
    errors.NotFoundError: 404,
    errors.ConflictError: 409,
    errors.TooOftenError: 429,
    errors.UnavailableError: 503,
}


def status_of(error: Exception) -> int:
    match error:
        case HttpError():
            return error.status
        case PlannerError():
            return next(STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
        case RequestValidationError():
            return 422
        case HTTPException():
            return error.status_code
    return 500


def as_http(error: Exception, path: str = "", method: str = "") -> HttpError:
    """Return any error as HTTP says it; one that nobody foresaw is logged, and its answer tells nothing of it."""
    status = status_of(error)
    match error:
        case HttpError():
            return error
        case PlannerError():
            headers = {}
            if isinstance(error, errors.UnauthorisedError):
                headers["WWW-Authenticate"] = "Bearer"
            if error.retry_after_s is not None:
                headers["Retry-After"] = str(math.ceil(error.retry_after_s))
            if isinstance(error, errors.DatabaseAwayError):
                log.warning("database_unavailable", path=path, error=error.reason)
            return HttpError(status, error.kind, error.detail, headers=headers, causes=error.causes)
        case RequestValidationError():
            causes = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
            return HttpError(status, "invalid", f"a parameter is not valid: {causes[0]}", causes=causes)
        case HTTPException(status_code=404):
            return HttpError(404, "not-found", f"there is nothing at {path}")
        case HTTPException(status_code=405):
            detail = f"{path} does not know the method {method}"
            return HttpError(405, "method-not-allowed", detail, headers=error.headers)
        case HTTPException():
            return HttpError(status, "http-error", str(error.detail), headers=error.headers)
    log.error("request_failed", path=path, error=f"{type(error).__name__}: {error}"[:300])
    return HttpError(status, "fault", "the planner failed on this request; its log knows the request id")


def answer(error: HttpError, path: str | None, request_id: str | None) -> tuple[Headers, bytes]:
    problem = ProblemDetails(
        type=f"urn:hope:{error.kind}",
        title=HTTPStatus(error.status).phrase,
        status=error.status,
        detail=error.detail,
        instance=path,
        request_id=request_id,
        errors=error.causes,
    )
    body = problem.model_dump_json().encode()
    headers = [(b"content-type", MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    return headers, body


async def send_problem(send: Any, scope: Scope, error: Exception) -> None:
    path = address(scope["path"])
    found = as_http(error, path, scope["method"])
    headers, body = answer(found, path, scope["state"]["request_id"])
    await send({"type": "http.response.start", "status": found.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

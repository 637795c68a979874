"""Reading forms and what is looked for, which anybody may have filled in."""

from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import Query
from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from hope_schema.base import PRINTABLE
from planner_api.errors import InvalidError
from planner_api.web.body import receive
from planner_api.web.errors import HttpError

MAX_BYTES = 8 * 1024
MAX_FIELDS = 32
Form = TypeVar("Form", bound=BaseModel)

Words = Annotated[str, Query(max_length=256, pattern=PRINTABLE)]
"""What somebody looks for."""


def valid(kind: type[Form], /, **given: Any) -> Form:
    """What a form says, as a message of the contract. Raises InvalidError, which names what to look at again."""
    try:
        return kind.model_validate(given, strict=False)
    except ValidationError as error:
        where = sorted({str(item["loc"][0]) for item in error.errors()})
        raise InvalidError("invalid", f"This cannot be; look again at: {', '.join(where)}.") from None


def scaled(text: str, factor: float) -> float | str | None:
    """A number as people write it, times a factor; None for nothing, the text itself for what is no number."""
    try:
        return float(text.strip().replace(",", ".")) * factor if text.strip() else None
    except ValueError:
        return text


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; the first of each name counts.

    Raises:
        HttpError: 413 for a form that is too large, 415 for what is no form, 400 for one that cannot be read.
    """
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HttpError(415, "unsupported-media-type", "Send the form as application/x-www-form-urlencoded.")
    raw = b"".join([piece async for piece in receive(request, MAX_BYTES)])
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=bool(raw),
            errors="strict",
            max_num_fields=MAX_FIELDS,
        )
    except ValueError:
        raise HttpError(400, "malformed-form", "The form cannot be read.") from None
    return dict(reversed(pairs))

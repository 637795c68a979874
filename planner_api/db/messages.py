"""From rows to the messages of the contract that hold their columns."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import structlog
from pydantic import BaseModel, ValidationError

Message = TypeVar("Message", bound=BaseModel)
Row = TypeVar("Row")

log = structlog.get_logger(__name__)


def message_of(kind: type[Message], row: Any, **more: Any) -> Message:
    """Return a message whose fields are the row's columns of the same names, but for those that are given.

    Raises ValidationError for a value that the contract does not allow.
    """
    columns = {name: getattr(row, name) for name in kind.model_fields if name not in more}
    return kind(**columns, **more)


def messages_of(rows: Iterable[Row], make: Callable[[Row], Message]) -> tuple[Message, ...]:
    """Return the messages of a list's rows; a row that the contract does not allow is left out and said in the log."""
    made = []
    for row in rows:
        try:
            made.append(make(row))
        except ValidationError as error:
            log.error("row_unreadable", contract=error.title, causes=str(error.errors(include_url=False))[:1000])
    return tuple(made)

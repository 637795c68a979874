"""From a row to the message of the contract that holds its columns."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel

Message = TypeVar("Message", bound=BaseModel)


def message_of(kind: type[Message], row: Any, **more: Any) -> Message:
    """Return a message whose fields are the row's columns of the same names, but for those that are given.

    Raises:
        AttributeError: a field that is neither a column of the row nor given.
    """
    columns = {name: getattr(row, name) for name in kind.model_fields if name not in more}
    return kind(**columns, **more)

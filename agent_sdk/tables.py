"""Files that people write: their tables are checked, and a sentence says what is wrong in which."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator


class Table(BaseModel):
    """Keys and values; nothing unknown, nothing changed later."""

    model_config = ConfigDict(frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _knows_its_keys(cls, data: Any) -> Any:
        unknown = [key for key in data if key not in cls.model_fields] if isinstance(data, dict) else []
        if unknown:
            raise ValueError(f"unknown key '{str(unknown[0])[:80]}'; known: {', '.join(cls.model_fields)}")
        return data


def faults(error: ValidationError) -> Iterator[str]:
    """What is wrong, each with where it stands: ``streams.0: unknown key …``."""
    for one in error.errors(include_url=False, include_input=False):
        where = ".".join(map(str, one["loc"]))
        said = one["msg"].removeprefix("Value error, ")
        yield f"{where}: {said}" if where else said

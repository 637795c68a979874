"""Column types that mean the same on SQLite and on PostgreSQL."""

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, DateTime, Dialect, Integer
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.types import TypeDecorator

JsonDocument = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
"""A JSON value; None is SQL NULL."""

BigKey = BigInteger().with_variant(Integer, "sqlite")
"""A 64-bit surrogate key; SQLite numbers only columns that are called INTEGER by themselves."""


def utc_now() -> datetime:
    return datetime.now(UTC)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC timestamp. SQLite keeps no time zone, so it is stripped going in and put back coming out.

    Raises ValueError for a naive datetime: it would mean another moment on every machine.
    """

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a timestamp must carry its time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)

"""What all tables share: names of constraints, and the column types of Python types."""

from datetime import datetime
from typing import Any

from sqlalchemy import Float, LargeBinary, MetaData
from sqlalchemy.orm import DeclarativeBase

from planner_api.db.types import JsonDocument, UtcDateTime

NAMING_CONVENTION = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Base of all tables; names every constraint, so that a migration can drop it on either database."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)
    type_annotation_map = {
        datetime: UtcDateTime(),
        dict[str, Any]: JsonDocument,
        list[Any]: JsonDocument,
        bytes: LargeBinary(),
        float: Float(53),
    }

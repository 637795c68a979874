"""What a browser sends to the console, without one; and what is written down of it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from planner_api.console.address import HOME
from planner_api.db.tables import AuditRow, ConsoleSessionRow
from tests.planner.samples import Api

HERE = "http://testserver"


def sign_in(api: Api, token: str, **fields: str) -> Any:
    """Send the form of the sign-in page."""
    return api.client.post(f"{HOME}/login", data={"token": token, **fields}, headers={"origin": HERE})


def send(api: Api, path: str, **fields: str) -> Any:
    """Send a form as the page that holds it would."""
    return api.client.post(HOME + path, data=fields, headers={"origin": HERE})


def rows(api: Api) -> list[ConsoleSessionRow]:
    """The sessions that are stored."""

    async def read() -> list[ConsoleSessionRow]:
        async with api.app.planner.database.read() as session:
            return list(await session.scalars(select(ConsoleSessionRow)))

    found: list[ConsoleSessionRow] = api.await_(read)
    return found


def audited(api: Api, *columns: Any) -> list[Any]:
    """What was written down, oldest first: the actions, or these columns."""

    async def read() -> list[Any]:
        async with api.app.planner.database.read() as session:
            found = await session.execute(select(*columns or (AuditRow.action,)).order_by(AuditRow.id))
            return [row[0] if len(row) == 1 else tuple(row) for row in found]

    found: list[Any] = api.await_(read)
    return found

"""The audit log tells whether it is what was written, to whoever kept one line of it."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import event, text

from hope_schema import AuditPage, AuditProof, NewClaim
from planner_api.db.engine import Database
from planner_api.devices import audit
from tests.planner.samples import Api

TRIGGERS = {
    "sqlite": ["DROP TRIGGER audit_append_only", "DROP TRIGGER audit_is_kept"],
    "postgresql": ["DROP TRIGGER audit_append_only ON audit", "DROP TRIGGER audit_is_kept ON audit"],
}
"""What the database's owner does first, who may do all of this."""


def act(api: Api, admin: dict[str, str], times: int) -> None:
    """Do things that are written down."""
    for number in range(times):
        headers = {**admin, "x-request-id": "same"}
        assert api.post("/claims", NewClaim(label=f"claim {number}"), **headers).status_code == 201


def proof(api: Api, admin: dict[str, str], head: str | None = None) -> Any:
    """What the planner says of its log."""
    return api.client.get("/audit/proof", params={"head": head} if head else {}, headers=admin)


def tamper(api: Api, *statements: str) -> None:
    """Change the table as its owner."""

    async def change() -> None:
        database = api.app.planner.database
        async with database.write() as session:
            for statement in (*TRIGGERS[database.dialect], *statements):
                await session.execute(text(statement))

    api.await_(change)


pytestmark = pytest.mark.planner(tokens_required=True)


def test_what_is_written_stands(api: Api, admin: dict[str, str]) -> None:
    """An untouched log is intact, leads on from every head that it had, and names requests by an id of its own."""
    heads = []
    for _ in range(3):
        act(api, admin, 2)
        heads.append(AuditProof.model_validate_json(proof(api, admin).content).head)
    assert all(proof(api, admin, head).status_code == 200 for head in heads)
    assert proof(api, admin, "0" * 64).status_code == 409
    entries = AuditPage.model_validate_json(api.client.get("/audit", headers=admin).content).entries
    own = [str(entry.request_id).partition("/") for entry in entries if entry.action == "claim.create"]
    assert {caller for _, _, caller in own} == {"same"}
    assert len({ours for ours, _, _ in own}) == 6


@pytest.mark.parametrize(
    ("statement", "cause"),
    [
        ("UPDATE audit SET actor = 'nobody' WHERE id = (SELECT max(id) - 2 FROM audit)", "was changed"),
        ("DELETE FROM audit WHERE id = (SELECT max(id) - 2 FROM audit)", "removed, or put in"),
        ("DELETE FROM audit WHERE id = (SELECT max(id) FROM audit)", "newest entries were removed"),
        ("DELETE FROM audit", "newest entries were removed"),
    ],
)
def test_what_its_owner_changes_is_seen(api: Api, admin: dict[str, str], statement: str, cause: str) -> None:
    """Changed, removed or emptied, the log says so by itself."""
    act(api, admin, 5)
    tamper(api, statement)
    answer = proof(api, admin)
    assert answer.status_code == 409
    assert cause in answer.json()["detail"]


def test_a_head_elsewhere_sees_what_was_written_anew(api: Api, admin: dict[str, str]) -> None:
    """Who empties the log with its head leaves one that is intact, but does not lead to the head that was kept."""
    act(api, admin, 3)
    head = AuditProof.model_validate_json(proof(api, admin).content).head
    tamper(api, "DELETE FROM audit", "DELETE FROM audit_head")
    act(api, admin, 1)
    assert proof(api, admin).status_code == 200
    assert proof(api, admin, head).status_code == 409


def test_what_happens_meanwhile_is_no_tampering(
    api: Api, admin: dict[str, str], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many entries are written, and old ones forgotten, between two looks into the log, it stays intact."""
    monkeypatch.setattr(audit, "VERIFIED_AT_ONCE", 4)
    act(api, admin, 20)
    tamper(api)
    left = 24

    async def write() -> None:
        database = Database(database_url)
        async with database.write() as session:
            oldest = text("DELETE FROM audit WHERE id IN (SELECT id FROM audit ORDER BY id LIMIT 3)")
            await session.execute(oldest)
            await audit.record(session, audit.PLANNER, "test", "test")
        await database.close()

    def meanwhile(*_: object) -> None:
        nonlocal left
        if (left := left - 4) > 0:
            with ThreadPoolExecutor() as elsewhere:
                elsewhere.submit(asyncio.run, write()).result()

    reader = api.app.planner.database.reader.sync_engine
    event.listen(reader, "before_cursor_execute", meanwhile)
    try:
        answer = proof(api, admin)
    finally:
        event.remove(reader, "before_cursor_execute", meanwhile)
    assert answer.status_code == 200, answer.text

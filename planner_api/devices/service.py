"""The rules of tokens and of the devices that hold them: issue, enrolment, proof, description and revocation."""

import secrets
from collections.abc import Awaitable, Callable, Container, Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncSession

from hope_schema import (
    Claim,
    ClaimPage,
    Device,
    DeviceDescription,
    DevicePage,
    Enrolment,
    EnrolmentReceipt,
    IssuedToken,
    Proof,
    ProofRequest,
    Token,
    TokenPage,
)
from hope_schema.proof import hash_token
from hope_schema.proof import prove as proof_of
from hope_schema.tokens import TokenScope
from planner_api.db.engine import Database, WriteSession, found
from planner_api.db.paging import message_of, messages_of, page
from planner_api.db.tables import ClaimRow, DeviceRow, GroupRow, TokenRow
from planner_api.devices import repository
from planner_api.devices.audit import record
from planner_api.devices.groups import find_devices
from planner_api.errors import ConflictError, UnauthorisedError, unknown
from planner_api.jobs.news import publish
from planner_api.web.principal import Actor
from planner_api.web.tokens import new_token

BAD_CLAIM = "this claim token is unknown, spent, expired or revoked; ask your admin for another"


async def check_claim(database: Database, claim_hash: str) -> None:
    """Look at a claim token before anything that comes with it is read. Raises UnauthorisedError unless it is valid."""
    async with database.read() as session:
        if await session.scalar(select(ClaimRow.id).where(repository.valid_claim(claim_hash))) is None:
            raise UnauthorisedError(BAD_CLAIM)


async def enrol(database: Database, claim_hash: str, request: Enrolment) -> EnrolmentReceipt:
    """Exchange a claim token, known by its hash, for a device's own.

    Raises:
        UnauthorisedError: a claim that is unknown, spent, expired or revoked.
        ConflictError: a device that holds a valid token already (revoke it first: otherwise any claim could take over
            any device).
    """
    token = new_token("device")
    values = {"soc": request.soc, "frequency": request.frequency, "versions": dict(request.versions)}
    async with database.write() as session:
        spent = update(ClaimRow).where(repository.valid_claim(claim_hash)).values(uses_left=ClaimRow.uses_left - 1)
        claim_id = (await session.execute(spent.returning(ClaimRow.id))).scalar_one_or_none()
        if claim_id is None:
            raise UnauthorisedError(BAD_CLAIM)
        if not await repository.enrol(session, request.device_id, {"claim_id": claim_id, **values}):
            raise ConflictError(
                "device-enrolled",
                f"device '{request.device_id}' is enrolled already; an admin can revoke it: "
                f"`hope-planner devices revoke {request.device_id}`",
            )
        session.add(TokenRow(token_hash=hash_token(token), scope="device", device_id=request.device_id))
    return EnrolmentReceipt(device_id=request.device_id, token=token)


async def prove(database: Database, addresses: Container[str], request: ProofRequest) -> Proof:
    """Prove to a device that this planner, at one of its ``addresses``, knows the device's token.

    Raises:
        NotFoundError: another address: who passes a device's question on from there is to get nothing for it.
    """
    if request.address not in addresses:
        raise unknown("address", request.address)
    async with database.read() as session:
        hashes = await repository.valid_tokens(session, request.device_id)
    # A device without a token gets a key that nobody has; the salt changes the answers of those with one, too.
    key, salt = next(iter(hashes), secrets.token_hex(32)), secrets.token_hex(32)
    return Proof(salt=salt, proof=proof_of(key, request, salt))


async def issue(
    database: Database,
    kind: Literal["admin", "viewer", "claim"],
    actor: Actor,
    *,
    label: str = "",
    uses: int | None = None,
    lifetime_s: float | None = None,
) -> IssuedToken:
    """Make a token of a person's, or a claim that so many devices may enrol with; its secret is not kept."""
    token = new_token(kind)
    expires_at = None if lifetime_s is None else datetime.now(UTC) + timedelta(seconds=lifetime_s)
    made = "claim" if kind == "claim" else "token"
    row: ClaimRow | TokenRow = TokenRow(token_hash=hash_token(token), scope=kind)
    if kind == "claim":
        row = ClaimRow(claim_hash=hash_token(token), uses_left=uses)
    row.label, row.expires_at = label, expires_at
    async with database.write() as session:
        session.add(row)
        await session.flush()
        about = {"label": label or None, "expires": expires_at, "uses": uses, "scope": kind}
        await record(session, actor, f"{made}.create", f"{made}:{row.id}", **about)
    return IssuedToken(id=row.id, token=token)


async def list_tokens(database: Database, scope: TokenScope | None, *, before: int | None, limit: int) -> TokenPage:
    """Tokens of a scope (None: those of people), newest first."""
    scopes: Sequence[TokenScope] = ("admin", "viewer") if scope is None else (scope,)
    query = select(TokenRow).where(TokenRow.scope.in_(scopes))
    async with database.read() as session:
        rows = await page(session, query, TokenRow.id, before, limit, newest_first=True)
    tokens = messages_of(rows, lambda row: message_of(Token, row, state=_state(row.revoked_at, row.expires_at)))
    return TokenPage(tokens=tokens, next=rows.next)


async def list_claims(database: Database, *, before: int | None, limit: int) -> ClaimPage:
    async with database.read() as session:
        rows = await page(session, select(ClaimRow), ClaimRow.id, before, limit, newest_first=True)
    claims = messages_of(
        rows, lambda row: message_of(Claim, row, state=_state(row.revoked_at, row.expires_at, spent=row.uses_left == 0))
    )
    return ClaimPage(claims=claims, next=rows.next)


def _state(
    revoked_at: datetime | None, expires_at: datetime | None, *, spent: bool = False
) -> Literal["valid", "spent", "expired", "revoked"]:
    if revoked_at is not None:
        return "revoked"
    if expires_at is not None and expires_at < datetime.now(UTC):
        return "expired"
    return "spent" if spent else "valid"


async def revoke_token(database: Database, number: int, actor: Actor) -> None:
    """Revoke one token, on every replica. Raises NotFoundError where there is none to revoke."""
    async with database.write() as session:
        if not await _revoke(session, await repository.revoke(session, token_id=number)):
            raise unknown("token", number)
        await record(session, actor, "token.revoke", f"token:{number}")


async def revoke_claim(database: Database, number: int, actor: Actor) -> None:
    """Revoke a claim; devices that enrolled with it keep their tokens. Raises NotFoundError where there is none."""
    async with database.write() as session:
        valid = update(ClaimRow).where(ClaimRow.id == number, ClaimRow.revoked_at.is_(None))
        if not await session.touches(valid.values(revoked_at=datetime.now(UTC)).returning(ClaimRow.id)):
            raise unknown("claim", number)
        await record(session, actor, "claim.revoke", f"claim:{number}")


Forget = Callable[[WriteSession, str], Awaitable[object]]
"""Takes back whatever a device (its id) said, with a transaction; returns what is true where there was anything."""


async def revoke_device(database: Database, device_id: str, actor: Actor, forget: Forget) -> None:
    """Revoke a device and all its tokens, on every replica, and have what it said forgotten.

    Raises:
        NotFoundError: there is neither such a device nor anything that it said.
    """
    async with database.write() as session:
        known = await session.get(DeviceRow, device_id) is not None
        if known:
            await _revoke(session, await repository.revoke(session, device_id=device_id))
        if not await forget(session, device_id) and not known:
            raise unknown("device", device_id)
        if known:  # last, as everywhere: who writes an entry keeps all others from writing theirs
            await record(session, actor, "device.revoke", device_id)


async def _revoke(session: WriteSession, hashes: Sequence[str]) -> bool:
    for token_hash in hashes:
        await publish(session, repository.REVOKED, token_hash)
    return bool(hashes)


async def describe(database: Database, device_id: str, sent: DeviceDescription, actor: Actor) -> Device:
    """Say what people call a device, and the labels that groups choose by. Raises NotFoundError when it is unknown."""
    async with database.write() as session:
        described = update(DeviceRow).where(DeviceRow.id == device_id).values(name=sent.name, labels=dict(sent.labels))
        if not await session.touches(described.returning(DeviceRow.id)):
            raise unknown("device", device_id)
        await publish(session, repository.DESCRIBED, device_id)
        await record(session, actor, "device.describe", device_id, name=sent.name, labels=sent.labels)
    return await get_device(database, device_id)


async def get_device(database: Database, device_id: str) -> Device:
    async with database.read() as session:
        row = await found(session, DeviceRow, device_id, "device")
        described = await _describing(session, [row])
    return described(row)


async def list_devices(
    database: Database, *, soc: str | None = None, group: str | None = None, after: str | None = None, limit: int = 100
) -> DevicePage:
    """Devices in the order of their ids. Raises NotFoundError for an unknown group."""
    async with database.read() as session:
        chosen = None if group is None else await found(session, GroupRow, group, "group")
        rows = await find_devices(session, soc=soc, group=chosen, after=after, limit=limit)
        described = await _describing(session, rows.devices)
    return DevicePage(devices=messages_of(rows.devices, described), next=rows.after)


async def _describing(session: AsyncSession, rows: Sequence[DeviceRow]) -> Callable[[DeviceRow], Device]:
    """What makes of each of these rows the device as people see it."""
    ids = [row.id for row in rows]
    drifts, unused = await repository.drifts(session, ids), await repository.unused(session, ids)
    missed = await repository.missed(session, ids)

    def described(row: DeviceRow) -> Device:
        return message_of(
            Device,
            row,
            device_id=row.id,
            labels=row.labels or {},
            versions=row.versions or {},
            revoked=row.revoked_at is not None,
            drift=drifts.get(row.id),
            missed=missed.get(row.id),
            unused=unused.get(row.id),
        )

    return described

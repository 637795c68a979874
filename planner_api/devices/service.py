"""The rules of enrolment, proof, description and revocation."""

from __future__ import annotations

import secrets
import statistics
from collections.abc import Container, Sequence
from typing import TYPE_CHECKING

from sqlalchemy.ext.asyncio import AsyncSession

from hope_schema import Device, DeviceDescription, DevicePage, Enrolment, EnrolmentReceipt, Proof, ProofRequest
from hope_schema.proof import prove as proof_of
from planner_api.audit.service import Actor, record
from planner_api.db.engine import Database, WriteSession
from planner_api.db.tables import DeviceRow
from planner_api.db.told import told
from planner_api.devices import repository
from planner_api.devices.finding import Wanted, find
from planner_api.devices.tokens import hash_token, new_token
from planner_api.errors import ConflictError, NotFoundError, UnauthorisedError
from planner_api.groups import service as groups

if TYPE_CHECKING:
    from planner_api.solving.events import Events

BAD_CLAIM = "this claim token is unknown, spent, expired or revoked; ask your operator for another"


async def check_claim(database: Database, claim_hash: str) -> None:
    """Look at a claim token before anything that comes with it is read. Raises UnauthorisedError unless it is valid."""
    async with database.read() as session:
        if not await repository.is_valid_claim(session, claim_hash):
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
        claim_id = await repository.use_claim(session, claim_hash)
        if claim_id is None:
            raise UnauthorisedError(BAD_CLAIM)
        if not await repository.enrol(session, request.device_id, {"claim_id": claim_id, **values}):
            raise ConflictError(
                "device-enrolled",
                f"device '{request.device_id}' is enrolled already; an operator can revoke it: "
                f"`hope-planner tokens revoke --device {request.device_id}`",
            )
        await repository.add_token(session, hash_token(token), "device", device_id=request.device_id)
    return EnrolmentReceipt(device_id=request.device_id, token=token)


async def prove(database: Database, addresses: Container[str], request: ProofRequest) -> Proof:
    """Prove to a device that this planner, at one of its ``addresses``, knows the device's token.

    Raises:
        NotFoundError: another address: who passes a device's question on from there is to get nothing for it.
    """
    if request.address not in addresses:
        raise NotFoundError("address-unknown", f"this planner has no address '{request.address}'; see HOPE_ADDRESSES")
    async with database.read() as session:
        hashes = await repository.valid_tokens(session, request.device_id)
    # A device without a token gets a key that nobody has; the salt changes the answers of those with one, too.
    key, salt = next(iter(hashes), secrets.token_hex(32)), secrets.token_hex(32)
    return Proof(salt=salt, proof=proof_of(key, request, salt))


async def revoke(
    session: WriteSession, events: Events, *, token_id: int | None = None, device_id: str | None = None
) -> bool:
    """Revoke one token, or all of a device and the device itself, on every replica; False where nothing was valid."""
    hashes = await repository.revoke(session, token_id=token_id, device_id=device_id)
    for token_hash in hashes:
        await events.revoke(session, token_hash)
    return bool(hashes)


async def revoke_device(database: Database, events: Events, device_id: str, actor: Actor) -> None:
    """Revoke a device and all its tokens, everywhere, at once.

    Raises:
        NotFoundError: an unknown device.
    """
    async with database.write() as session:
        if await session.get(DeviceRow, device_id) is None:
            raise _unknown(device_id)
        await revoke(session, events, device_id=device_id)
        await record(session, actor, "device.revoke", device_id)


async def describe(database: Database, device_id: str, sent: DeviceDescription, actor: Actor) -> Device:
    """Say what people call a device, and the labels that groups choose by. Raises NotFoundError when it is unknown."""
    async with database.write() as session:
        if not await repository.describe(session, device_id, {"name": sent.name, "labels": dict(sent.labels)}):
            raise _unknown(device_id)
        shown = ", ".join(f"{key}={value}" for key, value in sent.labels.items())
        await record(session, actor, "device.describe", device_id, name=sent.name, labels=shown)
    return await get_device(database, device_id)


async def get_device(database: Database, device_id: str) -> Device:
    """One device. Raises NotFoundError when it is unknown."""
    async with database.read() as session:
        row = await session.get(DeviceRow, device_id)
        if row is None:
            raise _unknown(device_id)
        [device] = await _described(session, [row])
    return device


async def list_devices(
    database: Database, *, soc: str | None = None, group: str | None = None, after: str | None = None, limit: int = 100
) -> DevicePage:
    """Devices in the order of their ids. Raises NotFoundError for an unknown group."""
    async with database.read() as session:
        chosen = None if group is None else await groups.find(session, group)
        page = await find(session, Wanted(soc, group=chosen), after=after, limit=limit)
        devices = await _described(session, page.devices)
    return DevicePage(devices=tuple(devices), next=page.after)


async def _described(session: AsyncSession, rows: Sequence[DeviceRow]) -> list[Device]:
    ids = [row.id for row in rows]
    drifts, unused = await repository.drifts(session, ids), await repository.unused(session, ids)
    return [
        told(
            Device,
            row,
            device_id=row.id,
            labels=row.labels or {},
            versions=row.versions or {},
            revoked=row.revoked_at is not None,
            drift=statistics.median(drifts[row.id]) if row.id in drifts else None,
            unused=unused.get(row.id),
        )
        for row in rows
    ]


def _unknown(device_id: str) -> NotFoundError:
    return NotFoundError(
        "device-unknown", f"no device '{device_id}': `hope-planner devices list` lists those there are"
    )

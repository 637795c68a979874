"""Figures by agreement: who had a part in which profile, quotas, SoCs that count, votes kept by rank

Revision ID: 0003
Revises: 0002
"""

import hashlib
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import sqlalchemy as sa
import zstandard
from alembic import op
from numpy.typing import NDArray

from planner_api.db import types

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

FAMILIES = ("latencies", "shares", "transfers", "overheads")
MAX_US = 3.6e9
"""What the contract allows of one figure from this revision on: an hour."""


def upgrade() -> None:
    """Upgrade schema."""
    op.create_table(
        "contributions",
        sa.Column("profile_id", types.BigKey, nullable=False),
        sa.Column("device_id", sa.String(length=128), nullable=False),
        sa.Column("uploads", sa.BigInteger(), nullable=False),
        sa.Column("unused", sa.Text(), nullable=True),
        sa.Column("since", types.UtcDateTime(timezone=True), nullable=False),
        sa.Column("last_at", types.UtcDateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["profile_id"], ["profiles.id"], name=op.f("fk_contributions_profile_id_profiles"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("profile_id", "device_id", name=op.f("pk_contributions")),
    )
    with op.batch_alter_table("contributions", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_contributions_device_id"), ["device_id"], unique=False)
    op.create_table(
        "usage",
        sa.Column("owner", sa.String(length=160), nullable=False),
        sa.Column("quota", sa.String(length=32), nullable=False),
        sa.Column("day", sa.String(length=10), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "quota", "day", name=op.f("pk_usage")),
    )
    op.add_column("socs", sa.Column("established_at", types.UtcDateTime(timezone=True), nullable=True))
    op.add_column("plans", sa.Column("asked_by", sa.String(length=160), nullable=True))
    # What the fleet counted until now it goes on counting.
    op.execute("UPDATE socs SET established_at = created_at")
    op.execute(
        "INSERT INTO contributions (profile_id, device_id, uploads, since, last_at) "
        "SELECT profiles.id, inbox.device_id, count(*), min(inbox.received_at), max(inbox.folded_at) "
        "FROM inbox JOIN socs ON socs.name = inbox.soc "
        "JOIN profiles ON profiles.soc_id = socs.id AND profiles.frequency = inbox.frequency "
        "WHERE inbox.folded_at IS NOT NULL AND inbox.error IS NULL GROUP BY profiles.id, inbox.device_id"
    )
    _rewrite_statistics(_by_rank)
    _rewrite_bodies()


def downgrade() -> None:
    """Downgrade schema."""
    _rewrite_statistics(_by_age)
    op.drop_column("plans", "asked_by")
    op.drop_column("socs", "established_at")
    op.drop_table("usage")
    with op.batch_alter_table("contributions", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_contributions_device_id"))
    op.drop_table("contributions")


Arrays = dict[str, NDArray[Any]]


def _rewrite_statistics(change: Callable[[Arrays, dict[int, int]], Arrays]) -> None:
    """Change the arrays of every profile's statistics; one profile at a time, for they are large."""
    connection = op.get_bind()
    profiles = sa.table("profiles", sa.column("id"), sa.column("statistics", sa.LargeBinary()))
    for (profile_id,) in connection.execute(sa.select(profiles.c.id)).all():
        where = profiles.c.id == profile_id
        dumped = connection.execute(sa.select(profiles.c.statistics).where(where)).scalar()
        if dumped is None:
            continue
        with np.load(io.BytesIO(zstandard.ZstdDecompressor().decompress(dumped)), allow_pickle=False) as arrays:
            changed: dict[str, Any] = change(dict(arrays), _wider_hashes(connection, profile_id))
        out = io.BytesIO()
        np.savez(out, **changed)
        dumped = zstandard.ZstdCompressor(level=3).compress(out.getvalue())
        connection.execute(sa.update(profiles).where(where).values(statistics=dumped))


def _wider_hashes(connection: sa.Connection, profile_id: int) -> dict[int, int]:
    """The 32-bit hashes of the devices that are still known by name, with their 64-bit ones."""
    query = sa.text("SELECT device_id FROM contributions WHERE profile_id = :profile")
    names = connection.execute(query, {"profile": profile_id}).scalars().all()
    return {_hash(name.encode(), 4): _hash(name.encode(), 8) for name in names}


def _hash(data: bytes, size: int) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=size).digest(), "little") or 1


def _by_rank(arrays: Arrays, wider: dict[int, int]) -> Arrays:
    """Name devices by 64 bits (nameless ones keep their 32), order votes by their ranks, drop absurd ones."""
    head = json.loads(arrays["head"].tobytes())
    for listed in ("processors", "channels"):
        head[listed] = {
            definition: [wider.get(device, device) for device in devices]
            for definition, devices in head[listed].items()
        }
    for family in FAMILIES:
        keys = [repr(_tuples(key)).encode() for key in head[family]]
        name = np.array([int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") for key in keys])
        name = name.astype(np.uint64)
        old, us = arrays[f"{family}.device"], arrays[f"{family}.us"]
        found, where = np.unique(old, return_inverse=True)
        names = np.array([wider.get(device, device) for device in found.tolist()], dtype=np.uint64)
        device = names[where].reshape(old.shape)
        absurd = np.isfinite(us) & (us > MAX_US)
        us[absurd] = np.nan
        device[np.isnan(us)] = 0
        last = np.uint64(2**64 - 1)
        order = np.argsort(np.where(device == 0, last, _ranks(name[:, None], device)), axis=1, kind="stable")
        settled = arrays[f"{family}.settled"]
        settled[settled[:, 1] > MAX_US] = 0.0
        arrays[f"{family}.name"] = name
        for field, values in (("device", device), ("us", us), ("spread", arrays[f"{family}.spread"])):
            arrays[f"{family}.{field}"] = np.take_along_axis(values, order, axis=1)
    arrays["head"] = np.frombuffer(json.dumps(head, separators=(",", ":")).encode(), dtype=np.uint8)
    return arrays


def _by_age(arrays: Arrays, _wider: dict[int, int]) -> Arrays:
    """Name devices by 32 bits again, with the votes at the end."""
    narrow = 2**32 - 1
    head = json.loads(arrays["head"].tobytes())
    for listed in ("processors", "channels"):
        head[listed] = {name: [device & narrow or 1 for device in devices] for name, devices in head[listed].items()}
    for family in FAMILIES:
        del arrays[f"{family}.name"]
        device = arrays[f"{family}.device"]
        order = np.argsort(device != 0, axis=1, kind="stable")
        arrays[f"{family}.device"] = (device & np.uint64(narrow)).astype(np.uint32)
        for field in ("device", "us", "spread"):
            arrays[f"{family}.{field}"] = np.take_along_axis(arrays[f"{family}.{field}"], order, axis=1)
    arrays["head"] = np.frombuffer(json.dumps(head, separators=(",", ":")).encode(), dtype=np.uint8)
    return arrays


def _ranks(names: NDArray[np.uint64], devices: NDArray[np.uint64]) -> NDArray[np.uint64]:
    with np.errstate(over="ignore"):
        mixed = names ^ devices
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _tuples(key: list[Any]) -> tuple[Any, ...]:
    return tuple(tuple(part) if isinstance(part, list) else part for part in key)


def _rewrite_bodies() -> None:
    """Take figures that the contract no longer allows out of the published profiles."""
    connection = op.get_bind()
    versions = sa.table(
        "profile_versions", sa.column("profile_id"), sa.column("version"), sa.column("body_zstd", sa.LargeBinary())
    )
    for profile_id, version in connection.execute(sa.select(versions.c.profile_id, versions.c.version)).all():
        where = (versions.c.profile_id == profile_id, versions.c.version == version)
        found = connection.execute(sa.select(versions.c.body_zstd).where(*where)).scalar_one()
        body = json.loads(zstandard.ZstdDecompressor().decompress(found))
        if _bounded(body):
            text = json.dumps(body, separators=(",", ":")).encode()
            body_zstd = zstandard.ZstdCompressor(level=3).compress(text)
            connection.execute(sa.update(versions).where(*where).values(body_zstd=body_zstd))


def _bounded(body: dict[str, Any]) -> bool:
    """Drop the rows of a profile beyond the bound; return whether there were any."""
    before = sum(len(body[family]["us"]) for family in ("latencies", "transfers"))
    for columns in (body["latencies"], body["transfers"]):
        kept = [us is None or us <= MAX_US for us in columns["us"]]
        for name, values in columns.items():
            columns[name] = [value for value, keep in zip(values, kept, strict=True) if keep]
    overheads = {
        name: {kind: us for kind, us in value.items() if us <= MAX_US}
        if isinstance(value, dict)
        else min(value, MAX_US)
        for name, value in body["overheads"].items()
    }
    changed = overheads != body["overheads"]
    body["overheads"] = overheads
    return changed or before != sum(len(body[family]["us"]) for family in ("latencies", "transfers"))

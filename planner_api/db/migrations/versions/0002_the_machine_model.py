"""Places instead of kinds for transfers, sets of jobs instead of one model: schema version 2

Plans keep their row, with a body to be found anew from the stored graph and profile under the key's new id. Profiles
keep every latency; transfers measured between kinds of processor become transfers between the places they compute in.

Revision ID: 0002
Revises: 0001
"""

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import sqlalchemy as sa
from alembic import op

from hope_schema.hashing import canonical, digest
from planner_api.compression import unzstd, zstd
from planner_api.db import types

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

HOST = "host"
EMPTY = {
    "version": 0, "provisional": True, "etag": None, "body_zstd": None, "body_gzip": None, "profile_version": None,
    "checked_version": None, "makespan_us": None, "lower_bound_us": None, "gap": None, "found_by": None,
    "solve_us": None, "solved_at": None, "status": "failed", "queued_at": None, "lease_owner": None,
    "lease_until": None, "error": "made before the planner spoke schema version 2; asking for it makes it anew",
}  # fmt: skip


def upgrade() -> None:
    """Upgrade schema."""
    with op.batch_alter_table("plans") as plans:
        plans.add_column(sa.Column("jobs", types.JsonDocument, nullable=True))
    _rekey_plans()
    with op.batch_alter_table("plans") as plans:
        plans.alter_column("jobs", existing_type=types.JsonDocument, nullable=False)
        plans.drop_column("transfer_mode")
    _rewrite("profiles", ("id",), "statistics", _statistics)
    _rewrite("profile_versions", ("profile_id", "version"), "body_zstd", _profile)


def downgrade() -> None:
    """Downgrade schema. Profiles start over: what was measured between places is not known between kinds."""
    for table in ("drift_reports", "fanout_plans", "plans", "profile_versions", "profiles"):
        op.execute(sa.text(f"DELETE FROM {table}"))
    with op.batch_alter_table("plans") as plans:
        plans.add_column(sa.Column("transfer_mode", sa.String(length=32), nullable=False))
        plans.drop_column("jobs")


def _rekey_plans() -> None:
    bind = op.get_bind()
    plans = sa.Table("plans", sa.MetaData(), autoload_with=bind)
    for name in ("jobs", "processors"):
        plans.c[name].type = types.JsonDocument
    fanouts, drifts = (sa.Table(name, sa.MetaData(), autoload_with=bind) for name in ("fanout_plans", "drift_reports"))
    for row in bind.execute(sa.select(plans).order_by(plans.c.transfer_mode)).mappings().all():
        key = {
            "jobs": [{"model_hash": row["model_hash"], "release_us": 0.0, "deadline_us": None, "weight": 1.0}],
            "soc": row["soc"], "frequency": row["frequency"], "processors": row["processors"],
            "method": row["method"], "objective": row["objective"],
        }  # fmt: skip
        new = f"p-{digest(key)[:40]}"
        if bind.execute(sa.select(plans.c.id).where(plans.c.id == new)).first() is None:
            bind.execute(sa.insert(plans).values(**{**row, **EMPTY, "id": new, "jobs": key["jobs"]}))
        waiting = sa.select(fanouts.c.fanout_id).where(fanouts.c.plan_id == new)
        moved = (fanouts.c.plan_id == row["id"]) & fanouts.c.fanout_id.not_in(waiting)
        bind.execute(sa.update(fanouts).where(moved).values(plan_id=new))
        for table in (fanouts, drifts):
            bind.execute(sa.delete(table).where(table.c.plan_id == row["id"]))
        bind.execute(sa.delete(plans).where(plans.c.id == row["id"]))


def _rewrite(name: str, keys: tuple[str, ...], column: str, change: Callable[[bytes], bytes]) -> None:
    bind = op.get_bind()
    table = sa.Table(name, sa.MetaData(), autoload_with=bind)
    for key in bind.execute(sa.select(*(table.c[part] for part in keys))).all():
        where = sa.and_(*(table.c[part] == value for part, value in zip(keys, key, strict=True)))
        data = bind.execute(sa.select(table.c[column]).where(where)).scalar_one()
        if data is not None:
            bind.execute(sa.update(table).where(where).values({column: change(bytes(data))}))


def _place(runtime: str) -> str:
    return f"{HOST}/{runtime}"


def _place_of_kind(kind: str) -> str:
    """A kind reads ``runtime-version/threads x core class``."""
    return HOST if kind == HOST else _place(kind.split("/", 1)[0].rsplit("-", 1)[0])


def _profile(data: bytes) -> bytes:
    body = json.loads(unzstd(data))
    for processor in body["processors"]:
        processor.setdefault("place", _place(processor["runtime"]))
    rows, seen, keep = body["transfers"], set(), []
    for at, tensor in enumerate(rows["tensor"]):
        rows["source"][at] = _place_of_kind(rows["source"][at])
        rows["target"][at] = _place_of_kind(rows["target"][at])
        key = (tensor["dtype"], tuple(tensor["shape"]), rows["source"][at], rows["target"][at])
        if key not in seen:
            seen.add(key)
            keep.append(at)
    body["transfers"] = {name: [column[at] for at in keep] for name, column in rows.items()}
    return zstd(json.dumps(body, separators=(",", ":")).encode())


def _statistics(data: bytes) -> bytes:
    with np.load(io.BytesIO(unzstd(data)), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    head = json.loads(arrays.pop("head").tobytes())
    processors = {}
    for definition, devices in head["processors"].items():
        processor = json.loads(definition)
        processors[canonical({**processor, "place": _place(processor["runtime"])}).decode()] = devices
    moved: dict[tuple[Any, ...], int] = {}
    for row, (dtype, shape, source, target) in enumerate(head["transfers"]):
        moved.setdefault((dtype, tuple(shape), _place_of_kind(source), _place_of_kind(target)), row)
    keep = np.array(list(moved.values()), dtype=np.int64)
    for name in [name for name in arrays if name.startswith("transfers.")]:
        arrays[name] = arrays[name][keep]
    for name in [name for name in arrays if name.startswith("latencies.")]:
        arrays[name.replace("latencies", "shares")] = arrays[name][:0]
    head |= {
        "processors": processors, "channels": {}, "transfers": list(moved), "shares": [],
        "overheads": [("launch_us", *key) if key else () for key in head["overheads"]],
    }  # fmt: skip
    arrays["head"] = np.frombuffer(json.dumps(head, separators=(",", ":")).encode(), dtype=np.uint8)
    out = io.BytesIO()
    np.savez(out, **arrays)
    return zstd(out.getvalue())

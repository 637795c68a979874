"""A fleet as rows: devices with a token each, whose secret follows from their number, and plans for every SoC.

The rows are put there in bulk, of the size that requests make them; what is then asked of them goes over HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import text

from benchmarks.service.stage import Stage
from planner_api.db.tables import PlanRow, PlanVersionRow

SECRET = "hope_d_{device_id}"
"""The token of a device; real ones are random."""
DEVICES = "SELECT :prefix || i AS id, 'soc-' || (i % :socs) AS soc, i FROM generate_series(1, :devices) AS i"


async def run(stage: Stage, statement: str, **values: object) -> None:
    """Do one statement in a transaction of its own."""
    async with stage.database.write() as session:
        await session.execute(text(statement), values)


async def enrol(stage: Stage, prefix: str, devices: int, socs: int) -> None:
    """Insert enrolled devices ``{prefix}1`` to ``{prefix}{devices}``, dealt out to the SoCs, and their tokens."""
    fleet = {"prefix": prefix, "devices": devices, "socs": socs}
    await run(
        stage,
        "INSERT INTO devices (id, soc, frequency, versions, clock_skew_s, enrolled_at, last_seen_at) "
        """SELECT id, soc, 'max', '{"hope-inference": "0.1.0", "onnxruntime": "1.23.0"}', 0.1, now(), now() """
        f"FROM ({DEVICES}) AS fleet",
        **fleet,
    )
    secret = SECRET.format(device_id="' || id")
    await run(
        stage,
        "INSERT INTO tokens (token_hash, scope, device_id, label, created_at) "
        f"SELECT encode(sha256(convert_to('{secret}, 'UTF8')), 'hex'), 'device', id, '', now() "
        f"FROM ({DEVICES}) AS fleet",
        **fleet,
    )


async def copy_plan(stage: Stage, plan_id: str, prefix: str, socs: int, **changed: str) -> None:
    """Give SoC ``i`` of each the plan ``{prefix}{i}``: a copy of one, with its version; ``changed`` are SQL values."""
    soc = {"id": ":prefix || i", "soc": "'soc-' || i", **changed}
    await _copy(stage, PlanRow.__tablename__, list(PlanRow.__table__.columns.keys()), "id", plan_id, prefix, socs, soc)
    kept = list(PlanVersionRow.__table__.columns.keys())
    mine = {"plan_id": ":prefix || i"}
    await _copy(stage, PlanVersionRow.__tablename__, kept, "plan_id", plan_id, prefix, socs, mine)


async def _copy(
    stage: Stage, table: str, names: list[str], key: str, plan_id: str, prefix: str, socs: int, new: Mapping[str, str]
) -> None:
    wanted = ", ".join(new.get(name, f"{table}.{name}") for name in names)
    await run(
        stage,
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {wanted} FROM {table}, generate_series(0, :socs - 1) AS i "
        f"WHERE {table}.{key} = :plan_id",
        prefix=prefix,
        socs=socs,
        plan_id=plan_id,
    )

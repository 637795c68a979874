"""A fleet as rows: devices with a token each, whose secret follows from their number, and plans for every SoC.

The rows are put there in bulk, of the size that requests make them; what is then asked of them goes over HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy import NullPool, create_engine, text

from benchmarks.service.stage import Stage
from planner_api.db.engine import parse_url
from planner_api.db.tables import PlanJobRow, PlanRestsOnRow, PlanRow, PlanVersionRow, ProfileRow, ProfileVersionRow

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


async def copy_plan(
    stage: Stage, plan_id: str, prefix: str, socs: int, *, versions: int = 1, served: int | None = None
) -> None:
    """Give SoC ``i`` of a fleet the plan ``{prefix}{i}``: a copy of one, in so many versions, the newest one served."""
    new = {
        "id": ":prefix || i", "soc": "'soc-' || i", "version": str(versions), "status": "'done'",
        "served_version": str(served) if served else "NULL",
    }  # fmt: skip
    names = PlanRow.__table__.columns.keys()
    given = {"prefix": prefix, "socs": socs, "plan_id": plan_id}
    await run(
        stage,
        f"INSERT INTO plans ({', '.join(names)}) SELECT {', '.join(new.get(name, f'plans.{name}') for name in names)} "
        "FROM plans, generate_series(0, :socs - 1) AS i WHERE plans.id = :plan_id",
        **given,
    )
    for table in (PlanJobRow, PlanRestsOnRow):
        names = table.__table__.columns.keys()
        new = {"plan_id": ":prefix || i", "soc": "'soc-' || i"}
        await run(
            stage,
            f"INSERT INTO {table.__tablename__} ({', '.join(names)}) "
            f"SELECT {', '.join(new.get(name, f'known.{name}') for name in names)} "
            f"FROM {table.__tablename__} AS known, generate_series(0, :socs - 1) AS i WHERE known.plan_id = :plan_id",
            **given,
        )
    names = PlanVersionRow.__table__.columns.keys()
    new = {"plan_id": ":prefix || i", "version": "v"}
    newest = "(SELECT * FROM plan_versions WHERE plan_id = :plan_id ORDER BY version DESC LIMIT 1) AS newest"
    await run(
        stage,
        f"INSERT INTO plan_versions ({', '.join(names)}) "
        f"SELECT {', '.join(new.get(name, f'newest.{name}') for name in names)} "
        f"FROM {newest}, generate_series(0, :socs - 1) AS i, generate_series(1, {versions}) AS v",
        **given,
    )


async def copy_profile(stage: Stage, soc: str, socs: int) -> None:
    """Give the SoCs of a fleet the figures of one, all of them established."""
    await run(
        stage,
        "INSERT INTO socs (name, created_at, established_at) "
        "SELECT 'soc-' || i, now(), now() FROM generate_series(0, :socs - 1) AS i",
        socs=socs,
    )
    theirs = "FROM {table}, socs WHERE socs.name LIKE 'soc-%' AND {table}.{key} = (SELECT profiles.id FROM profiles "
    theirs += "JOIN socs AS one ON one.id = profiles.soc_id WHERE one.name = :soc)"
    names = [column.name for column in ProfileRow.__table__.columns if column.name != "id"]
    wanted = ", ".join("socs.id" if name == "soc_id" else f"profiles.{name}" for name in names)
    of_profiles = theirs.format(table="profiles", key="id")
    await run(stage, f"INSERT INTO profiles ({', '.join(names)}) SELECT {wanted} {of_profiles}", soc=soc)
    names = ProfileVersionRow.__table__.columns.keys()
    mine = "(SELECT id FROM profiles WHERE soc_id = socs.id)"
    wanted = ", ".join(mine if name == "profile_id" else f"profile_versions.{name}" for name in names)
    of_versions = theirs.format(table="profile_versions", key="profile_id")
    await run(stage, f"INSERT INTO profile_versions ({', '.join(names)}) SELECT {wanted} {of_versions}", soc=soc)


async def report(stage: Stage, prefix: str, devices: int, socs: int, *, plan: str, version: int) -> None:
    """Insert what every device said last of a plan; ``plan`` is its id in SQL, of a device ``i``."""
    await run(
        stage,
        "INSERT INTO drift_reports (device_id, plan_id, plan_version, predicted_us, measured_us, runs, reported_at) "
        f"SELECT id, {plan}, :version, 100, 90 + 20 * random(), 64, now() FROM ({DEVICES}) AS fleet",
        prefix=prefix,
        devices=devices,
        socs=socs,
        version=version,
    )


@asynccontextmanager
async def locked_out(stage: Stage) -> AsyncIterator[None]:
    """Nobody gets into the database, and who is in it is thrown out."""
    engine = create_engine(
        parse_url(stage.url).set(database="template1"), isolation_level="AUTOCOMMIT", poolclass=NullPool
    )
    name = str(parse_url(stage.url).database)
    with engine.connect() as connection:
        connection.execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false'))
        connection.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"), {"name": name}
        )
    try:
        yield
    finally:
        with engine.connect() as connection:
            connection.execute(text(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true'))
        engine.dispose()

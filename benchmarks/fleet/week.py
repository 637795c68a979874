"""A week of a large fleet in PostgreSQL: how large the tables are, and how long a release takes to begin and to end.

The rows are put there in bulk, by the same tables and of the size that requests make them; the release goes through
the product's own code. A smaller fleet than the one that is asked for is extrapolated in proportion, and said to be.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import insert, text

from benchmarks.service.stage import Stage
from hope_schema import ReleaseRequest
from planner_api.audit.service import Actor
from planner_api.db.tables import ModelRow, PlanRow, PlanVersionRow
from planner_api.plans.cache import PlanCache
from planner_api.releases.service import Releases
from planner_api.releases.splits import Splits

BODY_BYTES = 12_000
"""Of a plan of some hundred steps, compressed."""
VERSIONS = 3
"""Of each plan by the end of the week: the first, the optimised one, and one that follows figures that moved."""
MODELS_PER_DEVICE = 2
UPLOADS_PER_DEVICE = 0.05
"""A new phone uploads when it comes, and few others do."""
AUDITED = 2_000
"""What operators and the planner did."""
TABLES = (
    "devices", "tokens", "drift_reports", "inbox", "plans", "plan_versions", "release_devices", "audit",
)  # fmt: skip
EVERY = "SELECT :prefix || i AS id, 'soc-' || (i % :socs) AS soc, i FROM generate_series(1, :devices) AS i"


@dataclass(frozen=True)
class Week:
    """Sizes of the tables after the week, and what a release to the whole fleet took, in seconds."""

    devices: int
    rows: dict[str, int]
    bytes: dict[str, int]
    begin_s: float
    steer_s: float
    end_s: float


async def live(stage: Stage, devices: int, socs: int, models: int) -> Week:
    """Fill the database with a week of a fleet, then release one model to all of it."""
    hashes = [f"{number:064x}" for number in range(models)]
    await _plans(stage, hashes, socs)
    await _devices(stage, devices, socs)
    releases = Releases(stage.database, Splits(stage.database, PlanCache(0)))
    actor = Actor("operator:bench")
    began = time.monotonic()
    release = await releases.begin(ReleaseRequest(model=hashes[0]), actor)
    begin_s = time.monotonic() - began
    await _report(stage, release.release_id, devices, socs)
    began = time.monotonic()
    await releases.steer()
    steer_s = time.monotonic() - began
    await _run(stage, "ANALYZE")
    sizes = {name: int(str((await stage.rows(f"SELECT pg_total_relation_size('{name}')"))[0][0])) for name in TABLES}
    rows = {name: int(str((await stage.rows(f"SELECT COUNT(*) FROM {name}"))[0][0])) for name in TABLES}
    began = time.monotonic()
    await releases.roll_back(release.release_id, actor)
    return Week(devices, rows, sizes, begin_s, steer_s, time.monotonic() - began)


async def _plans(stage: Stage, hashes: list[str], socs: int) -> None:
    now, noise = datetime.now(UTC), random.Random(1)
    async with stage.database.write() as session:
        connection = await session.connection()
        graphs = [
            {
                "hash": model, "name": f"model-{i}", "ops": 300, "super_ops": 250,
                "graph_zstd": noise.randbytes(20_000), "graph_digest": model, "figures_zstd": noise.randbytes(8_000),
                "rollout": "held", "created_at": now,
            }
            for i, model in enumerate(hashes)
        ]  # fmt: skip
        await connection.execute(insert(ModelRow), graphs)
        for model in hashes:
            plans, versions = [], []
            for number in range(socs):
                body = noise.randbytes(BODY_BYTES)
                plan_id = f"p-{model[-8:]}-{number}"
                found = {
                    "provisional": False, "etag": '"bench"', "body_zstd": body, "profile_version": 1,
                    "makespan_us": 1000.0, "lower_bound_us": 900.0, "gap": 0.11, "found_by": "bench", "solve_us": 1e6,
                }  # fmt: skip
                plans.append(
                    {
                        "id": plan_id, "model_hash": model, "jobs": [{"model_hash": model}], "soc": f"soc-{number}",
                        "frequency": "max", "processors": None, "method": "auto", "objective": "latency",
                        "version": VERSIONS, "served_version": VERSIONS - 1, "body_gzip": body, "checked_version": 1,
                        "status": "done", "created_at": now, "solved_at": now, **found,
                    }
                )  # fmt: skip
                versions += [
                    {"plan_id": plan_id, "version": version + 1, "created_at": now, **found}
                    for version in range(VERSIONS)
                ]
            await connection.execute(insert(PlanRow), plans)
            await connection.execute(insert(PlanVersionRow), versions)


async def _devices(stage: Stage, devices: int, socs: int) -> None:
    """Enrolled devices, what they last reported, the few that uploaded, and what was done to the fleet."""
    fleet = {"prefix": "d-", "socs": socs, "devices": devices}
    await _run(
        stage,
        "INSERT INTO devices (id, soc, frequency, versions, clock_skew_s, enrolled_at, last_seen_at) SELECT id, soc, "
        """'max', '{"hope-inference": "0.1.0", "onnxruntime": "1.23.0", "openvino": "2025.3"}', 0.1, """
        f"now(), now() FROM ({EVERY}) AS fleet",
        **fleet,
    )
    await _run(
        stage,
        "INSERT INTO tokens (token_hash, scope, device_id, label, created_at) SELECT md5(id) || md5(soc || id), "
        f"'device', id, '', now() FROM ({EVERY}) AS fleet",
        **fleet,
    )
    for number in range(MODELS_PER_DEVICE):
        await _run(
            stage,
            "INSERT INTO drift_reports "
            "(device_id, plan_id, plan_version, predicted_us, measured_us, runs, reported_at) "
            f"SELECT id, 'p-' || lpad(to_hex({number}), 8, '0') || '-' || (i % :socs), {VERSIONS - 1}, 1000, "
            f"900 + 200 * random(), 64, now() FROM ({EVERY}) AS fleet",
            **fleet,
        )
    await _run(
        stage,
        "INSERT INTO inbox (device_id, upload_id, soc, frequency, rows, encoding, received_at, folded_at) "
        f"SELECT id, 'u-' || i, soc, 'max', 400, 'zstd', now(), now() FROM ({EVERY}) AS fleet",
        **{**fleet, "devices": round(devices * UPLOADS_PER_DEVICE)},
    )
    await _run(
        stage,
        "INSERT INTO audit (at, actor, action, subject, detail, request_id) SELECT now(), 'operator:1', "
        f"'release.stage', id, '{{}}', md5(id) FROM ({EVERY}) AS fleet",
        **{**fleet, "devices": AUDITED},
    )


async def _report(stage: Stage, release_id: str, devices: int, socs: int) -> None:
    """As many better as worse in every part; every device is remembered until the release ends."""
    each = devices // socs
    await _run(
        stage,
        "UPDATE release_parts SET reported = :each, slower = :tenth, faster = :tenth WHERE release_id = :release",
        each=each,
        tenth=each // 10,
        release=release_id,
    )
    await _run(
        stage,
        f"INSERT INTO release_devices (release_id, device_id) SELECT :release, id FROM ({EVERY}) AS fleet",
        prefix="d-",
        socs=socs,
        devices=devices,
        release=release_id,
    )


async def _run(stage: Stage, statement: str, **values: object) -> None:
    async with stage.database.write() as session:
        await session.execute(text(statement), values)

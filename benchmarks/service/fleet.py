"""A simulated fleet over HTTP: a release is planned ahead, then every device asks once with a token of its own."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import insert

from benchmarks.service.fixtures import compressed, key, ladder, processors, upload
from benchmarks.service.measures import Row, fresh, row
from benchmarks.service.pump import Answer, Pump, request
from benchmarks.service.stage import Stage, call
from hope_schema import ModelGraph
from hope_schema.proof import hash_token
from planner_api.db.tables import DeviceRow, TokenRow
from planner_api.web.tokens import new_token

UPLOADERS = 100
"""One device in so many also uploads what it measured."""
CHUNK = 5000


async def fleet(stage: Stage, devices: int, socs: int, models: int, timeout_s: float = 600.0) -> list[Row]:
    """Every device of the fleet holds a plan after one pass.

    Enrolment itself is not part of the pass: devices and token hashes are inserted beforehand. Everything else goes
    over HTTP: graphs, profiles, the release, the plans by key with each device's own token, and uploads.
    """
    servers = [await stage.server(f"fleet{i}", solve_budget_s=0.05) for i in range(2)]
    # A worker is one interpreter: two of them keep two cores at work, two slots of one do not.
    workers = [stage.worker(f"fleet-worker{i}", solve_budget_s=0.05) for i in range(2)]
    prefix = fresh("fleet")
    names = [f"{prefix}-{i}" for i in range(socs)]
    graphs = [ladder(6, f"m{i}", salt=100_000 + i) for i in range(models)]
    sends = [stage.request("POST", "/models", compressed(graph), content_encoding="zstd") for graph in graphs]
    sends += [
        stage.request(
            "POST", "/profiles", compressed(upload(graphs, soc, device=f"{soc}-0", seed=i)), content_encoding="zstd"
        )
        for i, soc in enumerate(names)
    ]
    tally = await Pump([servers[0].address], iter(sends), connections=4).run()
    assert set(tally.statuses) <= {200, 201, 202}, tally.statuses
    known = f"SELECT COUNT(*) FROM inbox WHERE soc LIKE '{prefix}-%' AND folded_at IS NOT NULL"
    await stage.until(known, socs, 120.0)
    released, releases_s = await _release(stage, servers[0].address, [graph.model_hash for graph in graphs], timeout_s)
    tokens = await _enrol(stage, prefix, devices)
    mine = tuple(processor.id for processor in processors())
    bodies = [[key(graph, soc, mine) for graph in graphs] for soc in names]
    hits: Counter[bool] = Counter()
    holding = bytearray(devices)

    def plans() -> Iterator[bytes]:
        for device, token in enumerate(tokens):
            body = bodies[device % socs][(device // socs) % models]
            yield request("POST", "/plans", body, token=token, headers={"accept-encoding": "zstd"})

    def answered(answer: Answer) -> None:
        if answer.status == 200 and answer.body:
            holding[answer.number] = 1
            hits[b"hope-plan-cache: hit" in answer.head] += 1

    pump = Pump([server.address for server in servers], plans(), connections=32, on_answer=answered)
    passed = await pump.run()
    uploads = await _upload(stage, servers[1].address, graphs, names, tokens, prefix)
    rate = hits[True] / max(1, sum(hits.values()))
    plans_there = await stage.number(f"SELECT COUNT(*) FROM plans WHERE soc LIKE '{prefix}-%' AND version > 0")
    await stage.stop(*servers, *workers)
    ok = sum(holding) == devices and rate >= 0.99 and uploads[0] == uploads[1] and not passed.broken
    return [
        row(
            stage,
            f"simulated fleet over HTTP: {devices} devices, {socs} SoCs, {models} models",
            {"holding_a_plan": sum(holding), "hit_rate": round(rate, 4), "lost": uploads[0] - uploads[1]},
            "every device, >= 0.99, 0",
            ok,
            planned_ahead=released,
            release_s=round(releases_s, 1),
            pass_s=round(passed.elapsed, 1),
            requests_per_s=round(passed.rate),
            p99_ms=round(passed.percentile(0.99) * 1000, 1),
            plans=plans_there,
            uploads=uploads[0],
            statuses={str(status): count for status, count in passed.statuses.items()},
        )
    ]


async def _release(stage: Stage, address: tuple[str, int], hashes: list[str], timeout_s: float) -> tuple[int, float]:
    """Fan every model out; returns how many plans are done, and the seconds that took."""
    started = time.monotonic()
    fanouts = []
    for model_hash in hashes:
        answer = await call(address, stage.request("POST", f"/models/{model_hash}/plans"))
        assert answer.status == 202, answer.body
        fanouts.append(str(json.loads(answer.body)["fanout_id"]))
    done = 0
    for fanout in fanouts:
        found = await _progress(stage, address, fanout)
        while not found["finished"] and time.monotonic() - started < timeout_s:
            await asyncio.sleep(0.5)
            found = await _progress(stage, address, fanout)
        done += found["done"]
    return done, time.monotonic() - started


async def _progress(stage: Stage, address: tuple[str, int], fanout: str) -> dict[str, Any]:
    """How far a planning ahead is."""
    found: dict[str, Any] = json.loads((await call(address, stage.request("GET", f"/fanouts/{fanout}"))).body)
    return found


async def _enrol(stage: Stage, prefix: str, devices: int) -> list[str]:
    """Insert devices with the hashes of their tokens; returns the tokens."""
    tokens = [new_token("device") for _ in range(devices)]
    now = datetime.now(UTC)
    for start in range(0, devices, CHUNK):
        part = range(start, min(devices, start + CHUNK))
        async with stage.database.write() as session:
            connection = await session.connection()
            people = [{"id": f"{prefix}-d{i}", "enrolled_at": now} for i in part]
            await connection.execute(insert(DeviceRow), people)
            secrets = [
                {
                    "token_hash": hash_token(tokens[i]),
                    "scope": "device",
                    "device_id": f"{prefix}-d{i}",
                    "label": "",
                    "created_at": now,
                }
                for i in part
            ]
            await connection.execute(insert(TokenRow), secrets)
    return tokens


async def _upload(
    stage: Stage, address: tuple[str, int], graphs: list[ModelGraph], names: list[str], tokens: list[str], prefix: str
) -> tuple[int, int]:
    """One device in a hundred uploads; returns (accepted, folded)."""
    raws = []
    for device in range(0, len(tokens), UPLOADERS):
        soc = device % len(names)
        message = upload(
            [graphs[(device // len(names)) % len(graphs)]],
            names[soc],
            device=f"{prefix}-d{device}",
            number=1,
            spread=0.01,
            seed=soc,
        )
        headers = {"content-encoding": "zstd"}
        raws.append(request("POST", "/profiles", compressed(message), token=tokens[device], headers=headers))
    where = f"SELECT COUNT(*) FROM inbox WHERE soc LIKE '{prefix}-%' AND folded_at IS NOT NULL AND error IS NULL"
    had = await stage.until(where, 0, 0.0)
    tally = await Pump([address], iter(raws), connections=8).run()
    accepted = tally.statuses[202]
    folded = await stage.until(where, had + accepted, 120.0)
    return max(accepted, len(raws)), folded - had

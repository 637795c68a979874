"""``kill -9`` of worker and API while devices keep asking: what is lost, what is solved twice, how long until back."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Iterator

from benchmarks.service.fixtures import key
from benchmarks.service.measures import DONE, Row, fresh, prepare, row, subsets
from benchmarks.service.pump import Answer
from benchmarks.service.stage import Process, Server, Stage, call, until_answers

BACKLOG = 6
"""Plans that wait at most; the load pauses beyond it, so that there is always work and never too much."""
LOADS = 4
"""Devices that ask at once."""
PROCESSORS = 9


async def kills(stage: Stage, count: int) -> list[Row]:
    """Kill a worker and an API server in turn, ``count`` times altogether, and start each again at once."""
    servers = [await stage.server(f"chaos{i}", solve_budget_s=0.2) for i in range(2)]
    worker = stage.worker("chaos-worker", solve_budget_s=0.2, lease_s=4.0)
    soc = fresh("soc")
    graph = await prepare(stage, servers[0], 40, "chaos", soc, PROCESSORS)
    bodies = (key(graph, soc, chosen) for chosen in subsets(PROCESSORS))
    acknowledged: list[str] = []
    stop = asyncio.Event()
    loads = [asyncio.create_task(_load(stage, servers, bodies, acknowledged, stop)) for _ in range(LOADS)]
    api_s: list[float] = []
    worker_s: list[float] = []
    await stage.until(f"SELECT COUNT(*) FROM plans WHERE {DONE}", 1, 120.0)
    for number in range(count):
        await _until_busy(stage)
        if number % 2:
            api_s.append(await _restart_api(servers[(number // 2) % 2]))
        else:
            worker_s.append(await _restart_worker(stage, worker))
    stop.set()
    await asyncio.gather(*loads)
    where = f"SELECT COUNT(*) FROM plans WHERE soc = '{soc}' AND NOT EXISTS (SELECT 1 FROM jobs WHERE key = plans.id)"
    await stage.until(where, len(acknowledged), 180.0)
    rows = await stage.rows("SELECT id, error, version, solves FROM plans WHERE soc = :soc", soc=soc)
    stored = {str(each[0]): (each[1], int(str(each[2])), int(str(each[3]))) for each in rows}
    lost = 0
    for plan_id in acknowledged:
        error, version, _ = stored.get(plan_id, ("gone", 0, 0))
        lost += error is not None or version < 2
    twice = sum(solves > 1 or version > 2 for _, version, solves in stored.values())
    await stage.stop(*servers, worker)
    slowest = max([*api_s, *worker_s])
    ok = lost == 0 and twice == 0 and slowest <= 5.0
    return [
        row(
            stage,
            f"kill -9 of worker and of API during load, {count} times: lost, solved twice, slowest restart s",
            {"lost": lost, "twice": twice, "restart_s": round(slowest, 2)},
            "0, 0, <= 5",
            ok,
            plans=len(acknowledged),
            api_restart_s=round(sorted(api_s)[len(api_s) // 2], 2) if api_s else None,
            worker_restart_s=round(sorted(worker_s)[len(worker_s) // 2], 2),
        )
    ]


async def _load(
    stage: Stage, servers: list[Server], bodies: Iterator[bytes], acknowledged: list[str], stop: asyncio.Event
) -> None:
    """Devices that ask for one new plan after the other and try again until they get it."""
    for turn in itertools.count():
        if stop.is_set():
            return
        waiting = await stage.number("SELECT COUNT(*) FROM jobs WHERE kind = 'better'")
        body = None if waiting >= BACKLOG else next(bodies, None)
        if body is None:
            await asyncio.sleep(0.05)
            continue
        raw = stage.request("POST", "/plans", body)
        answer: Answer | None = None
        while answer is None or answer.status != 200:
            try:
                address = servers[turn % 2].address
                answer = await asyncio.wait_for(call(address, raw), 5.0)
            except TimeoutError:
                turn += 1
        acknowledged.append(str(json.loads(answer.body)["plan_id"]))


async def _until_busy(stage: Stage) -> None:
    await stage.until("SELECT COUNT(*) FROM jobs WHERE kind = 'better' AND lease_owner IS NOT NULL", 1, 60.0)


async def _restart_api(server: Server) -> float:
    began = time.monotonic()
    server.kill()
    server.start()
    await until_answers(server, server.address)
    return time.monotonic() - began


async def _restart_worker(stage: Stage, worker: Process) -> float:
    """Kill the worker in the middle of a solve; returns the seconds until its successor has taken work."""
    began = time.monotonic()
    old = f"|{worker.pid}|"
    worker.kill()
    worker.start()
    while time.monotonic() - began < 60.0:
        held = await stage.rows("SELECT lease_owner FROM jobs WHERE lease_owner IS NOT NULL")
        if any(each[0] and old not in str(each[0]) for each in held):
            break
        await asyncio.sleep(0.02)
    return time.monotonic() - began

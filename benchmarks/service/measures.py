"""The measures, each a function from a stage to one row of the table."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import zstandard
from pydantic import BaseModel

from agent_sdk.model.model import read_model
from benchmarks.service.fixtures import compressed, key, ladder, processors, upload
from benchmarks.service.pump import Answer, Pump
from benchmarks.service.stage import Server, Stage, call, staged
from hope_schema import Profile
from planner_api.db.engine import Database
from planner_api.jobs.news import build_news
from planner_api.jobs.process import JobProcess
from planner_api.jobs.queue import Queue
from planner_api.plans.solve import BETTER, BetterPlan
from planner_api.profiles import repository as profile_rows
from planner_api.profiles.answering import answer
from planner_api.runtime import WARM
from planner_api.settings import Settings

CONNECTIONS = 16
SLICE_S = 0.25
LEAST = 0.45
"""What cached answers must reach of a bare endpoint: plain routes do, and a fleet asks for a hundredth of it."""
COLD_S = 0.6
"""Within what a device has its first plan."""
MOST_UPLOADS_PER_S = 1500
"""Uploads prepared per second of the ingest burst: more than two cores accept."""
DONE = "plans.error IS NULL AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.key = plans.id)"
"""A plan that nobody is to make any more."""
Row = dict[str, Any]

Parts = Mapping[str, Callable[[Stage, argparse.Namespace], Awaitable[list[Row]]]]
"""What a benchmark measures on a database, by name."""

_ids = itertools.count()


async def measure(url: str, parts: Parts, options: argparse.Namespace, keep: Callable[[list[Row]], None]) -> None:
    """Run parts of a benchmark on one database; the rows of each are kept before the next begins."""
    async with staged(url) as stage:
        for name, run in parts.items():
            print(f"# {stage.dialect}: {name} ...", file=sys.stderr, flush=True)
            began = time.monotonic()
            try:
                found = await run(stage, options)
            except Exception as error:  # noqa: BLE001 - one broken measure must not hide the others
                reason = f"{type(error).__name__}: {error}"[:2000]
                found = [row(stage, name, None, "to be measured", False, error=reason)]
            for each in found:
                print(line(each), flush=True)
            print(f"# {stage.dialect}: {name} took {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            keep(found)


def fresh(prefix: str) -> str:
    """A name that no other measure uses."""
    return f"{prefix}-{next(_ids)}"


def row(stage: Stage, measure: str, value: Any, must: str, ok: bool, **details: Any) -> Row:
    """One line of the table; with what the processes had to say where it does not hold."""
    if not ok:
        details["said"] = stage.said()
    return {"measure": measure, "database": stage.dialect, "value": value, "must": must, "ok": ok, "details": details}


def line(found: Row) -> str:
    """One row as text."""
    value = found["value"]
    shown = ", ".join(f"{key} {each}" for key, each in value.items()) if isinstance(value, dict) else str(value)
    details = ", ".join(f"{key}={each}" for key, each in found["details"].items())
    verdict = "ok  " if found["ok"] else "MISS"
    return f"{verdict} {found['database']:<10} {found['measure']}: {shown} (must be {found['must']})  [{details}]"


async def prepare(stage: Stage, server: Server, ops: int, name: str, soc: str, count: int = 2) -> Any:
    """Register a model and everything a SoC needs for it; returns the graph."""
    graph = ladder(ops, name, salt=next(_ids))
    await _sent(stage, server, "/models", graph)
    await _sent(stage, server, "/profiles", upload([graph], soc, device=fresh("dev"), count=count))
    return graph


async def _sent(stage: Stage, server: Server, path: str, message: BaseModel) -> None:
    answer = await call(server.address, stage.request("POST", path, compressed(message), content_encoding="zstd"))
    if answer.status not in (200, 201, 202):
        raise RuntimeError(f"POST {path} answered {answer.status}: {answer.body[:500]!r}")


async def until_warm(stage: Stage, server: Server) -> None:
    """Wait until a worker has made a plan: its child takes seconds to start, which no measure is of."""
    soc = fresh("soc")
    body = key(await prepare(stage, server, 6, "warm", soc), soc)
    for _ in range(5):  # what nothing was compiled for takes longer than one wait
        if (await call(server.address, stage.request("POST", "/plans", body, prefer="wait=60"))).status == 200:
            return
    raise RuntimeError("no worker made a plan")


async def throughput(address: tuple[str, int], raw: bytes, seconds: float) -> float:
    """Answers per second to one request sent over and over; every answer must be a success."""
    tally = await Pump([address], itertools.repeat(raw), connections=CONNECTIONS, seconds=seconds).run()
    if tally.broken or set(tally.statuses) - {200, 304}:
        raise RuntimeError(f"under load: {dict(tally.statuses)}, {tally.broken} broken connections")
    return tally.rate


async def cached(stage: Stage, seconds: float) -> list[Row]:
    """Cached GET, 304 and POST against a bare endpoint with the same bytes, in alternating rounds; nobody solves."""
    server = await stage.server("cached", worker_in_process=False)
    soc = fresh("soc")
    graph = await prepare(stage, server, 700, "cached", soc)
    body = key(graph, soc)
    worker = stage.worker("cached-worker")
    first = await call(server.address, stage.request("POST", "/plans", body, prefer="wait=60"))
    await stage.until(f"SELECT COUNT(*) FROM plans WHERE soc = '{soc}' AND {DONE}", 1, 120.0)
    await stage.stop(worker)
    plan_id = str(json.loads(first.body)["plan_id"])
    path = f"/plans/{plan_id}"
    plan = await call(server.address, stage.request("GET", path, accept_encoding="zstd"))
    requests = {
        "bare": stage.request("GET", path, accept_encoding="zstd"),
        "get": stage.request("GET", path, accept_encoding="zstd"),
        "not modified": stage.request("GET", path, accept_encoding="zstd", if_none_match=plan.tag),
        "post": stage.request("POST", "/plans", body, accept_encoding="zstd"),
    }
    bare = await stage.bare(plan.body, "zstd")
    # Short slices in turn, each compared with the bare one of its round, and the middle of these: whatever else this
    # machine does meets both alike.
    rates: dict[str, list[float]] = {name: [] for name in requests}
    cpu = dict.fromkeys(requests, 0.0)
    for number in range(max(4, round(seconds / SLICE_S)) + 1):
        for name, raw in requests.items():
            process = bare if name == "bare" else server
            used = process.cpu_s()
            rate = await throughput(process.address, raw, SLICE_S)
            if number:  # the first round warms everything up
                rates[name].append(rate)
                cpu[name] += process.cpu_s() - used
    middle = {name: statistics.median(each) for name, each in rates.items()}
    await stage.stop(server, bare)
    found = []
    for name, measure, least in (
        ("get", "authenticated cached GET / bare Starlette, RPS", LEAST),
        ("not modified", "304 / bare", LEAST),
        ("post", "cached POST /plans by key / bare", LEAST),
    ):
        ratio = statistics.median(ours / yardstick for ours, yardstick in zip(rates[name], rates["bare"], strict=True))
        details = {
            "rps": round(middle[name]),
            "bare_rps": round(middle["bare"]),
            "cpu_us": round(cpu[name] / sum(rates[name]) / SLICE_S * 1e6, 1),
            "bare_cpu_us": round(cpu["bare"] / sum(rates["bare"]) / SLICE_S * 1e6, 1),
            "body_bytes": len(plan.body),
        }
        found.append(row(stage, measure, round(ratio, 2), f">= {least}", ratio >= least, **details))
    return found


async def cold(stage: Stage, keys: int) -> list[Row]:
    """From a device's first question for nasnet_mobile to version 1, while a worker is warm and has nothing to do."""
    server, worker = (
        await stage.server("cold", worker_in_process=False),
        stage.worker("cold-worker", solve_budget_s=0.2),
    )
    await until_warm(stage, server)
    graph = read_model("nasnet_mobile").graph
    socs = [fresh("soc") for _ in range(keys)]
    await _sent(stage, server, "/models", graph)
    for soc in socs:
        await _sent(stage, server, "/profiles", upload([graph], soc, device=fresh("dev"), count=4))
    await stage.until("SELECT COUNT(*) FROM profiles WHERE version > 0", keys, 120.0)
    times = []
    for soc in socs:
        await stage.until(f"SELECT COUNT(*) FROM jobs WHERE '{soc}' <> ''", 0, 60.0)
        began = time.monotonic()
        answer = await call(server.address, stage.request("POST", "/plans", key(graph, soc)))
        times.append(time.monotonic() - began)
        if answer.status != 200:
            raise RuntimeError(f"POST /plans answered {answer.status}: {answer.body[:500]!r}")
    await stage.stop(server, worker)
    p95 = sorted(times)[round(0.95 * (len(times) - 1))]
    details = {"p50": round(statistics.median(times), 3), "least": round(min(times), 3), "keys": keys}
    measure = "cold POST /plans of nasnet_mobile -> version 1, warm worker, p95 s"
    return [row(stage, measure, round(p95, 3), f"<= {COLD_S}", p95 <= COLD_S, **details)]


async def burst(stage: Stage, requests: int, keys: int) -> list[Row]:
    """One key from many clients over two processes is solved once; a hundred keys a hundred times."""
    servers = [await stage.server(f"burst{i}", first_wait_s=60) for i in range(2)]
    worker = stage.worker("burst-worker", solve_budget_s=0.05)
    await until_warm(stage, servers[0])
    found = []
    for wanted in (1, keys):
        soc = fresh("soc")
        count = 2 if wanted == 1 else 8
        graph = await prepare(stage, servers[0], 60, "burst", soc, count)
        chosen = list(itertools.islice(subsets(count), wanted)) if wanted > 1 else [None]
        bodies = [key(graph, soc, each) for each in chosen]
        raws = (stage.request("POST", "/plans", bodies[i % wanted]) for i in range(requests))
        tally = await Pump([server.address for server in servers], raws, connections=200).run()
        where = f"SELECT COUNT(*) FROM plans WHERE soc = '{soc}' AND {DONE}"
        done = await stage.until(where, wanted, 120.0)
        rows = await stage.rows("SELECT solves, version FROM plans WHERE soc = :soc", soc=soc)
        solves = sum(int(str(each[0])) for each in rows)
        versions = sum(int(str(each[1])) for each in rows)  # a first and a better one of each
        ok = solves == wanted == done and versions == 2 * wanted
        ok = ok and dict(tally.statuses) == {200: requests} and not tally.broken
        found.append((solves, versions, tally, ok))
    await stage.stop(*servers, worker)
    (one, one_versions, tally, first_ok), (many, many_versions, _, second_ok) = found
    return [
        row(
            stage,
            f"{requests} identical requests over two processes -> solves (and {keys} keys at once)",
            {"one_key": one, f"{keys}_keys": many},
            f"1 ({keys})",
            first_ok and second_ok,
            versions=[one_versions, many_versions],
            p99_ms=round(tally.percentile(0.99) * 1000),
            statuses={str(status): count for status, count in tally.statuses.items()},
        )
    ]


def subsets(count: int) -> Iterator[tuple[str, ...]]:
    """Every choice of some of so many processors, the small ones first: as many keys of one model."""
    names = [processor.id for processor in processors(count)]
    for size in range(1, count + 1):
        yield from itertools.combinations(names, size)


async def waiters(stage: Stage, count: int) -> list[Row]:
    """From the commit of a better plan, made by another process, to the last of many waiting requests."""
    server = await stage.server("waiters")
    soc = fresh("soc")
    graph = await prepare(stage, server, 60, "waiters", soc)
    body = key(graph, soc)
    worker = stage.worker("waiters-worker", solve_budget_s=60, grace_s=0)
    await until_warm(stage, server)
    first = await call(server.address, stage.request("POST", "/plans", body))
    assert first.status == 200, first.body[:500]
    await stage.stop(worker)  # it hands back the better plan that it is at
    answers: list[Answer] = []
    raw = stage.request("POST", "/plans", body, prefer="wait=60", accept_encoding="zstd")
    pump = Pump([server.address], itertools.repeat(raw, count), connections=count, on_answer=answers.append)
    waiting = asyncio.create_task(pump.run())
    await asyncio.sleep(4.0 + count / 500)
    early, cpu_s = len(answers), server.cpu_s()
    committed = await _commit_better(stage, soc)
    tally = await asyncio.wait_for(waiting, 90)
    cpu_s = server.cpu_s() - cpu_s
    if set(tally.statuses) != {200}:
        raise RuntimeError(f"waiters were answered {dict(tally.statuses)}")
    await stage.stop(server)
    late = sorted(answer.ended - committed for answer in answers)
    p99 = late[int(0.99 * len(late))] * 1000
    better = sum(b'"version":2' in zstandard.ZstdDecompressor().decompress(answer.body)[:300] for answer in answers)
    ok = p99 <= 300 and early == 0 and better == count
    measure = f"commit -> answer of {count} waiters, p99 ms"
    return [
        row(
            stage,
            measure,
            round(p99),
            "<= 300",
            ok,
            p50_ms=round(late[len(late) // 2] * 1000),
            better=better,
            server_cpu_ms=round(cpu_s * 1000),
        )
    ]


async def _commit_better(stage: Stage, soc: str) -> float:
    """Make the SoC's one better plan as a worker would; returns when its commit had happened (monotonic)."""
    database, settings = Database(stage.url), Settings(database_url=stage.url, solve_budget_s=0.2)
    queue, kind = Queue(database, build_news(database), ttl_s=60.0), BetterPlan(database, settings)
    plan_id = str((await stage.rows("SELECT id FROM plans WHERE soc = :soc", soc=soc))[0][0])
    child, lease = JobProcess(memory_bytes=0, warm=WARM), None
    await child.start()
    while lease is None or lease.key != plan_id:  # what other measures left in the queue may come before it
        lease, _ = await queue.next([BETTER])
        assert lease is not None
    task = await kind.load(lease)
    assert task is not None
    made = await child.run(kind.function, task.order, partial(answer, database), 120.0, kind.answers)
    prepared = await kind.prepare(lease, task, made)
    await child.kill()
    async with database.write() as session:
        await kind.store(session, lease, task, prepared)
        assert await queue.finish(session, lease)
    committed = time.monotonic()
    await database.close()
    return committed


async def ingest(stage: Stage, seconds: float) -> list[Row]:
    """Eight writers upload 1100 rows each on the same SoC over two processes without a pause; then all is folded."""
    servers = [await stage.server(f"ingest{i}") for i in range(2)]
    worker = stage.worker("ingest-worker")
    soc, rows = fresh("soc"), 1100
    raws = await asyncio.to_thread(_uploads, stage, soc, rows, round(seconds * MOST_UPLOADS_PER_S))
    tally = await Pump([server.address for server in servers], iter(raws), connections=8, seconds=seconds).run()
    accepted = tally.statuses[202]
    rejected = sum(tally.statuses.values()) - accepted
    rate = accepted * rows / tally.elapsed
    started = time.monotonic()
    where = f"SELECT COUNT(*) FROM inbox WHERE soc = '{soc}' AND folded_at IS NOT NULL AND error IS NULL"
    folded = await stage.until(where, accepted, 180.0)
    folding_s = time.monotonic() - started
    log = "".join(process.said() for process in (*servers, worker))
    await stage.stop(*servers, worker)
    deadlocks = log.lower().count("deadlock")
    ok = rate >= 0.5e6 and deadlocks == 0 and rejected == 0 and tally.broken == 0 and folded == accepted
    return [
        row(
            stage,
            "ingest, 8 writers on the same rows, 1100 rows an upload, two API processes: rows/s (deadlocks)",
            {"rows_per_s": round(rate), "deadlocks": deadlocks},
            ">= 500000 (0)",
            ok,
            uploads=accepted,
            seconds=round(tally.elapsed, 1),
            p99_ms=round(tally.percentile(0.99) * 1000, 1),
            refused=rejected,
            folded=folded,
            folded_after_s=round(folding_s, 1),
            accepted_and_folded_rows_per_s=round(folded * rows / (tally.elapsed + folding_s)),
        )
    ]


def _uploads(stage: Stage, soc: str, rows: int, count: int) -> list[bytes]:
    """Requests of eight devices in turn, every one with an upload id of its own; made before the clock starts."""
    texts = [
        upload([], soc, device=f"{soc}-w{number % 8}", number=number // 8, spread=0.02, rows=rows).model_dump_json()
        for number in range(8 * 40)
    ]
    packer = zstandard.ZstdCompressor(level=3)
    found = []
    for number in range(count):
        text = texts[number % len(texts)]
        head, _, tail = text.rpartition('"upload_id":"')
        renamed = f'{head}"upload_id":"r{number}-{tail}'
        found.append(stage.request("POST", "/profiles", packer.compress(renamed.encode()), content_encoding="zstd"))
    return found


async def liars(stage: Stage) -> list[Row]:
    """One device in five multiplies everything by 3, then by 100: how far is the stored latency off?"""
    server = await stage.server("liars", fold_interval_s=0.2)
    worker = stage.worker("liars-worker")
    worst: dict[str, float] = {}
    for factor in (3.0, 100.0):
        soc = fresh("soc")
        raws = []
        for device in range(50):
            lie = factor if device % 5 == 0 else 1.0
            message = upload([], soc, device=f"{soc}-{device}", spread=0.01, factor=lie, rows=200)
            raws.append(stage.request("POST", "/profiles", compressed(message), content_encoding="zstd"))
        tally = await Pump([server.address], iter(raws), connections=8).run()
        assert tally.statuses == {202: 50}, tally.statuses
        where = f"SELECT COUNT(*) FROM inbox WHERE soc = '{soc}' AND folded_at IS NOT NULL"
        await stage.until(where, 50, 60.0)
        truth = upload([], soc, device="truth", rows=200)
        expected = dict(
            zip(zip(truth.latencies.signature, truth.latencies.kind, strict=True), truth.latencies.us, strict=True)
        )
        async with stage.database.read() as session:
            found = await profile_rows.current(session, soc, "max")
        assert found is not None
        stored = Profile.model_validate_json(
            zstandard.ZstdDecompressor().decompressobj().decompress(found[1])
        ).latencies
        errors = [
            abs((us or 0.0) / (expected[signature, kind] or 1.0) - 1.0)
            for signature, kind, us in zip(stored.signature, stored.kind, stored.us, strict=True)
        ]
        assert len(errors) == len(expected)
        worst[f"x{factor:g}"] = round(max(errors) * 100, 3)
    await stage.stop(server, worker)
    measure = "20 % lying devices, x3 and x100: error of the stored latency, %"
    return [row(stage, measure, worst, "<= 2", max(worst.values()) <= 2.0, statistic="largest over 200 latencies")]


async def bomb(stage: Stage) -> list[Row]:
    """A body of a few KB that inflates to 256 MiB, eight times at once."""
    server = await stage.server("bomb")
    packed = zstandard.ZstdCompressor(level=19).compress(bytes(256 * 2**20))
    raw = stage.request("POST", "/models", packed, content_encoding="zstd")
    await call(server.address, stage.request("POST", "/models", b"{}"))
    before, _ = server.memory()
    server.reset_peak()
    answer = await call(server.address, raw)
    _, peak = server.memory()
    await stage.stop(server)
    extra = (peak - before) / 2**20
    ok = answer.status == 413 and extra <= 32
    measure = f"a {len(packed) / 1024:.0f} KB bomb that inflates to 256 MiB: extra memory, MiB"
    return [row(stage, measure, round(extra, 1), "refused within 32", ok, status=answer.status)]

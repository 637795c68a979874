"""Attack a planner on loopback with one enrolled device, and write down what the others notice.

Example:
  python -m benchmarks.attack --json benchmarks/results/attack.json
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zstandard

from benchmarks import cli, results
from benchmarks.hostile import attacked, strangers
from benchmarks.service.fixtures import FREQUENCY, compressed, key, ladder, processors, upload
from benchmarks.service.measures import DONE, Row, fresh, line, prepare, row, subsets
from benchmarks.service.pump import Pump, request
from benchmarks.service.stage import Server, Stage, call, databases, staged
from hope_schema import Enrolment, MissingRequest, ModelGraph, Profile, TensorType, TransferColumns
from hope_schema.base import MAX_OPS
from planner_api.devices import repository as devices
from planner_api.planning import Budget, build_problem, optimise, simulate
from planner_api.profiles.folding import Folder, estimates, wanted
from planner_api.profiles.snapshot import publish
from planner_api.profiles.statistics import Statistics, device_hash, ranks
from planner_api.settings import Settings
from planner_api.web.tokens import hash_token, new_token

MIB = 2**20
LARGE_OPS, MOST_MOVES = 14_000, 80_000
"""Of more moves an upload takes more memory to read than ``HOPE_READ_MEMORY_BYTES``."""
OTHERS = 50
"""Other devices, whose requests take turns: each stays within its own rate."""
ROUNDS = 6
"""Of the attack on others."""
BUDGET_S: float = Settings.model_fields["solve_budget_s"].default


def bomb(before: str, unit: str, after: str) -> bytes:
    """A body that inflates to almost 16 MiB."""
    count = (16 * MIB - 1024) // len(unit)
    return zstandard.compress((before + unit * count + unit.rstrip(",") + after).encode())


HOSTILE = {
    "enrolment": ("POST", "/devices", bomb('{"device_id":"x","versions":{', '"":1,', "}}")),
    "report": ("PUT", "/devices/attacker/report", bomb('{"measured":[', "{},", "]}")),
    "graph": ("POST", "/models", bomb('{"ops":[{"attributes":{"a":[', "{},", "]}}]}")),
    "upload": ("POST", "/profiles", bomb('{"latencies":{"us":[', '"",', "]}}")),
    "long upload": ("POST", "/profiles", bomb('{"latencies":{"us":[', "1.5,", "]}}")),
    "question": ("POST", "/profiles/missing", bomb('{"processors":[', "{},", "]}")),
}


async def enrol(stage: Stage, name: str) -> str:
    """A device's own token, put into the database directly."""
    token = new_token("device")
    async with stage.database.write() as session:
        await devices.enrol(session, name, Enrolment(device_id=name).model_dump(exclude={"device_id"}))
        await devices.add_token(session, hash_token(token), "device", device_id=name)
    return token


def attacks(token: str) -> dict[str, bytes]:
    """The hostile requests, with a device's token."""
    headers = {"content-encoding": "zstd"}
    return {
        name: request(method, path, body, token=token, headers=headers)
        for name, (method, path, body) in HOSTILE.items()
    }


def tree(server: Server) -> list[str]:
    """The process ids of a server and its children."""
    children = subprocess.run(["pgrep", "-P", str(server.pid)], capture_output=True, text=True).stdout.split()
    return [str(server.pid), *children]


def tree_memory(server: Server) -> int:
    """Resident bytes of a server and its children at their peaks."""
    total = 0
    for process in tree(server):
        with suppress(OSError):
            status = Path(f"/proc/{process}/status").read_text()
            total += int(status.split("VmHWM:")[1].split()[0]) * 1024
    return total


def forget_peaks(server: Server) -> int:
    """Forget the memory peaks so far, the children's too; return what is held now."""
    for process in tree(server):
        with suppress(OSError):
            Path(f"/proc/{process}/clear_refs").write_text("5")
    return tree_memory(server)


async def single(stage: Stage) -> list[Row]:
    """Each hostile request alone: the longest a probe waited for the event loop, and the memory it took."""
    server = await stage.server("attack-single")
    token = await enrol(stage, "attacker")
    await call(server.address, attacks(token)["long upload"])  # the reading process is part of an idle server's memory
    costs = {name: await cost(server, raw) for name, raw in attacks(token).items()}
    await stage.stop(server)
    assert all(len(body) <= 16 * 1024 for _, _, body in HOSTILE.values())
    return _costs(stage, "one hostile request", costs, most_ms=50, most_mib=64)


async def large(stage: Stage) -> list[Row]:
    """A valid network of 14 000 ops on ten processors, from its graph to its first plan, as a device sends it; and the
    graph and the upload that the limits just allow.
    """
    server = await stage.server("attack-large")
    stage.worker("attack-worker")
    soc, token = fresh("soc"), await enrol(stage, "collector")
    await call(server.address, attacks(token)["long upload"])
    graph, small = ladder(LARGE_OPS, "large"), ladder(10, "small")
    question = MissingRequest(
        model_hash=graph.model_hash, soc=soc, frequency=FREQUENCY, device_id="collector", processors=processors(10)
    )
    figures = compressed(upload([graph], soc, device="collector", count=10))
    other = fresh("soc")
    moves: dict[str, tuple[Any, ...]] = {
        "source": ("host",),
        "target": ("host/0",),
        "us": (9.0,),
        "spread_us": (1.0,),
        "count": (1,),
    }
    types = tuple(TensorType(shape=(number,), dtype="bool") for number in range(1, MOST_MOVES + 1))
    columns = TransferColumns(tensor=types, **{name: value * MOST_MOVES for name, value in moves.items()})
    most_moves = upload([small], other, device="collector", number=2).model_copy(update={"transfers": columns})
    headers = {"content-encoding": "zstd"}
    # What plans are made with is loaded before it counts, as by any device before this one.
    for path, body in (
        ("/models", compressed(small)),
        ("/profiles", compressed(upload([small], soc, device="collector", number=1, count=10))),
        ("/plans", zstandard.compress(key(small, soc))),
    ):
        answer = await call(server.address, request("POST", path, body, token=token, headers=headers))
        assert answer.status < 300, answer.body
    steps = {
        "graph": ("/models", compressed(graph)),
        "question": ("/profiles/missing", compressed(question)),
        "figures": ("/profiles", figures),
        "plan": ("/plans", zstandard.compress(key(graph, soc))),
        "most ops": ("/models", compressed(ladder(MAX_OPS, "most"))),
        "most moves": ("/profiles", compressed(most_moves)),
        "their profile": ("/profiles/missing", compressed(question.model_copy(update={"soc": other}))),
    }
    costs = {
        name: await cost(server, request("POST", path, body, token=token, headers=headers))
        for name, (path, body) in steps.items()
    }
    await stage.stop(server)
    return _costs(stage, f"a valid model of {LARGE_OPS} ops, to its first plan", costs, accepted=True)


class Cost(NamedTuple):
    """What a request did to a server: seconds that a probe beside it waited, bytes, and how it was answered."""

    waited_s: float
    memory: int
    status: int


async def cost(server: Server, raw: bytes) -> Cost:
    """Send a request, and probe the event loop until it is answered."""
    idle = forget_peaks(server)
    answer = asyncio.create_task(call(server.address, raw))
    waited = 0.0
    while not answer.done():
        started = time.perf_counter()
        await call(server.address, request("GET", "/healthz"))
        waited = max(waited, time.perf_counter() - started)
    return Cost(waited, tree_memory(server) - idle, (await answer).status)


def _costs(
    stage: Stage, what: str, costs: dict[str, Cost], *, accepted: bool = False, most_ms: int = 250, most_mib: int = 256
) -> list[Row]:
    """The worst of some requests; ``accepted`` ones must all have been answered with what they asked for."""
    waits = {name: round(each.waited_s * 1000, 1) for name, each in costs.items()}
    taken = {name: round(each.memory / MIB, 1) for name, each in costs.items()}
    fine = not accepted or all(each.status < 300 for each in costs.values())
    worst_ms, worst_mib = max(waits.values()), max(taken.values())
    statuses = {name: each.status for name, each in costs.items()}
    return [
        row(
            stage,
            f"{what}: a probe beside it waits, ms",
            worst_ms,
            f"<= {most_ms}",
            fine and worst_ms <= most_ms,
            **waits,
        ),
        row(
            stage,
            "the same: memory, MiB",
            worst_mib,
            f"<= {most_mib}",
            worst_mib <= most_mib,
            **taken,
            statuses=statuses,
        ),
    ]


async def others(stage: Stage, seconds: float) -> list[Row]:
    """The p99 of other devices' cached GETs, alone and while one device sends everything hostile; limits as shipped.

    Rounds of both, and the middle of their ratios: whatever else this machine does meets both alike. Each round begins
    with the attacker's burst. Both clients are one process, so that what the attack costs its client counts too.
    """
    shipped = Settings.model_fields
    limits = {name: shipped[name].default for name in ("rate_per_token", "rate_per_address")}
    server = await stage.server("attack-others", **limits)
    stage.worker("attack-worker")
    soc = fresh("soc")
    graph = await prepare(stage, server, 300, "others", soc)
    first = json.loads((await call(server.address, stage.request("POST", "/plans", key(graph, soc)))).body)
    headers = {"accept-encoding": "zstd"}
    gets = [
        request("GET", f"/plans/{first['plan_id']}", token=await enrol(stage, fresh("other")), headers=headers)
        for _ in range(OTHERS)
    ]
    hostile = itertools.cycle(attacks(await enrol(stage, "attacker")).values())

    async def p99(seconds: float) -> float:
        tally = await Pump([server.address], itertools.cycle(gets), connections=1, seconds=seconds).run()
        assert set(tally.statuses) == {200}, tally.statuses
        return tally.percentile(0.99) * 1000

    alone, beside, answered = [], [], Counter[int]()
    for _ in range(ROUNDS):
        alone.append(await p99(seconds / ROUNDS / 4))
        pump = Pump([server.address], hostile, connections=4, seconds=seconds / ROUNDS + 0.5)
        attack = asyncio.create_task(pump.run())
        beside.append(await p99(seconds / ROUNDS))
        answered += (await attack).statuses
    await stage.stop(server)
    ratio = statistics.median(each / before for before, each in zip(alone, beside, strict=True))
    details = {
        "alone_ms": round(statistics.median(alone), 2),
        "beside_ms": round(statistics.median(beside), 2),
        "attack": {str(status): count for status, count in sorted(answered.items())},
    }
    return [row(stage, "cached GET p99 of others under attack / alone", round(ratio, 2), "<= 3", ratio <= 3, **details)]


async def first_plan(stage: Stage, keys: int) -> list[Row]:
    """A device's first plan, and its better one, while another device asks for many keys."""
    server = await stage.server("attack-keys")
    worker = stage.worker("attack-worker", solve_budget_s=BUDGET_S)
    soc = fresh("soc")
    graph = await prepare(stage, server, 200, "keys", soc, 10)
    # The worker is up and warm before it counts.
    await call(server.address, stage.request("POST", "/plans", key(graph, soc, ("ort@9",))))
    await stage.until(f"SELECT COUNT(*) FROM plans WHERE soc = '{soc}' AND {DONE}", 1, 60.0)
    greedy, modest = await enrol(stage, fresh("greedy")), await enrol(stage, fresh("modest"))
    raws = [
        request("POST", "/plans", key(graph, soc, each), token=greedy) for each in itertools.islice(subsets(10), keys)
    ]
    flood = asyncio.create_task(Pump([server.address], iter(raws), connections=50).run())
    await asyncio.sleep(1.0)
    started = time.perf_counter()
    answer = await call(server.address, request("POST", "/plans", key(graph, soc), token=modest))
    greedy_s = time.perf_counter() - started
    plan_id = json.loads(answer.body)["plan_id"]
    done = await stage.until(f"SELECT COUNT(*) FROM plans WHERE id = '{plan_id}' AND {DONE}", 1, 12 * BUDGET_S)
    better_s = time.perf_counter() - started
    statuses = {str(status): count for status, count in (await flood).statuses.items()}
    await stage.stop(server, worker)
    return [
        row(
            stage,
            f"first plan beside {keys} keys of another, s",
            round(greedy_s, 2),
            "<= 2",
            greedy_s <= 2,
            statuses=statuses,
        ),
        row(
            stage,
            "the same: optimised after, budgets",
            round(better_s / BUDGET_S, 1),
            "<= 3",
            bool(done) and better_s <= 3 * BUDGET_S,
            budget_s=BUDGET_S,
        ),
    ]


LIARS = {"junk": 3.0, "first": 3.0, "repeated": 3.0, "coordinated": 3.0, "chosen": 0.5}
"""Manners of liars, and what plans may lose by each, in per cent."""


def liars(fleet: int = 200, share: float = 0.05) -> list[Row]:
    """Part of a SoC's devices are malicious, in each of four ways: what plans then lose on true figures."""
    graph = ladder(60, "liars")
    true = upload([graph], "soc", device="truth", seed=7).model_dump(mode="json")
    return [_liars(graph, true, manner, fleet, share) for manner in LIARS]


def _liars(graph: ModelGraph, true: dict[str, Any], manner: str, fleet: int, share: float) -> Row:
    """Fold a fleet that measures what it is asked for, with liars among it.

    *junk*: each upload of a liar is drawn anew; *first*: liars upload before anybody else does; *repeated*: they do so
    again after each honest device; *coordinated*: the same, and all of them say the same; *chosen*: of ten thousand ids
    they take those of lowest rank under a key that they guess.
    """
    draw, folder = random.Random(manner), Folder(Statistics())
    keys = list(zip(true["latencies"]["signature"], true["latencies"]["kind"], strict=True))
    row_of = {key: at for at, key in enumerate(keys)}
    numbers = _chosen(10_000) if manner == "chosen" else list(range(fleet))
    names = [f"liar-{n}" for n in numbers[: round(fleet * share)]] + [
        f"honest-{n}" for n in range(round(fleet * (1 - share)))
    ]
    if manner == "junk":
        draw.shuffle(names)
    own = {name: _lies(draw, len(keys)) for name in names}
    alike = _lies(draw, len(keys))
    ones, lying, asked = [1.0] * len(keys), [name for name in names if name.startswith("liar")], 0
    for number, name in enumerate(names):
        if name in lying:
            lies = _lies(draw, len(keys)) if manner == "junk" else alike if manner == "coordinated" else own[name]
            folder.fold([(name, _said(true, lies))])
            continue
        mine = wanted(folder.statistics.latencies, device_hash(name), keys, 200)
        mine += [key for key in keys if key not in folder.statistics.latencies.index]
        asked += len(mine)
        if mine:
            noisy = [draw.gauss(1.0, 0.01) for _ in keys]
            folder.fold([(name, _said(true, noisy, [row_of[key] for key in mine]))])
        if manner in ("repeated", "coordinated"):
            again = lying[number % len(lying)]
            folder.fold([(again, _said(true, alike if manner == "coordinated" else own[again]))])
    honest = Folder(Statistics())
    honest.fold([("truth", _said(true, ones))])
    chosen = [processor["id"] for processor in true["processors"]]
    profiles = (publish(each, estimates(each), "soc", "max", 1) for each in (honest.statistics, folder.statistics))
    truth, told = (build_problem(graph, Profile.model_validate_json(each), chosen) for each in profiles)
    best, misled = (optimise(problem, "auto", Budget(rounds=20)).solution.schedule for problem in (truth, told))
    lost = (simulate(truth, misled.assignment, misled.sequence).makespan_us / best.makespan_us - 1) * 100
    off = np.abs(told.latency_us / truth.latency_us - 1)
    return {
        "measure": f"{share:.0%} of {fleet} devices malicious, {manner}: plan loss on true figures, %",
        "database": "none",
        "value": round(lost, 2),
        "must": f"<= {LIARS[manner]:g}",
        "ok": lost <= LIARS[manner],
        "details": {"asked_per_device": round(asked / fleet, 1), "worst_figure": round(float(off.max()), 3)},
    }


def _chosen(candidates: int) -> list[int]:
    """Numbers of liars, those first whose ranks are lowest on many figures under a guessed key."""
    ids = np.array([device_hash(f"liar-{n}") for n in range(candidates)], dtype=np.uint64)
    figures = np.random.default_rng(0).integers(0, 2**63, 40).astype(np.uint64)[:, None]
    order = np.argsort(ranks((0, 0), figures, ids[None, :]).astype(np.float64).mean(axis=0))
    return [int(each) for each in order]


def _lies(draw: random.Random, count: int) -> list[float]:
    """What true figures are multiplied with."""
    return [draw.choice((0.02, 50.0)) for _ in range(count)]


def _said(true: dict[str, Any], factors: list[float], rows: list[int] | None = None) -> dict[str, Any]:
    """An upload of these rows of the true figures, each times its factor."""
    columns = true["latencies"]
    at = range(len(factors)) if rows is None else rows
    chosen = {name: [column[n] for n in at] for name, column in columns.items() if column}
    return {**true, "latencies": {**chosen, "us": [columns["us"][n] * factors[n] for n in at]}}


async def measure(url: str, options: argparse.Namespace) -> list[Row]:
    """Run every attack on one database."""
    async with staged(url) as stage:
        return [
            *await single(stage),
            *await others(stage, options.seconds),
            *await attacked(stage, options.seconds / 10),
            *await first_plan(stage, options.keys),
            *await large(stage),  # last: its better plan waits in the queue, and takes several budgets
        ]


def main() -> int:
    """Run; 0 when every row holds."""
    parser = cli.measuring("attack", __doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the attack on others (default: %(default)s)")
    parser.add_argument("--keys", type=int, default=500, help="that the greedy device asks for (default: %(default)s)")
    options = parser.parse_args()
    rows = [*liars(), strangers()]
    with databases(None) as urls:
        for url in urls:
            rows += asyncio.run(measure(url, options))
    for each in rows:
        print(line(each))
    results.report(options.json, rows)
    return 0 if all(each["ok"] for each in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Bodies that cost more than they weigh, hostile and honest, and one device's many keys beside another's first."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from benchmarks.service.fixtures import FREQUENCY, compressed, key, ladder, processors, upload
from benchmarks.service.measures import DONE, Row, fresh, prepare, row, subsets
from benchmarks.service.pump import Pump, request
from benchmarks.service.stage import Server, Stage, call, enrol
from hope_schema import MissingRequest, TensorType, TransferColumns
from hope_schema.base import MAX_OPS
from planner_api.settings import Settings

MIB = 2**20
LARGE_OPS, MOST_MOVES = 14_000, 80_000
"""Of more moves an upload takes more memory to read than ``HOPE_READ_MEMORY_BYTES``."""
BUDGET_S: float = Settings.model_fields["solve_budget_s"].default


def bomb(before: str, unit: str, after: str) -> bytes:
    """A body that inflates to almost 16 MiB."""
    count = (16 * MIB - 1024) // len(unit)
    return zstandard.compress((before + unit * count + unit.rstrip(",") + after).encode())


HOSTILE = {
    "enrolment": ("POST", "/devices", bomb('{"device_id":"x","versions":{', '"":1,', "}}")),
    "report": ("PUT", "/devices/{name}/report", bomb('{"measured":[', "{},", "]}")),
    "graph": ("POST", "/models", bomb('{"ops":[{"attributes":{"a":[', "{},", "]}}]}")),
    "upload": ("POST", "/profiles", bomb('{"latencies":{"us":[', '"",', "]}}")),
    "long upload": ("POST", "/profiles", bomb('{"latencies":{"us":[', "1.5,", "]}}")),
    "question": ("POST", "/profiles/missing", bomb('{"processors":[', "{},", "]}")),
}


def hostile(device: str, token: str) -> dict[str, bytes]:
    """The hostile requests of a device."""
    headers = {"content-encoding": "zstd"}
    return {
        name: request(method, path.format(name=device), body, token=token, headers=headers)
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
    name = fresh("attacker")
    sent = hostile(name, await enrol(stage, name))
    await call(server.address, sent["long upload"])  # the reading process is part of an idle server's memory
    costs = {name: await cost(server, raw) for name, raw in sent.items()}
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
    await call(server.address, hostile("collector", token)["long upload"])
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

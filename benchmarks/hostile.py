"""What hostile devices do to a server beside others, a row each: part of ``python -m benchmarks.attack``.

The attacker comes from an address of its own (127.0.0.2), as others do not. Limits are as shipped.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
import socket
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from benchmarks.service.fixtures import FREQUENCY, compressed, key, ladder, processors
from benchmarks.service.measures import Row, fresh, prepare, row
from benchmarks.service.pump import Pump, request
from benchmarks.service.stage import Server, Stage, call
from hope_schema import Enrolment, MissingRequest, ModelGraph, Op, Tensor
from planner_api.db.tables import ReleaseClaimRow, ReleasePartRow
from planner_api.devices import repository as devices
from planner_api.rollout.counting import COUNTS
from planner_api.rollout.decision import does_harm
from planner_api.rollout.judging import judge
from planner_api.settings import Settings
from planner_api.web.tokens import hash_token, new_token

MIB = 2**20
ATTACKER = "127.0.0.2"
SHIPPED = (
    "rate_per_token", "burst_per_token", "rate_per_address", "burst_per_address", "connections_per_address",
    "rate_per_claim",
)  # fmt: skip
ROUNDS = 3
UNREAD, IDLE, DRIPPING, RESENDING = 100, 1200, 20, 5
"""Connections that read nothing, that ask nothing; devices that never end a body; that send a costly one again."""


@dataclass
class Scene:
    """A server with shipped limits, and honest requests for a cached plan and for something in the database."""

    stage: Stage
    server: Server
    cached: list[bytes]
    stored: list[bytes]
    large: ModelGraph

    async def device(self, name: str) -> str:
        """A device's own token."""
        token, name = new_token("device"), fresh(name)
        async with self.stage.database.write() as session:
            await devices.enrol(session, name, Enrolment(device_id=name).model_dump(exclude={"device_id"}))
            await devices.add_token(session, hash_token(token), "device", device_id=name)
        return token

    async def p99(self, requests: list[bytes], seconds: float) -> tuple[float, Counter[int]]:
        """The slowest hundredth of honest answers, in milliseconds, and their statuses."""
        pump = Pump([self.server.address], itertools.cycle(requests), connections=1, seconds=seconds)
        tally = await pump.run()
        return tally.percentile(0.99) * 1000, tally.statuses

    async def beside(self, attack: Callable[[], Any], seconds: float) -> dict[str, Any]:
        """Honest answers alone and beside an attack, the attack's memory, and what of it is left afterwards."""
        alone = {name: (await self.p99(getattr(self, name), seconds / 4))[0] for name in ("cached", "stored")}
        idle, _ = self.server.memory()
        self.server.reset_peak()
        async with attack():
            beside = {name: await self.p99(getattr(self, name), seconds) for name in ("cached", "stored")}
        peak = self.server.memory()[1]
        await asyncio.sleep(1.0)
        ratios = {name: round(beside[name][0] / alone[name], 2) for name in alone}
        failed = sum(count for _, statuses in beside.values() for status, count in statuses.items() if status != 200)
        return {
            "ratios": ratios,
            "failed": failed,
            "mib": round((peak - idle) / MIB, 1),
            "left_mib": round((self.server.memory()[0] - idle) / MIB, 1),
            "alone_ms": {name: round(value, 2) for name, value in alone.items()},
        }


async def scene(stage: Stage) -> Scene:
    """Prepare the server, a model with a plan, and a large graph."""
    shipped = {name: Settings.model_fields[name].default for name in SHIPPED}
    server = await stage.server("hostile", **shipped)
    stage.worker("hostile-worker")
    soc = fresh("soc")
    graph = await prepare(stage, server, 300, "hostile", soc)
    answer = await call(server.address, stage.request("POST", "/plans", key(graph, soc)))
    plan_id = answer.body.split(b'"plan_id":"')[1].split(b'"')[0].decode()
    found = Scene(stage, server, [], [], ladder(14_000, "hostile-large"))
    for _ in range(50):
        token = await found.device("other")
        found.cached.append(request("GET", f"/plans/{plan_id}", token=token, headers={"accept-encoding": "zstd"}))
        found.stored.append(request("GET", f"/models/{graph.model_hash}", token=token))
    sent = await call(
        server.address, stage.request("POST", "/models", compressed(found.large), content_encoding="zstd")
    )
    assert sent.status < 300, sent.body
    return found


@asynccontextmanager
async def sockets(server: Server, sent: list[bytes], small: bool = False) -> AsyncIterator[None]:
    """Open a connection from the attacker's address for each of these, send it, and never read."""
    opened: list[socket.socket] = []
    try:
        for each in sent:
            connection = socket.socket()
            connection.bind((ATTACKER, 0))
            if small:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with suppress(OSError):
                connection.connect(server.address)
                connection.sendall(each)
            opened.append(connection)
        yield
    finally:
        for connection in opened:
            connection.close()


@asynccontextmanager
async def flood(server: Server, sent: Iterator[bytes], connections: int) -> AsyncIterator[None]:
    """Send these over and over while the block lasts."""
    pump = Pump([server.address], sent, connections=connections, seconds=600.0)
    task = asyncio.create_task(pump.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def costly_chain(salt: str) -> bytes:
    """A valid graph of 20 000 ops that become one."""
    count = 20_000
    tensors = tuple(Tensor(name=f"{salt}{number}", shape=(1,), dtype="float32") for number in range(count + 1))
    ops = tuple(
        Op(type="Relu" if number else "Conv", inputs=(tensors[number].name,), outputs=(tensors[number + 1].name,))
        for number in range(count)
    )
    graph = ModelGraph(name=salt, tensors=tensors, ops=ops, inputs=(tensors[0].name,), outputs=(tensors[-1].name,))
    return compressed(graph)


async def attacked(stage: Stage, seconds: float) -> list[Row]:
    """Every row that needs a server."""
    found = await scene(stage)
    server, hash_ = found.server, found.large.model_hash
    token = await found.device("attacker")
    kinds = MissingRequest(
        model_hash=hash_, soc=fresh("soc"), frequency=FREQUENCY, device_id="attacker", processors=processors(10)
    )
    zstd = {"content-encoding": "zstd"}
    unread = [request("GET", f"/models/{hash_}", token=token)] * UNREAD
    asked = request("POST", "/profiles/missing", compressed(kinds), token=token, headers=zstd)
    cookies = (
        request("GET", "/console", headers={"cookie": f"hope_console={secrets.token_urlsafe(32)}"})
        for _ in itertools.count()
    )
    claims = (request("GET", "/fleet", token=new_token("device")) for _ in itertools.count())
    attacks: dict[str, Callable[[], Any]] = {
        f"{UNREAD} answers that nobody reads": lambda: sockets(server, unread, small=True),
        f"{IDLE} connections that ask nothing": lambda: sockets(server, [b""] * IDLE),
        "questions about a large model": lambda: flood(server, itertools.repeat(asked), 8),
        "drawn cookies": lambda: flood(server, cookies, 8),
        "guessed tokens": lambda: flood(server, claims, 8),
    }
    rows: list[Row] = []
    for name, attack in attacks.items():
        result = await found.beside(attack, seconds)
        worst = max(result["ratios"].values())
        rows.append(
            row(stage, f"{name}: others' p99 / alone", worst, "<= 3", worst <= 3 and not result["failed"], **result)
        )
        rows.append(row(stage, "the same: memory, MiB", result["mib"], "<= 256", result["mib"] <= 256))
        rows.append(row(stage, "the same: memory kept, MiB", result["left_mib"], "<= 32", result["left_mib"] <= 32))
    rows += await uploads(found)
    await stage.stop(server)
    return rows


async def uploads(found: Scene) -> list[Row]:
    """An honest large upload, alone and beside devices that drip, or send a costly content again and again."""
    zstd = {"content-encoding": "zstd"}
    honest = await found.device("honest")
    numbers = itertools.count()

    async def upload_s() -> float:
        graph = ladder(10_000, f"honest-{next(numbers)}")
        started = time.perf_counter()
        body = compressed(graph)
        answer = await call(found.server.address, request("POST", "/models", body, token=honest, headers=zstd))
        assert answer.status < 300, answer.body
        return time.perf_counter() - started

    await upload_s()
    alone = statistics.median([await upload_s() for _ in range(ROUNDS)])
    tokens = [await found.device("hostile") for _ in range(DRIPPING)]
    drip = [request("POST", "/models", b" " * 300_000, token=token)[:-1] for token in tokens for _ in range(2)]
    rows = []
    async with sockets(found.server, drip):
        beside = statistics.median([await upload_s() for _ in range(ROUNDS)])
    rows.append(_slower(found.stage, f"a large upload beside {DRIPPING} devices that drip", beside / alone))
    same = [
        request("POST", "/models", costly_chain("costly"), token=token, headers=zstd) for token in tokens[:RESENDING]
    ]
    async with flood(found.server, itertools.cycle(same), RESENDING):
        beside = statistics.median([await upload_s() for _ in range(ROUNDS)])
    rows.append(
        _slower(found.stage, f"a large upload beside {RESENDING} devices that resend a costly graph", beside / alone)
    )
    return rows


def strangers(honest: int = 200, sybils: int = 100, draws: int = 200) -> Row:
    """Releases that devices of one claim stop, or push through though it does harm."""
    draw, wrong = random.Random(1), 0
    for number in range(draws):
        harm = number % 2 == 1
        worse = sum(draw.random() < (0.8 if harm else 0.05) for _ in range(honest))
        better = 0 if harm else sum(draw.random() < 0.05 for _ in range(honest))
        theirs = {"reported": sybils, "slower": 0 if harm else sybils, "faster": sybils if harm else 0}
        zeros = dict.fromkeys(COUNTS, 0)
        part = ReleasePartRow(release_id="r", part="p", **zeros)
        claim = ReleaseClaimRow(release_id="r", part="p", claim_id=1, **{**zeros, **theirs})
        part.slower, part.faster = worse + theirs["slower"], better + theirs["faster"]
        wrong += does_harm(judge([part], [claim]).together, 0.001) != harm
    return {
        "measure": f"{sybils} devices of one claim beside {honest}: releases stopped or pushed, of {draws}",
        "database": "none",
        "value": wrong,
        "must": "0",
        "ok": not wrong,
        "details": {},
    }


def _slower(stage: Stage, measure: str, ratio: float) -> Row:
    return row(stage, f"{measure} / alone", round(ratio, 2), "<= 3", ratio <= 3)

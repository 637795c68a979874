"""What others notice of one attacker: their answers, slower than alone, and the memory that it takes.

The attacker comes from addresses of its own, as others do not. Limits are as shipped.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import socket
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass

from benchmarks.attack.bodies import MIB, hostile
from benchmarks.service.fixtures import FREQUENCY, compressed, key, ladder, processors
from benchmarks.service.measures import DONE, Row, fresh, prepare, row
from benchmarks.service.pump import Pump, request
from benchmarks.service.stage import Server, Stage, call, enrol
from hope_schema import MissingRequest, ModelGraph, Op, Tensor
from planner_api.settings import Settings
from planner_api.web.tokens import new_token

ATTACKER = ["127.0.0.2"]
NETWORK = [f"127.0.1.{number}" for number in range(1, 65)]
"""Addresses of a /24, and as many of the attacker's."""
LIMITS = (
    "rate_per_token", "burst_per_token", "rate_per_address", "burst_per_address", "connections_per_address",
    "rate_per_claim", "burst_per_claim",
)  # fmt: skip
SHIPPED = {name: Settings.model_fields[name].default for name in LIMITS}
ROUNDS = 4
UNREAD, IDLE, DRIPPING, RESENDING = 100, 1200, 20, 5
"""Connections that read nothing, that ask nothing; devices that never end a body; that send a costly one again."""
OTHERS = 50
"""Other devices, whose requests take turns: each stays within its own rate."""
KEPT_MIB, GIVEN_BACK_S = 32, 75.0
"""What may be kept of an attack, and within what time it is given back."""

Attack = AbstractAsyncContextManager[None]


@dataclass
class Scene:
    """A server with shipped limits, and honest requests for a cached plan and for something in the database."""

    stage: Stage
    server: Server
    honest: dict[str, list[bytes]]
    plan_id: str
    large: ModelGraph
    after_s: float | None = None
    """How long after an attack the memory is read; None: until no more is kept than may be, or `GIVEN_BACK_S`."""

    async def p99_ms(self, kind: str, seconds: float) -> float:
        """The slowest hundredth of honest answers."""
        pump = Pump([self.server.address], itertools.cycle(self.honest[kind]), connections=1, seconds=seconds)
        tally = await pump.run()
        assert set(tally.statuses) == {200}, tally.statuses
        return tally.percentile(0.99) * 1000

    async def beside(self, name: str, attack: Callable[[], Attack], seconds: float) -> list[Row]:
        """Honest answers alone and beside an attack, in turn, and the memory that it took and keeps.

        For as long, so that whatever else this machine does meets both alike: the middle of the rounds' ratios counts.
        """
        alone: dict[str, list[float]] = {kind: [] for kind in self.honest}
        beside: dict[str, list[float]] = {kind: [] for kind in self.honest}
        idle, _ = self.server.memory()
        self.server.reset_peak()
        for _ in range(ROUNDS):
            for kind in self.honest:
                alone[kind].append(await self.p99_ms(kind, seconds / ROUNDS))
            async with attack():
                for kind in self.honest:
                    beside[kind].append(await self.p99_ms(kind, seconds / ROUNDS))
        took = (self.server.memory()[1] - idle) / MIB
        kept, ended = took, time.monotonic()
        longest_s = GIVEN_BACK_S if self.after_s is None else self.after_s
        while time.monotonic() - ended < longest_s and (self.after_s is not None or kept > KEPT_MIB):
            await asyncio.sleep(1.0)
            kept = (self.server.memory()[0] - idle) / MIB
        ratios = {
            kind: round(statistics.median(map(float.__truediv__, beside[kind], alone[kind])), 2) for kind in alone
        }
        details = {
            "ratios": ratios,
            "alone_ms": {kind: round(statistics.median(each), 2) for kind, each in alone.items()},
            "kept_after_s": round(time.monotonic() - ended),
        }
        worst = max(ratios.values())
        return [
            row(self.stage, f"{name}: others' p99 / alone", worst, "<= 3", worst <= 3, **details),
            row(self.stage, "the same: memory, MiB", round(took, 1), "<= 256", took <= 256),
            row(self.stage, "the same: memory kept, MiB", round(kept, 1), f"<= {KEPT_MIB}", kept <= KEPT_MIB),
        ]


async def scene(stage: Stage) -> Scene:
    """Prepare the server, a model with a plan in two versions, and a large graph."""
    server = await stage.server("beside", **SHIPPED, log_level="info")  # lines of a log are part of what is noticed
    worker = stage.worker("beside-worker")
    soc = fresh("soc")
    graph = await prepare(stage, server, 300, "hostile", soc)
    answer = await call(server.address, stage.request("POST", "/plans", key(graph, soc), prefer="wait=60"))
    plan_id = answer.body.split(b'"plan_id":"')[1].split(b'"')[0].decode()
    await stage.until(f"SELECT COUNT(*) FROM plans WHERE id = '{plan_id}' AND {DONE}", 1, 60.0)
    await stage.stop(worker)
    tokens = [await enrol(stage, fresh("other")) for _ in range(OTHERS)]
    headers = {"accept-encoding": "zstd"}
    honest = {
        "cached": [request("GET", f"/plans/{plan_id}", token=token, headers=headers) for token in tokens],
        "stored": [request("GET", f"/models/{graph.model_hash}", token=token) for token in tokens],
    }
    large = ladder(14_000, "hostile-large")
    sent = await call(server.address, stage.request("POST", "/models", compressed(large), content_encoding="zstd"))
    assert sent.status < 300, sent.body
    found = Scene(stage, server, honest, plan_id, large)
    for kind in honest:  # whatever a first request loads is part of an idle server
        await found.p99_ms(kind, 0.5)
    await call(server.address, hostile("-", tokens[0])["long upload"])
    return found


@asynccontextmanager
async def sockets(server: Server, sent: list[bytes], small: bool = False) -> AsyncIterator[None]:
    """Open a connection from the attacker's address for each of these, send it, and never read."""
    opened: list[socket.socket] = []
    try:
        for each in sent:
            connection = socket.socket()
            connection.bind((*ATTACKER, 0))
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
async def flood(
    server: Server, sent: Iterator[bytes], connections: int = 8, sources: Sequence[str] = ATTACKER
) -> AsyncIterator[None]:
    """Send these over and over while the block lasts."""
    pump = Pump([server.address], sent, connections=connections, seconds=600.0, sources=sources)
    task = asyncio.create_task(pump.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def attackers(found: Scene, name: str, token: str) -> dict[str, tuple[str, Callable[[], Attack]]]:
    """Every attack under its name, with what it is called in the table."""
    server, hash_ = found.server, found.large.model_hash
    zstd = {"content-encoding": "zstd"}
    wanted = MissingRequest(
        model_hash=hash_, soc=fresh("soc"), frequency=FREQUENCY, device_id=name, processors=processors(10)
    )
    question = request("POST", "/profiles/missing", compressed(wanted), token=token, headers=zstd)

    def cookie() -> bytes:
        return request("GET", "/console", headers={"cookie": f"hope_console={secrets.token_urlsafe(32)}"})

    def guess() -> bytes:
        return request("GET", "/fleet", token=new_token("device") + "x" * 200)

    unread = [request("GET", f"/models/{hash_}", token=token)] * UNREAD
    old = request("GET", f"/plans/{found.plan_id}?version=1", token=token)
    bodies = itertools.cycle(hostile(name, token).values())

    def each(make: Callable[[], bytes]) -> Iterator[bytes]:
        return (make() for _ in itertools.count())

    return {
        "unread": (f"{UNREAD} answers that nobody reads", lambda: sockets(server, unread, small=True)),
        "idle": (f"{IDLE} connections that ask nothing", lambda: sockets(server, [b""] * IDLE)),
        "questions": ("questions about a large model", lambda: flood(server, itertools.repeat(question))),
        "versions": ("an old version of a plan", lambda: flood(server, itertools.repeat(old))),
        "bodies": ("every hostile body", lambda: flood(server, bodies, 4)),
        "cookies": ("drawn cookies", lambda: flood(server, each(cookie))),
        "console": (
            "the console without a cookie",
            lambda: flood(server, itertools.repeat(request("GET", "/console"))),
        ),
        "guesses": ("guessed tokens of a network", lambda: flood(server, each(guess), len(NETWORK), NETWORK)),
    }


ATTACKS = ("unread", "idle", "questions", "versions", "bodies", "cookies", "console", "guesses")


async def beside(stage: Stage, seconds: float, only: Sequence[str], after_s: float | None) -> list[Row]:
    """What others notice of each attack."""
    found = await scene(stage)
    found.after_s = after_s
    name = fresh("attacker")
    known = attackers(found, name, await enrol(stage, name))
    rows = [each for name in only for each in await found.beside(*known[name], seconds)]
    await stage.stop(found.server)
    return rows


async def uploads(stage: Stage) -> list[Row]:
    """An honest large upload, alone and beside devices that drip, or send a costly content again and again."""
    server, zstd = await stage.server("uploads", **SHIPPED), {"content-encoding": "zstd"}
    honest = await enrol(stage, fresh("honest"))

    async def upload_s() -> float:
        body = compressed(ladder(10_000, fresh("honest")))
        started = time.perf_counter()
        answer = await call(server.address, request("POST", "/models", body, token=honest, headers=zstd))
        assert answer.status < 300, answer.body
        return time.perf_counter() - started

    await upload_s()
    tokens = [await enrol(stage, fresh("hostile")) for _ in range(DRIPPING)]
    drip = [request("POST", "/models", b" " * 300_000, token=token)[:-1] for token in tokens for _ in range(2)]
    costly = costly_chain()
    same = [request("POST", "/models", costly, token=token, headers=zstd) for token in tokens[:RESENDING]]
    rows = []
    attacks: dict[str, Callable[[], Attack]] = {
        f"{DRIPPING} devices that drip": lambda: sockets(server, drip),
        f"{RESENDING} devices that resend a costly graph": lambda: flood(server, itertools.cycle(same), RESENDING),
    }
    for name, attack in attacks.items():
        ratios = []
        for _ in range(ROUNDS):
            alone_s = await upload_s()
            async with attack():
                ratios.append(await upload_s() / alone_s)
        ratio = statistics.median(ratios)
        rows.append(row(stage, f"a large upload beside {name} / alone", round(ratio, 2), "<= 3", ratio <= 3))
    await stage.stop(server)
    return rows


def costly_chain(count: int = 20_000) -> bytes:
    """A valid graph of so many ops that become one."""
    tensors = tuple(Tensor(name=f"costly{number}", shape=(1,), dtype="float32") for number in range(count + 1))
    ops = tuple(
        Op(type="Relu" if number else "Conv", inputs=(tensors[number].name,), outputs=(tensors[number + 1].name,))
        for number in range(count)
    )
    return compressed(
        ModelGraph(name="costly", tensors=tensors, ops=ops, inputs=(tensors[0].name,), outputs=(tensors[-1].name,))
    )

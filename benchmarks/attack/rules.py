"""What one token, a few strangers, a web page, a wrong clock or the database's owner must not bring about."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import BaseModel
from sqlalchemy import text, update

from benchmarks.attack.beside import SHIPPED, flood
from benchmarks.service.fixtures import FREQUENCY, compressed, key, ladder, processors, upload
from benchmarks.service.measures import DONE, Row, fresh, prepare, row
from benchmarks.service.pump import Answer, Pump, request
from benchmarks.service.stage import Server, Stage, call, enrol
from hope_schema import DeviceReport, Enrolment, MeasuredRun, MissingRequest, ReleaseRequest, RolloutPolicy
from hope_schema.proof import hash_token
from planner_api.db.tables import ClaimRow, InboxRow, JobRow, ReleaseRow
from planner_api.devices import repository as devices
from planner_api.jobs.wanted import Wanted, put
from planner_api.plans.solve import BETTER
from planner_api.settings import Settings
from planner_api.web.tokens import new_token

HONEST, SYBILS = 200, 100
STEP_S = 15.0
"""Within this a release takes a step, a replica follows, an upload is folded."""
STARTS = 6
LATENCIES = (
    "SELECT COALESCE(MAX(profiles.latencies), 0) FROM profiles JOIN socs ON socs.id = profiles.soc_id "
    "WHERE socs.name = '{}' AND profiles.version > 0"
)
"""How many a profile has; its SoC is to be filled in."""
TROUBLE = ("DeadlockError", "ImportError", "partially initialized")
"""What a log says of imports that met."""


async def send(
    server: Server, method: str, path: str, message: BaseModel | None = None, token: str = "", **more: str
) -> Answer:
    """Send a message of the contract."""
    body = b"" if message is None else message.model_dump_json(exclude_none=True).encode()
    named = {name.replace("_", "-"): value for name, value in more.items()}
    return await call(server.address, request(method, path, body, token=token or None, headers=named))


async def within(seconds: float, holds: Callable[[], Awaitable[bool]]) -> bool:
    """Whether something comes to hold within so many seconds."""
    deadline = time.monotonic() + seconds
    while not (found := await holds()) and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    return found


@dataclass
class Fleet:
    """A fleet of an honest and a hostile claim, and a model whose new versions go out by release."""

    stage: Stage
    server: Server
    model: str
    plan_id: str
    soc: str
    honest: list[str]
    sybils: list[str]
    version: int

    async def report(self, names: list[str], us: float) -> None:
        """Have devices say what the newest version takes."""
        run = MeasuredRun(plan_id=self.plan_id, plan_version=self.version, measured_us=us, p99_us=us, runs=64)
        body = DeviceReport(soc=self.soc, frequency=FREQUENCY, measured=(run,)).model_dump_json().encode()
        sent = [request("PUT", f"/devices/{name}/report", body) for name in names]
        tally = await Pump([self.server.address], iter(sent), connections=8).run()
        assert set(tally.statuses) == {204}, tally.statuses

    async def improve(self) -> None:
        """Have a worker make the next version."""
        query = f"SELECT COALESCE(MAX(version), 0) FROM plan_versions WHERE plan_id = '{self.plan_id}'"
        before = await self.stage.number(query)
        async with self.stage.database.write() as session:
            await put(session, Wanted(BETTER, self.plan_id, priority=10**6))
        self.version = await self.stage.until(query, before + 1, 60.0)
        assert self.version > before

    async def begin(self) -> str:
        """Begin a release to all."""
        asked = ReleaseRequest(model=self.model, stages=(1.0,), hold_s=0.0, reported=0.9)
        answer = await send(self.server, "POST", "/releases", asked)
        assert answer.status == 201, answer.body
        return str(json.loads(answer.body)["release_id"])

    async def state(self, release_id: str) -> str:
        """How far a release is."""
        return str(json.loads((await send(self.server, "GET", f"/releases/{release_id}")).body)["state"])

    async def ends(self, release_id: str, wanted: str) -> bool:
        """Whether a release comes to an end as it should."""

        async def ended() -> bool:
            return await self.state(release_id) == wanted

        found = await within(STEP_S, ended)
        if not found:
            await send(self.server, "POST", f"/releases/{release_id}/rollback")
        return found


async def fleet(stage: Stage, server: Server) -> Fleet:
    """Devices that said what the first version takes."""
    soc = fresh("soc")
    graph = await prepare(stage, server, 40, "released", soc)
    answer = await call(server.address, request("POST", "/plans", key(graph, soc), headers={"prefer": "wait=60"}))
    plan_id = str(json.loads(answer.body)["plan_id"])
    await stage.until(f"SELECT COUNT(*) FROM plans WHERE id = '{plan_id}' AND {DONE}", 1, 60.0)
    names = [fresh("honest") for _ in range(HONEST)] + [fresh("sybil") for _ in range(SYBILS)]
    async with stage.database.write() as session:
        for some in (names[:HONEST], names[HONEST:]):
            session.add(claim := ClaimRow(claim_hash=fresh("claim")))
            await session.flush()
            for name in some:
                await devices.enrol(session, name, {"claim_id": claim.id, "soc": soc})
    await send(server, "PUT", f"/models/{graph.model_hash}/rollout", RolloutPolicy(rollout="held"))
    version = await stage.number(f"SELECT MAX(version) FROM plan_versions WHERE plan_id = '{plan_id}'")
    found = Fleet(stage, server, graph.model_hash, plan_id, soc, names[:HONEST], names[HONEST:], version)
    await found.report(names, 100.0)
    await found.improve()
    return found


async def releases(stage: Stage) -> list[Row]:
    """Releases that devices of one claim would push, stop or stall; and a replica that does not see one end."""
    server, late = (
        await stage.server("releases", tokens_required=False),
        await stage.server("late", tokens_required=False),
    )
    stage.worker("releases-worker")
    found, wrong = await fleet(stage, server), []

    release_id = await found.begin()
    await found.report(found.sybils, 900.0)
    await found.report(found.honest, 100.0)
    wrong += [] if await found.ends(release_id, "done") else ["stopped"]
    await found.improve()

    release_id = await found.begin()
    await found.report(found.honest, 100.0)
    wrong += [] if await found.ends(release_id, "done") else ["stalled"]
    await found.improve()

    release_id = await found.begin()

    async def served(server: Server, device: str) -> int:
        answer = await send(server, "GET", f"/plans/{found.plan_id}", hope_device=device)
        return int(json.loads(answer.body)["version"])

    async def diverts() -> bool:
        return await served(late, found.honest[0]) == found.version

    async def follows() -> bool:
        return not await diverts()

    diverted = await within(STEP_S, diverts)
    late.signal(signal.SIGSTOP)
    await found.report(found.sybils, 10.0)
    await found.report(found.honest, 300.0)
    wrong += [] if await found.ends(release_id, "rolled_back") else ["pushed"]
    async with stage.database.write() as session:
        long_ago = datetime.now(UTC) - timedelta(hours=1)
        await session.execute(update(ReleaseRow).where(ReleaseRow.id == release_id).values(ended_at=long_ago))
    late.signal(signal.SIGCONT)
    followed = diverted and await within(STEP_S, follows)
    await stage.stop(server, late)
    measure = f"releases that {SYBILS} devices of one claim beside {HONEST} push, stop or stall, over HTTP, of 3"
    return [
        row(stage, measure, len(wrong), "0", not wrong, wrong=wrong),
        row(stage, "a replica that missed the end of a release still diverts devices", not followed, "False", followed),
    ]


async def claims(stage: Stage, seconds: float) -> list[Row]:
    """Devices that one claim enrols."""
    server, secret = await stage.server("claims", **SHIPPED), new_token("claim")
    async with stage.database.write() as session:
        session.add(ClaimRow(claim_hash=hash_token(secret)))
    prefix = fresh("enrolled")
    bodies = (Enrolment(device_id=f"{prefix}-{number}").model_dump_json().encode() for number in range(10**6))
    began = time.monotonic()
    async with flood(server, (request("POST", "/devices", body, token=secret) for body in bodies)):
        await asyncio.sleep(seconds)
    most = SHIPPED["burst_per_claim"] + SHIPPED["rate_per_claim"] * (time.monotonic() - began) + 1
    count = await stage.number(f"SELECT COUNT(*) FROM devices WHERE id LIKE '{prefix}-%'")
    await stage.stop(server)
    measure = f"devices that one claim enrols in {seconds:g} s"
    return [row(stage, measure, count, f"<= {most:.0f}", 0 < count <= most)]


async def trust(stage: Stage) -> list[Row]:
    """Lone figures of one device, exported again and again while they are folded."""
    server, name = await stage.server("trust", **SHIPPED), fresh("lone")
    soc, most = fresh("soc"), Settings.model_fields["figures_per_device"].default
    token = await enrol(stage, name, soc=soc)
    profile = f"/profiles/{soc}/{FREQUENCY}"
    figures = compressed(upload([ladder(10, "lone")], soc, device=name, rows=2 * most + 8))
    sent = await call(
        server.address, request("POST", "/profiles", figures, token=token, headers={"content-encoding": "zstd"})
    )
    assert sent.status == 202, sent.body
    exported = [stage.request("GET", profile)]
    await Pump([server.address], iter(exported * 20), connections=2).run()
    waiting = await stage.number("SELECT COUNT(*) FROM inbox WHERE folded_at IS NULL")
    stage.worker("trust-worker")
    count = await stage.until(LATENCIES.format(soc), 1, 60.0)
    await stage.stop(server)
    measure = f"lone latencies of one device that count, of {2 * most + 8}, beside an export"
    return [row(stage, measure, count, f"<= {most}", waiting > 0 and 0 < count <= most, waiting=waiting)]


async def assignments(stage: Stage) -> list[Row]:
    """A device takes all that is to be measured, again and again, and uploads nothing."""
    server, names = await stage.server("assignments", **SHIPPED), [fresh("hoarder"), fresh("modest")]
    tokens, soc, graph = [await enrol(stage, name) for name in names], fresh("soc"), ladder(200, fresh("asked"))
    await call(server.address, stage.request("POST", "/models", compressed(graph), content_encoding="zstd"))

    def asked(number: int) -> bytes:
        wanted = MissingRequest(
            model_hash=graph.model_hash, soc=soc, frequency=FREQUENCY, device_id=names[number],
            processors=processors(2), max_items=100_000,
        )  # fmt: skip
        return request("POST", "/profiles/missing", wanted.model_dump_json().encode(), token=tokens[number])

    async def gets() -> bool:
        answer = await call(server.address, asked(1))
        return answer.status == 200 and bool(json.loads(answer.body)["latencies"])

    await call(server.address, asked(0))
    first = await gets()
    began = time.monotonic()
    async with flood(server, iter(lambda: asked(0), None), 1):
        given = await within(STEP_S, gets)
    took_s = time.monotonic() - began
    await stage.stop(server)
    measure = "a device takes all assignments and delivers nothing: until another one is asked, s"
    return [row(stage, measure, round(took_s, 1), f"<= {STEP_S:g}", given and not first)]


async def pages(stage: Stage) -> list[Row]:
    """What web pages send to an open planner on loopback, or ask it for under a name of theirs."""
    server = await stage.server("pages", tokens_required=False)
    foreign = (
        {"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"}, {"host": "evil.example"}, {"host": f"evil.example:{server.port}"},
    )  # fmt: skip
    routes = (
        ("GET", "/fleet"), ("GET", "/devices"), ("POST", "/models"), ("POST", "/profiles"), ("POST", "/plans"),
        ("POST", "/tokens"), ("GET", "/console"), ("DELETE", "/devices/device-1"),
    )  # fmt: skip
    own = (await send(server, "GET", "/fleet")).status
    heard = []
    for headers in foreign:
        for method, path in routes:
            raw = request(method, path, b"{}" if method == "POST" else b"", headers=headers)
            if "host" in headers:
                raw = raw.replace(b"host: localhost\r\n", b"")
            if (await call(server.address, raw)).status != 403:
                heard.append(f"{method} {path} {headers}")
    await stage.stop(server)
    count = len(foreign) * len(routes)
    return [
        row(
            stage,
            f"requests of web pages that an open planner hears, of {count}",
            len(heard),
            "0",
            own == 200 and not heard,
            heard=heard,
        )
    ]


async def starts(stage: Stage) -> list[Row]:
    """A server with its worker is killed and started under load: imports that meet, and what nobody takes over."""
    soc, statuses = fresh("soc"), set[int]()
    server = await stage.server("starts", worker_in_process=True)
    graph = await prepare(stage, server, 40, "starts", soc)
    other = ladder(60, fresh("other"))
    await call(server.address, stage.request("POST", "/models", compressed(other), content_encoding="zstd"))
    question = MissingRequest(
        model_hash=other.model_hash, soc=soc, frequency=FREQUENCY, device_id="d", processors=processors(2), max_items=10
    )
    load = [
        stage.request("POST", "/profiles/missing", question.model_dump_json().encode()),
        stage.request("POST", "/plans", key(graph, soc)), stage.request("GET", "/fleet"),
        stage.request("GET", "/console/plans"), stage.request("GET", "/metrics"),
    ]  # fmt: skip
    for _ in range(STARTS):
        server.kill()
        server.start()
        await server.ready()
        tally = await Pump([server.address], iter(load * 8), connections=16).run()
        statuses |= set(tally.statuses)
    trouble = sum(server.said().count(each) for each in TROUBLE)
    all_done = await stage.until("SELECT COUNT(*) WHERE NOT EXISTS (SELECT * FROM jobs)", 1, 2 * STEP_S) == 1
    await stage.stop(server)
    fine = not trouble and all_done and max(statuses) < 500
    return [
        row(
            stage,
            f"imports that met, in {STARTS} starts under load",
            trouble,
            "0",
            fine,
            left=not all_done,
            statuses=sorted(statuses),
        )
    ]


async def clocks(stage: Stage) -> list[Row]:
    """The clock goes back a day: what was uploaded before, and what a vanished host had leased."""
    server, soc = await stage.server("clocks"), fresh("soc")
    await prepare(stage, server, 20, "clocks", soc)
    day = timedelta(days=1)
    async with stage.database.write() as session:
        ahead = datetime.now(UTC) + day
        await session.execute(update(InboxRow).where(InboxRow.folded_at.is_(None)).values(received_at=ahead))
        leased = {"lease_owner": "gone|1|1", "lease_until": ahead, "started_at": ahead}
        await session.execute(update(JobRow).values(queued_at=ahead, not_before=ahead, rank=ahead, **leased))
    began = time.monotonic()
    stage.worker("clocks-worker")
    folded = await stage.until(LATENCIES.format(soc), 1, 4 * STEP_S)
    took_s = time.monotonic() - began
    await stage.stop(server)
    measure = "the clock goes back a day: until what was uploaded is folded, a worker's start included, s"
    return [row(stage, measure, round(took_s, 1), f"<= {2 * STEP_S:g}", bool(folded) and took_s <= 2 * STEP_S)]


async def audit(stage: Stage) -> list[Row]:
    """The database's owner changes the log, shortens it, empties it, and writes it anew."""
    server = await stage.server("audit")

    async def act() -> None:
        for _ in range(3):
            await call(server.address, stage.request("POST", "/claims", b"{}"))

    async def intact(head: str = "") -> bool:
        answer = await call(server.address, stage.request("GET", f"/audit/proof{head and '?head='}{head}"))
        return answer.status == 200

    await act()
    head = str(json.loads((await call(server.address, stage.request("GET", "/audit/proof"))).body)["head"])
    sound, unseen = await intact(head), []
    on = "" if stage.dialect == "sqlite" else " ON audit"
    async with stage.database.write() as session:
        for trigger in ("audit_append_only", "audit_is_kept"):
            await session.execute(text(f"DROP TRIGGER {trigger}{on}"))
    for name, statements in {
        "changed": ["UPDATE audit SET actor = 'nobody' WHERE id = (SELECT MAX(id) - 1 FROM audit)"],
        "shortened": ["DELETE FROM audit WHERE id = (SELECT MAX(id) FROM audit)"],
        "emptied": ["DELETE FROM audit"],
        "written anew": ["DELETE FROM audit", "DELETE FROM audit_head"],
    }.items():
        async with stage.database.write() as session:
            for statement in statements:
                await session.execute(text(statement))
        if name == "written anew":
            await act()
            sound = sound and await intact()
        unseen += [name] if await intact(head if name == "written anew" else "") else []
    await stage.stop(server)
    return [
        row(
            stage,
            "changes of the audit log that `audit verify` does not see, of 4",
            len(unseen),
            "0",
            sound and not unseen,
            unseen=unseen,
        )
    ]

"""A week of a large fleet on PostgreSQL, through the service's own processes: what it costs, and how large it gets.

All devices are rows, with their tokens, their last reports on two models (one that all run, and another), and the
plans of every SoC and model. Of each day a window of seconds is lived at the rate of the whole fleet: devices drawn at
random revalidate, report, upload and enrol, over two API processes, in the proportions of a day; the processor time of
the window times 86 400 over its seconds is that of the day. What happens once is not sampled: a release that does harm,
one that does not, an outage, figures that move.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from bisect import bisect
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from benchmarks.fleet import people
from benchmarks.fleet.cost import Cost, Meter
from benchmarks.service.fixtures import FREQUENCY, compressed, key, ladder, upload
from benchmarks.service.pump import Pump, Tally, request
from benchmarks.service.stage import Server, Stage, call
from hope_schema import DeviceReport, Enrolment, MeasuredRun, ModelGraph, ReleaseRequest, RolloutPolicy
from hope_schema.proof import hash_token
from planner_api.db.tables import ClaimRow
from planner_api.devices.groups import position
from planner_api.web.tokens import new_token

SOCKETS = 256
DAY_S = 86_400.0
DAYS = 7
SESSIONS, REPORTS = 4, 24
"""Of one device on one day: plans revalidated, and reports sent."""
ENROLLING, UPLOADING = 0.02 / DAYS, 0.05 / DAYS
"""Of a fleet on one day: new phones, and devices that upload."""
VERSIONS = 3
"""Of each plan by the end of the week: the first, the optimised one, and one that follows figures that moved."""
MEASURED = "measured"
"""The SoC whose plans are solved here."""
SLOWER, HIT, NOISE = 0.1, 0.1, 0.03
"""The harmful release: how much slower, on which part of the SoCs; the noise of a report, a median of 64 runs."""
AWAY_S = 3.0
HARM_S = 60.0
"""After this a release that does harm is taken back by hand."""
TABLES = (
    "devices", "tokens", "drift_reports", "inbox", "plans", "plan_versions", "profiles", "release_devices", "audit",
)  # fmt: skip
FLEET = "fleet-"


@dataclass
class Week:
    """What became of the week.

    Attributes:
        devices: of the fleet.
        window_s: seconds lived of each day.
        calls: of the windows, by status.
        cost: processor time of the windows.
        reported: reports that were answered with 204, of windows, releases and outage.
        counted: what the plans' versions say of them.
        rows: of each table at the end; ``bytes``: with indexes.
        took_s: what happened once, in seconds.
        harmed: part of the fleet that the harmful release reached; ``undone``: whether it came back by itself.
        away: answers while the database was away, by status; ``after_away``: of the calls after it.
    """

    devices: int
    window_s: float = 0.0
    calls: Counter[int] = field(default_factory=Counter)
    cost: Cost = field(default_factory=Cost)
    reported: int = 0
    counted: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    harmed: float = 0.0
    undone: bool = False
    away: Counter[int] = field(default_factory=Counter)
    after_away: Counter[int] = field(default_factory=Counter)

    @property
    def device_day(self) -> Cost:
        """Processor time of one device's day."""
        return self.cost * (DAY_S / (self.window_s * DAYS) / self.devices)


class Fleet:
    """The fleet and the processes that serve it."""

    def __init__(self, stage: Stage, devices: int, socs: int, models: int) -> None:
        self.stage, self.devices, self.socs = stage, devices, socs
        self.graphs = [ladder(24, f"model-{number}", salt=1000 + number) for number in range(models)]
        self.random = random.Random(7)
        self.week = Week(devices)
        self.claim = new_token("claim")
        self.servers: list[Server] = []
        self.enrolled = self.uploaded = 0

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Of the API processes."""
        return [server.address for server in self.servers]

    async def open(self) -> None:
        """Start the processes and fill the database."""
        self.servers = [await self.stage.server(f"week{number}") for number in range(2)]
        self.stage.worker("week-worker", solve_budget_s=0.05)
        await self._plan_one_soc()
        began = time.monotonic()
        for number, graph in enumerate(self.graphs):
            served = VERSIONS - 1 if number == 0 else None
            plan_id = await self._plan_of(graph)
            await people.copy_plan(self.stage, plan_id, f"m{number}-", self.socs, versions=VERSIONS, served=served)
        await people.copy_profile(self.stage, MEASURED, self.socs)
        await people.enrol(self.stage, FLEET, self.devices, self.socs)
        fleet = self.stage, FLEET, self.devices, self.socs
        await people.report(*fleet, plan="'m0-' || (i % :socs)", version=VERSIONS - 1)
        other = f"'m' || (1 + i / :socs % {len(self.graphs) - 1}) || '-' || (i % :socs)"
        await people.report(*fleet, plan=other, version=VERSIONS)
        await people.run(self.stage, "ANALYZE")
        async with self.stage.database.write() as session:
            session.add(ClaimRow(claim_hash=hash_token(self.claim)))
        self.week.took_s["to fill the database"] = time.monotonic() - began

    async def _plan_one_soc(self) -> None:
        """Graphs and figures of one SoC over HTTP, and a real plan of each model for it; the others get copies."""
        sends = [("/models", compressed(graph)) for graph in self.graphs]
        sends += [("/profiles", compressed(upload(self.graphs, MEASURED, device=f"d{n}"))) for n in range(3)]
        for path, body in sends:
            answer = await call(self.addresses[0], self.stage.request("POST", path, body, content_encoding="zstd"))
            assert answer.status in (200, 201, 202), answer.body
        for graph in self.graphs:
            await call(self.addresses[0], self.stage.request("POST", "/plans", key(graph, MEASURED)))
        await self.stage.until("SELECT COUNT(*) FROM plans WHERE NOT provisional", len(self.graphs), 300.0)

    async def _plan_of(self, graph: ModelGraph) -> str:
        answer = await call(self.addresses[0], self.stage.request("POST", "/plans", key(graph, MEASURED)))
        return str(json.loads(answer.body)["plan_id"])

    async def live_days(self, window_s: float) -> None:
        """A window of each day at the whole fleet's rate, and what happens once between them."""
        self.week.window_s = window_s
        once: dict[int, Callable[[], Awaitable[None]]] = {
            1: self.release_harm, 2: self.release_all, 4: self.move_figures, 5: self.go_away,
        }  # fmt: skip
        meter = await Meter.on(self.stage, self.servers)
        for day in range(DAYS):
            calls = self._calls(window_s)
            before = meter.read()
            tally = await self.send(calls, len(calls) / window_s)
            self.week.cost += meter.read() - before
            self.week.calls.update(tally.statuses)
            if day in once:
                await once[day]()

    def _calls(self, window_s: float) -> list[bytes]:
        """What the whole fleet sends in a window, shuffled."""
        share = self.devices * window_s / DAY_S
        kinds = ((SESSIONS, self._get), (REPORTS, self._report), (ENROLLING, self._enrol), (UPLOADING, self._upload))
        calls = [make() for often, make in kinds for _ in range(round(often * share))]
        self.random.shuffle(calls)
        return calls

    def _device(self) -> int:
        return self.random.randint(1, self.devices)

    def _get(self) -> bytes:
        number = self._device()
        return request("GET", f"/plans/m0-{number % self.socs}", token=token(number), headers={"if-none-match": '"?"'})

    def _report(self) -> bytes:
        return self.report(self._device(), VERSIONS - 1, 1.0)

    def report(self, number: int, version: int, factor: float) -> bytes:
        """A device says how long a version of its plan of the first model took."""
        us = 100.0 * factor * self.random.lognormvariate(0.0, NOISE)
        run = MeasuredRun(plan_id=f"m0-{number % self.socs}", plan_version=version, measured_us=us, runs=64)
        body = DeviceReport(soc=f"soc-{number % self.socs}", frequency=FREQUENCY, measured=(run,)).model_dump_json()
        return request("PUT", f"/devices/{FLEET}{number}/report", body.encode(), token=token(number))

    def _enrol(self) -> bytes:
        self.enrolled += 1
        message = Enrolment(device_id=f"new-{self.enrolled}", soc=f"soc-{self.enrolled % self.socs}")
        return request("POST", "/devices", message.model_dump_json().encode(), token=self.claim)

    def _upload(self) -> bytes:
        self.uploaded += 1
        number = self._device()
        message = upload(
            self.graphs[:1], f"soc-{number % self.socs}", device=f"{FLEET}{number}", number=self.uploaded, spread=0.01
        )
        headers = {"content-encoding": "zstd"}
        return request("POST", "/profiles", compressed(message), token=token(number), headers=headers)

    async def send(self, calls: list[bytes], per_second: float | None = None) -> Tally:
        """Send calls over both processes, and count the reports that were taken."""
        pump = Pump(
            self.addresses, iter(calls), connections=SOCKETS, per_second=per_second,
            on_answer=lambda answer: self._note(answer.status),
        )  # fmt: skip
        return await pump.run()

    def _note(self, status: int) -> None:
        self.week.reported += status == 204

    async def _release(self) -> str:
        """Begin a release of the first model to the whole fleet, without the hour that a stage lasts."""
        wanted = ReleaseRequest(model=self.graphs[0].model_hash, hold_s=0.0, again=True)
        body = wanted.model_dump_json().encode()
        began = time.monotonic()
        answer = await call(self.addresses[0], self.stage.request("POST", "/releases", body))
        self.week.took_s["to begin a release"] = time.monotonic() - began
        assert answer.status == 201, answer.body
        return str(json.loads(answer.body)["release_id"])

    async def _look(self, release_id: str, verb: str = "") -> dict[str, object]:
        method = "POST" if verb else "GET"
        answer = await call(self.addresses[1], self.stage.request(method, f"/releases/{release_id}{verb}"))
        assert answer.status == 200, answer.body
        found: dict[str, object] = json.loads(answer.body)
        return found

    async def release_harm(self) -> None:
        """The devices that get it report, slower on some SoCs, until the planner takes the version back."""
        policy = RolloutPolicy(rollout="held").model_dump_json().encode()
        held = self.stage.request("PUT", f"/models/{self.graphs[0].model_hash}/rollout", policy)
        assert (await call(self.addresses[0], held)).status == 204
        release_id = await self._release()
        places = sorted((position(f"{FLEET}{number}", release_id), number) for number in range(1, self.devices + 1))
        told = have = 0
        deadline = time.monotonic() + HARM_S
        while (found := await self._look(release_id))["state"] == "running" and time.monotonic() < deadline:
            have = bisect(places, (float(str(found["share"])), 0))
            some = places[told : min(have, told + 250)]
            told += len(some)
            hit = self.socs * HIT
            await self.send([self.report(n, VERSIONS, 1.0 + SLOWER * (n % self.socs < hit)) for _, n in some])
            if not some:
                await asyncio.sleep(0.2)
        self.week.undone = found["state"] == "rolled_back"
        self.week.harmed = have / self.devices
        if not self.week.undone:
            await self._look(release_id, "/rollback")

    async def release_all(self) -> None:
        """A release that an admin approves stage by stage: how long the last step over all plans takes."""
        release_id = await self._release()
        for _ in range(4):
            began = time.monotonic()
            found = await self._look(release_id, "/approve")
        self.week.took_s["to end a release"] = time.monotonic() - began
        assert found["state"] == "done", found

    async def move_figures(self) -> None:
        """Three devices say that a SoC takes half as long again: until every plan of it has a newer version."""
        before = "SELECT COUNT(*) FROM plan_versions WHERE plan_id LIKE 'p%'"
        had = await self.stage.number(before)
        began = time.monotonic()
        for number in range(3):
            message = upload(self.graphs, MEASURED, device=f"d{number}", number=1, factor=1.5)
            body = self.stage.request("POST", "/profiles", compressed(message), content_encoding="zstd")
            assert (await call(self.addresses[0], body)).status == 202
        await self.stage.until(before, had + len(self.graphs), 120.0)
        self.week.took_s["until moved figures are in every plan of a SoC"] = time.monotonic() - began

    async def go_away(self) -> None:
        """The database lets nobody in for a while; then everything goes on by itself."""
        async with people.locked_out(self.stage):
            tally = await self.send([self._report() for _ in range(300)], 300 / AWAY_S)
            self.week.away = tally.statuses
        began = time.monotonic()
        for address in self.addresses:
            while (await call(address, request("GET", "/readyz"))).status != 200:
                assert time.monotonic() - began < 60.0
                await asyncio.sleep(0.1)
        self.week.took_s["until both processes are ready after the outage"] = time.monotonic() - began
        self.week.after_away = (await self.send([self._report() for _ in range(500)], 500.0)).statuses

    async def count(self) -> None:
        """Sizes of the tables, and whether every report that was answered is in the sums."""
        number = self.stage.number
        self.week.counted = await number("SELECT SUM(reports) FROM plan_versions WHERE plan_id LIKE 'm0-%'")
        for name in TABLES:
            self.week.bytes[name] = await number(f"SELECT pg_total_relation_size('{name}')")
            self.week.rows[name] = await number(f"SELECT COUNT(*) FROM {name}")


def token(number: int) -> str:
    """Of a device of the fleet."""
    return people.SECRET.format(device_id=f"{FLEET}{number}")


async def live(stage: Stage, devices: int, socs: int, models: int, window_s: float) -> Week:
    """Live the week."""
    fleet = Fleet(stage, devices, socs, models)
    await fleet.open()
    await fleet.live_days(window_s)
    await fleet.count()
    await stage.stop(*fleet.servers)
    return fleet.week

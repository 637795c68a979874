"""Small models, processors and uploads for tests of the planner's HTTP side."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Literal
from unittest.mock import patch

from fastapi.testclient import TestClient
from sqlalchemy import event, select

from hope_schema import (
    Enrolment,
    Job,
    LatencyColumns,
    Missing,
    MissingRequest,
    ModelGraph,
    Observations,
    Op,
    PlanReply,
    PlanRequest,
    ProblemDetails,
    Processor,
    Profile,
    Tensor,
    TransferColumns,
)
from hope_schema.proof import hash_token
from planner_api import app as fleets
from planner_api import embedded
from planner_api.compression import loaded
from planner_api.db.engine import Database
from planner_api.db.tables import ClaimRow, PlanRow, TokenRow
from planner_api.devices import repository as devices
from planner_api.devices import service
from planner_api.devices.audit import local_actor
from planner_api.jobs.worker import Worker
from planner_api.plans.solve import BETTER, FIRST
from planner_api.profiles import answering
from planner_api.profiles.jobs import FOLD, OUTDATED
from planner_api.runtime import KINDS
from planner_api.settings import Settings
from planner_api.web.application import App
from planner_api.web.tokens import Kind, new_token
from tests.planner.in_thread import InThread, forget_all

SOC, FREQUENCY = "soc-1", "max"
QUICK = (FOLD, OUTDATED, FIRST)
"""What somebody waits for; better plans are made when a test says so."""
EVERY = (*QUICK, BETTER)
PATIENT = {"first_wait_s": 60.0, "lease_s": 60.0}
"""No answer of a test hangs on how fast the machine is: who is waited for comes, and nobody vanishes."""
JSON = {"content-type": "application/json"}
PROCESSORS = tuple(
    Processor(
        id=f"ort@{core}",
        runtime="ort",
        version="1.2",
        threads=1,
        core_class=kind,
        resources=(f"cpu{core}",),
        place=f"host/{kind}",
    )
    for core, kind in enumerate(("big", "little"))
)
_uploads = itertools.count()


def chain(length: int = 4, name: str = "chain") -> ModelGraph:
    """A chain of convolutions, each with a signature of its own."""
    tensors = tuple(Tensor(name=f"t{i}", shape=(1, 8, 4, 4), dtype="float32") for i in range(length + 1))
    ops = tuple(
        Op(type="Conv", attributes={"group": i + 1}, inputs=(f"t{i}",), outputs=(f"t{i + 1}",)) for i in range(length)
    )
    return ModelGraph(name=name, tensors=tensors, ops=ops, inputs=("t0",), outputs=(f"t{length}",))


def missing_request(graph: ModelGraph, device_id: str = "device-1", **more: Any) -> MissingRequest:
    """What a device asks before it measures."""
    return MissingRequest(
        model_hash=graph.model_hash, soc=SOC, frequency=FREQUENCY, device_id=device_id, processors=PROCESSORS, **more
    )


def plan_request(graph: ModelGraph, **more: Any) -> PlanRequest:
    """The key of the plan of a graph."""
    return PlanRequest(**{"jobs": (Job(model_hash=graph.model_hash),), "soc": SOC, "frequency": FREQUENCY, **more})


def measure(
    missing: Missing, device_id: str = "device-1", cost: Callable[[str, str], float | None] | None = None, **more: Any
) -> Observations:
    """What a device uploads: 10 µs for every op on the big core, 25 on the little one, 1 µs for every transfer."""
    price = cost or (lambda signature, kind: 10.0 if kind.endswith("big") else 25.0)
    latencies, transfers = missing.latencies, missing.transfers
    values: dict[str, Any] = {
        "soc": SOC,
        "frequency": FREQUENCY,
        "device_id": device_id,
        "upload_id": f"upload-{next(_uploads)}",
        "processors": PROCESSORS,
        "latencies": LatencyColumns(
            signature=tuple(item.signature for item in latencies),
            kind=tuple(item.kind for item in latencies),
            us=tuple(price(item.signature, item.kind) for item in latencies),
            spread_us=(0.1,) * len(latencies),
            count=(5,) * len(latencies),
        ),
        "transfers": TransferColumns(
            tensor=tuple(item.tensor for item in transfers),
            source=tuple(item.source for item in transfers),
            target=tuple(item.target for item in transfers),
            us=(1.0,) * len(transfers),
            spread_us=(0.0,) * len(transfers),
            count=(5,) * len(transfers),
        ),
    }
    return Observations(**{**values, **more})


@contextmanager
def serving(database_url: str, *, works: Sequence[str] = QUICK, **settings: Any) -> Iterator[Api]:
    """Run the application on a database, with a worker in its process that does what somebody waits for, alone.

    ``works``: the kinds of jobs that it does. Nothing is folded in the background unless asked for.
    """
    values = {
        "database_url": database_url,
        "fold_interval_s": 3600.0,
        "worker_in_process": False,
        **PATIENT,
        **settings,
    }
    chosen = Settings(**values)
    app = (embedded if chosen.embedded else fleets).create_app(chosen)
    forget_all()
    with (
        patch("planner_api.profiles.service.FOLD_WAIT_S", PATIENT["first_wait_s"]),
        TestClient(app, raise_server_exceptions=False) as client,
    ):
        api = Api(app, client)
        with api.working(works) if works and not app.planner.settings.embedded else nullcontext():
            yield api


class Api:
    """A client that speaks the contract."""

    def __init__(self, app: App[Any], client: TestClient) -> None:
        self.app = app
        self.client = client

    def post(self, path: str, message: Any, **headers: str) -> Any:
        """Send a message of the contract, or raw bytes."""
        body = message if isinstance(message, bytes) else message.model_dump_json().encode()
        return self.client.post(path, content=body, headers={**JSON, **headers})

    def put(self, path: str, message: Any, **headers: str) -> Any:
        """Send a message of the contract with PUT."""
        return self.client.put(path, content=message.model_dump_json(), headers={**JSON, **headers})

    def await_(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Await a coroutine function in the application's own event loop."""
        assert self.client.portal is not None
        return self.client.portal.call(call, *arguments)

    @contextmanager
    def working(self, kinds: Sequence[str]) -> Iterator[None]:
        """Have a worker do jobs of these kinds, in the application's own event loop."""
        planner, stop = self.app.planner, asyncio.Event()
        every = [kind(planner.database, planner.settings) for kind in KINDS]
        metrics = getattr(planner, "metrics", None)
        worker = Worker(
            planner.queue,
            every,
            [tuple(kinds)],
            InThread,
            tell=partial(answering.answer, planner.database),
            count=metrics and metrics.job,
            grace_s=5.0,
        )
        assert self.client.portal is not None
        running = self.client.portal.start_task_soon(worker.run, stop)
        try:
            yield
        finally:
            self.client.portal.call(stop.set)
            running.result(20)

    def learn(self, graph: ModelGraph, device_id: str = "device-1", **more: Any) -> Observations:
        """Send a graph, measure all that is missing and upload it; return the upload."""
        assert self.post("/models", graph).status_code in (200, 201)
        missing = self.missing(graph, device_id)
        upload = measure(missing, device_id, **more)
        assert self.post("/profiles", upload).status_code == 202
        return upload

    def missing(
        self, graph: ModelGraph, device_id: str = "device-1", header: dict[str, str] | None = None, **more: Any
    ) -> Missing:
        """Ask what is missing; ``header`` says by whom."""
        response = self.post("/profiles/missing", missing_request(graph, device_id, **more), **(header or {}))
        assert response.status_code == 200, response.text
        return Missing.model_validate_json(response.content)

    def upload(self, upload: Observations, header: dict[str, str]) -> Any:
        """Upload, and have it folded; the answer."""
        answer = self.post("/profiles", upload, **header)
        if answer.status_code == 202:
            self.await_(self.app.planner.profiles.folded, upload.soc, upload.frequency)
        return answer

    def profile(self) -> Profile:
        """The profile as it stands, of the SoC that everything here is of."""
        profiles = self.app.planner.profiles
        self.await_(profiles.folded, SOC, FREQUENCY)
        return loaded(Profile, self.await_(profiles.read, SOC, FREQUENCY))

    def plan(self, graph: ModelGraph, **more: Any) -> PlanReply:
        """Ask for a plan."""
        response = self.post("/plans", plan_request(graph, **more))
        assert response.status_code == 200, response.text
        return PlanReply.model_validate_json(response.content)

    def counted(self) -> tuple[int, int]:
        """Return the hits and misses that the database counts for the one plan it has, those in memory included."""
        planner = self.app.planner

        async def counts() -> tuple[int, int]:
            await planner.plans.flush_counts()
            async with planner.database.read() as session:
                row = (await session.execute(select(PlanRow.hits, PlanRow.misses))).one()
                return row.hits, row.misses

        found: tuple[int, int] = self.await_(counts)
        return found


def problem(response: Any, status: int, kind: str) -> ProblemDetails:
    """Assert that an answer is the problem that it should be, and return it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    found = ProblemDetails.model_validate_json(response.content)
    assert found.type == f"urn:hope:{kind}"
    assert found.status == status
    assert found.request_id == response.headers["x-request-id"]
    return found


def bearer(token: str) -> dict[str, str]:
    """The header of a token."""
    return {"authorization": f"Bearer {token}"}


def enrol(api: Api, claim: str, device_id: str) -> Any:
    """Ask for a token of the device's own."""
    return api.post("/devices", Enrolment(device_id=device_id, soc=SOC), **bearer(claim))


def token_row(secret: str, scope: Kind, **more: Any) -> ClaimRow | TokenRow:
    """What the database keeps of a token, or a claim."""
    if scope == "claim":
        return ClaimRow(claim_hash=hash_token(secret), **more)
    return TokenRow(token_hash=hash_token(secret), scope=scope, **more)


def make_token(api: Api, scope: Kind, **more: Any) -> str:
    """Make a token of a scope."""
    made = new_token(scope)

    async def store() -> None:
        async with api.app.planner.database.write() as session:
            session.add(token_row(made, scope, **more))

    api.await_(store)
    return made


def admin_token(api: Api) -> str:
    """Make an admin's token."""
    return make_token(api, "admin")


def enrolled(api: Api, name: str) -> dict[str, str]:
    """Enrol a device; return the header that it sends from then on."""
    token = new_token("device")

    async def store() -> None:
        async with api.app.planner.database.write() as session:
            await devices.enrol(session, name, Enrolment(device_id=name).model_dump(exclude={"device_id"}))
            session.add(token_row(token, "device", device_id=name))

    api.await_(store)
    return bearer(token)


def issue(url: str, kind: Literal["admin", "viewer", "claim"], **more: Any) -> str:
    """Make a token, or a claim, on a database; return its secret."""

    async def make() -> str:
        database = Database(url)
        try:
            return (await service.issue(database, kind, local_actor(), **more)).token
        finally:
            await database.close()

    return asyncio.run(make())


def eventually(check: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Whether something becomes true in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.02)
    return False


def queries_of(api: Api) -> list[str]:
    """The statements that the planner's database is sent from now on."""
    found: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        found.append(statement)

    for engine in (api.app.planner.database.reader, api.app.planner.database.writer):
        event.listen(engine.sync_engine, "before_cursor_execute", note)
    return found

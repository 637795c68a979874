"""Releases, the fleet view, and a planner whose database goes away, over HTTP."""

from __future__ import annotations

import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import select, update

import benchmarks.service.__main__
from hope_schema import (
    DeviceReport,
    Fanout,
    FleetModelPage,
    FleetPlanPage,
    FleetProfilePage,
    FleetSummary,
    LatencyColumns,
    MeasuredRun,
    merge,
)
from planner_api.db.migrate import upgrade
from planner_api.db.tables import JobRow, PlanVersionRow
from planner_api.jobs.queue import take
from planner_api.jobs.wanted import Wanted, put
from planner_api.plans.service import DEVICE_WAITS
from planner_api.plans.solve import BETTER, BetterPlan
from planner_api.profiles.jobs import OUTDATED, key_of
from planner_api.web.logs import stay_quiet
from tests import CAMPAIGN
from tests.planner.jobs_help import solve_one
from tests.planner.postgres import Postgres
from tests.planner.samples import FREQUENCY, PROCESSORS, SOC, Api, chain, measure, plan_request, serving

GRAPH = chain()
SOCS = ("soc-1", "soc-2", "soc-3")


def know(api: Api, *socs: str) -> None:
    """Let the fleet know figures of these SoCs."""
    api.learn(GRAPH)
    for number, soc in enumerate(socs):
        missing = api.client.post(
            "/profiles/missing",
            content=json.dumps({**_missing(), "soc": soc, "device_id": f"device-{number}"}),
            headers={"content-type": "application/json"},
        )
        from hope_schema import Missing

        upload = measure(Missing.model_validate_json(missing.content), f"device-{number}", soc=soc)
        assert api.post("/profiles", upload).status_code == 202

    for soc in (SOC, *socs):
        api.await_(api.app.planner.profiles.folded, soc, FREQUENCY)


@pytest.fixture
def fleet(copied: Callable[..., str]) -> Iterator[Api]:
    """A planner that knows figures of several SoCs."""
    with serving(copied(know_all)) as running:
        yield running


def know_all(url: str) -> None:
    """Let a planner on a database know figures of several SoCs."""
    with serving(url) as api:
        know(api, *SOCS)


def _missing() -> dict[str, Any]:
    from tests.planner.samples import missing_request

    found: dict[str, Any] = json.loads(missing_request(GRAPH).model_dump_json(exclude_none=True))
    return found


def release(api: Api) -> Any:
    """Ask for a release of the small model."""
    return api.client.post(f"/models/{GRAPH.model_hash}/plans")


def ask(api: Api, soc: str = SOC) -> Any:
    """Ask for the plan as an agent does: for all processors of its device, in the device's order."""
    names = tuple(processor.id for processor in reversed(PROCESSORS))
    return api.post("/plans", plan_request(GRAPH, soc=soc, processors=names))


def test_a_release_plans_a_model_for_the_whole_fleet(fleet: Api) -> None:
    """One row per known SoC and frequency is queued, progress is told, and devices then hit a warm cache."""
    accepted = release(fleet)
    assert accepted.status_code == 202
    fanout = Fanout.model_validate_json(accepted.content)
    where = accepted.headers["location"]
    assert where == f"/fanouts/{fanout.fanout_id}"
    assert (fanout.total, fanout.queued, fanout.finished) == (3, 3, False)
    plans = FleetPlanPage.model_validate_json(fleet.client.get("/fleet/plans").content).plans
    assert sorted(plan.soc for plan in plans) == sorted(SOCS)
    for number in range(len(plans)):
        solve_one(fleet)
        progress = Fanout.model_validate_json(fleet.client.get(where).content)
        assert (progress.done, progress.finished) == (number + 1, number == 2)
    for soc in SOCS:
        answer = ask(fleet, soc)
        assert (answer.status_code, answer.headers["hope-plan-cache"]) == (200, "hit")
        assert answer.json()["provisional"] is False


def test_releasing_twice_queues_nothing_twice(fleet: Api) -> None:
    """A second release waits for the same plans; what is solved counts as done at once."""
    first = Fanout.model_validate_json(release(fleet).content)
    solve_one(fleet)
    second = Fanout.model_validate_json(release(fleet).content)
    assert first.fanout_id != second.fanout_id
    assert (second.total, second.done, second.queued) == (3, 1, 2)
    assert len(FleetPlanPage.model_validate_json(fleet.client.get("/fleet/plans").content).plans) == 3


@pytest.mark.above_databases
def test_a_device_that_asks_during_a_release_gets_a_plan_at_once(api: Api) -> None:
    """The release's row has no plan yet: the device gets a first one; the queued solve is neither lost nor doubled."""
    know(api, SOC)
    release(api)
    assert priorities(api) == [0]
    answer = ask(api)
    assert answer.status_code == 200
    assert (answer.json()["version"], answer.json()["provisional"]) == (1, True)
    assert priorities(api) == [DEVICE_WAITS], "it overtakes what nobody waits for"
    solve_one(api)
    better = ask(api).json()
    assert (better["version"], better["provisional"]) == (2, False)
    summary = FleetSummary.model_validate_json(api.client.get("/fleet").content)
    assert summary.plans["queued"] == 0


def test_a_device_that_asks_while_a_worker_solves_does_not_break_its_lease(api: Api) -> None:
    """The first plan is stored beside a running solve, whose better plan then becomes the next version."""
    know(api, SOC)
    release(api)

    async def lease() -> Any:
        async with api.app.planner.database.write() as session:
            return await take(session, [BETTER], "worker", 60.0)

    held = api.await_(lease)
    assert ask(api).json()["version"] == 1

    async def renew() -> bool:
        return bool(await api.app.planner.queue.renew(held))

    assert api.await_(renew)


def priorities(api: Api) -> list[int]:
    """The priorities of all jobs."""

    async def read() -> list[int]:
        async with api.app.planner.database.read() as session:
            return list(await session.scalars(select(JobRow.priority)))

    return list(api.await_(read))


def fail(api: Api, error: str) -> str:
    """Let the first better plan in the queue fail for good; return its id."""

    async def work() -> str:
        planner = api.app.planner
        kind = BetterPlan(planner.database, planner.settings)
        async with planner.database.write() as session:
            lease = await take(session, [BETTER], "test", 60.0)
        assert lease is not None
        task = await kind.load(lease)
        assert await planner.queue.fail(kind, lease, error, permanent=True, task=task) is False
        return lease.key

    return str(api.await_(work))


@pytest.mark.above_databases
def test_a_released_plan_that_failed_is_left_alone_until_its_figures_move(api: Api) -> None:
    """A plan that failed on the very profile there is is not queued again, and is once a figure of it moved."""
    know(api, SOC)
    release(api)
    failed = fail(api, "no processor supports it")

    async def compare() -> None:
        planner = api.app.planner
        async with planner.database.write() as session:
            await put(session, Wanted(OUTDATED, key_of(SOC, FREQUENCY)))
        await planner.queue.ended((OUTDATED, key_of(SOC, FREQUENCY)), timeout_s=20.0)

    api.await_(compare)
    plans = FleetPlanPage.model_validate_json(api.client.get("/fleet/plans").content).plans
    assert [plan.status for plan in plans] == ["failed"]
    moved = measure(api.missing(GRAPH, "device-9"), "device-9")
    signatures = [op.signature for op in merge(GRAPH)]
    moved = moved.model_copy(
        update={
            "latencies": LatencyColumns(
                signature=tuple(signatures),
                kind=(PROCESSORS[0].kind,) * len(signatures),
                us=(500.0,) * len(signatures),
                spread_us=(0.0,) * len(signatures),
                count=(5,) * len(signatures),
            )
        }
    )
    assert api.post("/profiles", moved).status_code == 202
    api.await_(api.app.planner.profiles.folded, SOC, FREQUENCY)
    api.await_(compare)
    assert solve_one(api) == failed


def test_an_unknown_model_or_release_is_not_found(api: Api) -> None:
    """404 with the cure."""
    assert api.client.post(f"/models/{'0' * 64}/plans").json()["type"] == "urn:hope:model-unknown"
    assert api.client.get("/fanouts/f-unknown").json()["type"] == "urn:hope:fanout-unknown"


def test_the_fleet_view_adds_up(fleet: Api) -> None:
    """Coverage, gap, age, hits and failures of what happened."""
    release(fleet)
    first = solve_one(fleet)
    plans = FleetPlanPage.model_validate_json(fleet.client.get("/fleet/plans").content).plans
    broken = fail(fleet, "out of memory")
    (solved,) = (plan for plan in plans if plan.plan_id == first)
    for _ in range(4):
        ask(fleet, solved.soc)

    async def flush() -> None:
        await fleet.app.planner.plans.flush_counts()

    fleet.await_(flush)
    summary = FleetSummary.model_validate_json(fleet.client.get("/fleet").content)
    assert summary.plans == {"queued": 1, "solving": 0, "done": 1, "failed": 1}
    assert (summary.socs, summary.profiles, summary.models, summary.hits) == (3, 3, 1, 4)
    (model,) = FleetModelPage.model_validate_json(fleet.client.get("/fleet/models").content).models
    assert (model.coverage, model.plans, model.hits, model.hit_rate) == (pytest.approx(1 / 3), 3, 4, 1.0)
    profiles = FleetProfilePage.model_validate_json(fleet.client.get("/fleet/profiles?limit=2").content)
    assert [item.soc for item in profiles.profiles] == ["soc-1", "soc-2"]
    rest = FleetProfilePage.model_validate_json(fleet.client.get(f"/fleet/profiles?offset={profiles.next}").content)
    assert ([item.soc for item in rest.profiles], rest.next) == (["soc-3"], None)
    failed = FleetPlanPage.model_validate_json(fleet.client.get("/fleet/plans?status=failed").content).plans
    assert [(plan.plan_id, plan.error) for plan in failed] == [(broken, "out of memory")]
    done = FleetPlanPage.model_validate_json(fleet.client.get("/fleet/plans?status=done").content).plans
    assert done[0].age_s is not None
    assert 0 <= done[0].age_s < 120
    assert (done[0].hits, done[0].gap is not None) == (4, True)


def test_a_profile_counts_its_devices_however_many_there_are(api: Api) -> None:
    """Of each figure the votes of some devices are kept; who had a part in the profile is counted all the same."""
    upload = api.learn(chain())
    for number in range(2, 41):
        sent = upload.model_copy(update={"device_id": f"device-{number}", "upload_id": f"upload-{number}"})
        assert api.post("/profiles", sent).status_code == 202
    api.missing(chain())  # answered once what waits is folded
    [profile] = api.client.get("/fleet/profiles").json()["profiles"]
    assert (profile["devices"], profile["uploads"]) == (40, 40)


def test_a_database_that_goes_away_is_said_cleanly_and_forgiven() -> None:
    """While PostgreSQL is gone: 503 with Retry-After and a request id, liveness stays; cached plans are still served.
    After it is back everything answers by itself, and nothing that was acknowledged is lost.
    """
    with tempfile.TemporaryDirectory(prefix="hope-pg-", ignore_cleanup_errors=True) as folder:
        server = Postgres(Path(folder) / "data", durable=False)
        server.start()
        try:
            url = server.create("hope")
            upgrade(url)
            with serving(url) as api:
                know(api, SOC)
                plan_id = api.post("/plans", plan_request(GRAPH)).json()["plan_id"]
                deadline = time.monotonic() + 60
                while (
                    api.app.planner.plan_cache.get((plan_id, None)) is None
                ):  # the news of version 1 may cross the first read
                    assert api.client.get(f"/plans/{plan_id}").status_code == 200
                    assert time.monotonic() < deadline
                server.stop()
                began = time.monotonic()
                for method, path in (("GET", f"/models/{GRAPH.model_hash}"), ("GET", "/fleet"), ("GET", "/readyz")):
                    answer = api.client.request(method, path)
                    assert (answer.status_code, answer.json()["type"]) == (503, "urn:hope:unavailable"), path
                    assert int(answer.headers["retry-after"]) >= 1
                    assert answer.json()["request_id"] == answer.headers["x-request-id"]
                assert api.client.get("/healthz").status_code == 200
                assert b'hope_database{state="up"} 0.0' in api.client.get("/metrics").content
                assert api.client.get(f"/plans/{plan_id}").status_code == 200
                time.sleep(max(0.0, (10.0 if CAMPAIGN else 0.5) - (time.monotonic() - began)))
                server.start()
                deadline = time.monotonic() + 60
                while api.client.get("/readyz").status_code != 200:
                    assert time.monotonic() < deadline
                    time.sleep(0.1)
                assert api.client.get(f"/models/{GRAPH.model_hash}").status_code == 200
                solve_one(api)
                while api.client.get(f"/plans/{plan_id}").json()["version"] != 2:
                    assert time.monotonic() < deadline, "the news of a version is heard again after the outage"
                    time.sleep(0.1)
        finally:
            server.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"] if CAMPAIGN else ["sqlite"])
def test_kill_9_loses_nothing_and_solves_nothing_twice(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path
) -> None:
    """Real servers and workers are killed under load; the full count of fifty kills runs in the campaign."""
    url = request.getfixturevalue("sqlite_url" if kind == "sqlite" else "postgres_url")
    row = benchmark(tmp_path, url, "--only", "kills", "--kills", "50" if CAMPAIGN else "2")[0]
    assert row["value"] is not None, row["details"]
    assert (row["value"]["lost"], row["value"]["twice"]) == (0, 0)
    assert row["details"]["plans"] > 0


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"] if CAMPAIGN else ["postgresql"])
def test_a_burst_over_two_processes_is_solved_once(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> None:
    """Two real servers, one worker, many clients: one key is leased once, and each of several keys once."""
    url = request.getfixturevalue("sqlite_url" if kind == "sqlite" else "postgres_url")
    counts = ("2000", "100") if CAMPAIGN else ("200", "3")
    row = benchmark(tmp_path, url, "--only", "burst", "--requests", counts[0], "--keys", counts[1])[0]
    assert row["ok"], row


def benchmark(folder: Path, url: str, *arguments: str) -> list[dict[str, Any]]:
    """Run the service benchmark and return its rows."""
    path = folder / "rows.json"
    benchmarks.service.__main__.main(["--database", url, "--json", str(path), *arguments])
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    return rows


def test_the_benchmark_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2 and one line."""
    with pytest.raises(SystemExit, match="2"):
        benchmarks.service.__main__.main(["--only", "everything"])
    assert "choose from" in capsys.readouterr().err


def test_drift_is_worked_out_of_the_sums(fleet: Api) -> None:
    """Of each plan the geometric mean of what devices said of the version served; of the fleet the middle report's."""
    drawn = random.Random(2)
    release(fleet)
    plans = FleetPlanPage.model_validate_json(fleet.client.get("/fleet/plans").content).plans
    assert fleet.client.get("/fleet").json()["median_drift"] is None
    for _ in plans:
        solve_one(fleet)
    solved = FleetPlanPage.model_validate_json(fleet.client.get("/fleet/plans").content).plans
    said: dict[str, list[float]] = {}
    for plan, reports, factor in zip(solved, (3, 5, 4), (2.0, 1.1, 0.5), strict=True):
        for number in range(reports):
            off = said.setdefault(plan.plan_id, [])
            off.append(factor * drawn.uniform(0.95, 1.05))
            run = MeasuredRun(
                plan_id=plan.plan_id, plan_version=1, measured_us=(plan.makespan_us or 1.0) * off[-1], runs=9
            )
            said_of = DeviceReport(soc=plan.soc, frequency="max", measured=(run,))
            assert fleet.put(f"/devices/d-{plan.soc}-{number}/report", said_of).status_code == 204
    found = FleetPlanPage.model_validate_json(fleet.client.get("/fleet/plans").content).plans
    means = {name: statistics.geometric_mean(off) - 1.0 for name, off in said.items()}
    assert {plan.plan_id: plan.drift for plan in found} == {name: pytest.approx(m) for name, m in means.items()}
    middle = means[solved[1].plan_id]
    assert fleet.client.get("/fleet").json()["median_drift"] == pytest.approx(middle), "the sixth of twelve reports"


@pytest.mark.above_databases
@pytest.mark.parametrize("inside", [False, True])
def test_a_plan_is_listed_whatever_found_it(api: Api, inside: bool) -> None:
    """A way from one method to another is an ordinary name; a row that cannot be read does not blank the list.

    ``inside`` another's process what is logged goes to ``logging``, whose records have names of their own.
    """
    if inside:
        structlog.reset_defaults()
        stay_quiet()
    api.learn(GRAPH)
    plan_id, other = api.plan(GRAPH).plan_id, api.plan(GRAPH, method="greedy").plan_id

    def change(**values: Any) -> None:
        async def store() -> None:
            async with api.app.planner.database.write() as session:
                await session.execute(update(PlanVersionRow).where(PlanVersionRow.plan_id == plan_id).values(**values))

        api.await_(store)

    def listed() -> dict[str, str | None]:
        page = api.client.get("/fleet/plans")
        assert page.status_code == 200, page.text
        for path in ("/console/plans", f"/console/models/{GRAPH.model_hash}"):
            assert api.client.get(path).status_code == 200
        return {plan["plan_id"]: plan["found_by"] for plan in page.json()["plans"]}

    for found_by in ("greedy->single", "ilp→greedy"):
        change(found_by=found_by)
        assert listed()[plan_id] == found_by
    change(makespan_us=-1.0)
    assert listed().keys() == {other}


@pytest.mark.above_databases
def test_a_slash_makes_no_two_profiles_one(api: Api) -> None:
    """A SoC may hold one, a frequency may not, so that a profile's address is nobody else's."""
    assert api.post("/models", GRAPH).status_code == 201
    missing = api.missing(GRAPH)
    assert api.post("/profiles", measure(missing, soc="a/b", frequency="c")).status_code == 202
    body = measure(missing).model_dump_json().replace(f'"{FREQUENCY}"', '"b/c"')
    assert api.post("/profiles", body.encode()).status_code == 422
    api.await_(api.app.planner.profiles.folded, "a/b", "c")
    assert api.client.get("/profiles/a%2Fb/c").json()["soc"] == "a/b"
    assert api.client.get("/profiles/a/b/c").status_code == 404
